"""Export folders of transformers' transducers: what its AutoModelForTDT, AutoModelForRNNT and AutoProcessor load by
themselves, and stentor.json with what only Stentor knows, such as how confidences are calibrated."""

from pathlib import Path

import torch
from torch import Tensor

from stentor.models.base import Bundle
from stentor.models.ctc.export import PREFIX
from stentor.models.ctc.export import save as save_recogniser
from stentor.models.peft import freeze_parameters
from stentor.models.pretrained import set_memory_options
from stentor.models.transducer import TransducerFamily
from stentor.models.transducer.pretrained.build import assemble
from stentor.models.weights_io import SECTION_FILE, cpu_state, read_json, write_json


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """All: an export is whole."""
    return set(bundle.model.state_dict())


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write a folder that transformers alone reads; see `Family.save`. LoRA adapters are folded in."""
    save_recogniser(bundle, {n: t for n, t in state.items() if n.startswith(PREFIX)}, folder)
    write_json(folder / SECTION_FILE, {n: t.tolist() for n, t in state.items() if not n.startswith(PREFIX)})


def save_merged(bundle: Bundle, folder: Path) -> None:
    """An export is whole and has its adapters folded in as it is."""
    save(bundle, cpu_state(bundle.model), folder)


def load(family_class: type[TransducerFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of a folder of transformers; see `Family.load`."""
    family = family_class.model_validate({"type": "transducer", "from": str(folder)})
    bundle = assemble(family, lambda: (), "model")
    if (folder / SECTION_FILE).is_file():
        buffers = {name: torch.tensor(values) for name, values in read_json(folder / SECTION_FILE).items()}
        bundle.model.load_state_dict(buffers, strict=False)
    set_memory_options(bundle, (bundle.model.recogniser.encoder,))
    bundle.model.requires_grad_(trainable)
    if trainable:
        freeze_parameters(bundle.model.recogniser, family.freeze)
    bundle.model.train(trainable)
    return bundle
