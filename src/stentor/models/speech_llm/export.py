"""Export folders of the speech LLM, of torch (see `stentor.models.pretrained.parts`) or ONNX."""

import json
from pathlib import Path

from stentor.errors import ConfigError
from stentor.models.base import ONNX_CONFIG, Bundle
from stentor.models.pretrained.parts import exported_tensor_names, load_parts, save, save_merged
from stentor.models.runtimes.graph import onnx_facts
from stentor.models.speech_llm.build import apply_memory_options, assemble
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.speech_llm.onnx_model import OnnxModel
from stentor.models.speech_llm.processor import SpeechLLMProcessor

__all__ = ["exported_tensor_names", "load", "save", "save_merged"]


def load(family_class: type[SpeechLLM], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder; see `Family.load`. Without `trainable` adapters are folded in."""
    if (folder / ONNX_CONFIG).is_file():
        return load_onnx(folder, trainable)
    return load_parts(family_class, folder, SpeechLLMProcessor, assemble, apply_memory_options, trainable)


def load_onnx(folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an ONNX folder. Raises ConfigError when onnxruntime is missing or a file is damaged, and when it is
    to be `trainable`, which graphs are not."""
    if trainable:
        raise ConfigError(f"{folder} is an ONNX export, which cannot be trained: give the export it was made from.")
    facts = onnx_facts(folder)
    processor = SpeechLLMProcessor.load(folder)
    family = SpeechLLM.model_validate(json.loads((folder / "config.json").read_text(encoding="utf-8"))["family"])
    model = OnnxModel(folder, facts, processor.shape).eval()
    return Bundle(model, processor, family, model.cache_encoder)
