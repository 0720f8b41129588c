"""Export folders of the speech LLM; see `stentor.models.pretrained.parts`."""

from pathlib import Path

from stentor.models.base import Bundle
from stentor.models.pretrained.parts import exported_tensor_names, load_parts, save, save_merged
from stentor.models.speech_llm.build import apply_memory_options, assemble
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.speech_llm.onnx_model import is_onnx, load_onnx
from stentor.models.speech_llm.processor import SpeechLLMProcessor

__all__ = ["exported_tensor_names", "load", "save", "save_merged"]


def load(family_class: type[SpeechLLM], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder, of torch or ONNX; see `Family.load`. Without `trainable` adapters are folded
    in."""
    if is_onnx(folder):
        return load_onnx(folder, trainable)
    return load_parts(family_class, folder, SpeechLLMProcessor, assemble, apply_memory_options, trainable)
