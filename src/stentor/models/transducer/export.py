"""Export folders of transducers: of those with an encoder of ours as those of the speech LLM, with the weights of their
own parts; of transformers' models as it has them."""

from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.models.base import Bundle
from stentor.models.pretrained.weights import read_json
from stentor.models.speech_llm import export as parts
from stentor.models.transducer.build import apply_memory_options, assemble
from stentor.models.transducer.config import TransducerFamily
from stentor.models.transducer.pretrained import export as whole
from stentor.models.transducer.pretrained.kinds import KINDS
from stentor.models.transducer.processor import TransducerProcessor


def _layout(bundle: Bundle) -> Any:
    return whole if bundle.family.encoder is None else parts


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """See `Family.exported_tensor_names`."""
    names: set[str] = _layout(bundle).exported_tensor_names(bundle)
    return names


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """See `Family.save`."""
    _layout(bundle).save(bundle, state, folder)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """See `Family.save_merged`."""
    _layout(bundle).save_merged(bundle, folder)


def load(family_class: type[TransducerFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder; see `Family.load`."""
    if read_json(folder / "config.json")["model_type"] in KINDS:
        return whole.load(family_class, folder, trainable)
    return parts.load_parts(family_class, folder, TransducerProcessor, assemble, apply_memory_options, trainable)
