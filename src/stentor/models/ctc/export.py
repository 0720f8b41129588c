"""Export folders of the family `ctc`: what transformers' AutoModelForCTC and AutoProcessor load by themselves."""

from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.data.atomic_write import follow_umask
from stentor.models.base import Bundle
from stentor.models.ctc.build import apply_memory_options, assemble
from stentor.models.ctc.config import CTCFamily
from stentor.models.pretrained.lora import freeze_parameters
from stentor.models.pretrained.weights import SECTION_FILE, cpu_state, fold_state, read_json, write_json

PREFIX = "recogniser."


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export; see `Family.save`. LoRA adapters are folded in, and the model is written whole: beside them the
    head is trained, mostly with an alphabet of its own, so that a folder of adapters would fit no base as it is, and
    encoders of this kind are small enough (95 M to 1.1 B parameters) for everybody to load the export by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    recogniser: Any = bundle.model.recogniser
    weights = fold_state(recogniser, {name.removeprefix(PREFIX): tensor for name, tensor in state.items()})
    recogniser.save_pretrained(folder, state_dict=weights, max_shard_size="5GB")
    follow_umask(*folder.glob("model*.safetensors"))
    write_facts(bundle, folder)


def write_facts(bundle: Bundle, folder: Path) -> None:
    """Give the config.json of a folder the settings that training did without, and add the processor's files."""
    file = folder / "config.json"
    config = read_json(file)
    config.get("encoder_config", config).update(bundle.model.before)
    write_json(file, config)
    bundle.processor.save(folder)
    if streaming := getattr(bundle.family, "streaming", None):
        write_json(folder / SECTION_FILE, {"streaming": streaming.model_dump(mode="json")})


def save_merged(bundle: Bundle, folder: Path) -> None:
    """An export is whole and has its adapters folded in as it is."""
    save(bundle, cpu_state(bundle.model), folder)


def load(family_class: type[CTCFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of a folder of a transformers CTC model; LoRA adapters are folded into exports already."""
    facts = read_json(folder / SECTION_FILE) if (folder / SECTION_FILE).is_file() else {}
    family = family_class.model_validate({"type": "ctc", "from": str(folder), "streaming": facts.get("streaming")})
    bundle = apply_memory_options(assemble(family, "own", lambda: (), "model"))
    if trainable:
        freeze_parameters(bundle.model.recogniser, family.freeze)
    else:
        bundle.model.requires_grad_(False)
    bundle.model.train(trainable)
    return bundle
