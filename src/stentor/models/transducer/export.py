"""Export folders of transducers with an encoder of ours: as those of the speech LLM, with the weights of their own
parts."""

from pathlib import Path

from stentor.models.base import Bundle
from stentor.models.speech_llm.export import exported_tensor_names, load_parts, save, save_merged
from stentor.models.transducer import TransducerFamily
from stentor.models.transducer.build import apply_memory_options, assemble
from stentor.models.transducer.processor import TransducerProcessor

__all__ = ["exported_tensor_names", "load", "save", "save_merged"]


def load(family_class: type[TransducerFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder; see `Family.load`."""
    return load_parts(family_class, folder, TransducerProcessor, assemble, apply_memory_options, trainable)
