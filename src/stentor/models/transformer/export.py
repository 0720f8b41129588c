"""Exports of the family `transformer`: config.json (the family section and the sizes that task and data gave),
model.safetensors (all weights and random features), preprocessor_config.json and, for text, the tokenizer's files.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.pretrained.weights import cpu_state, read_json, read_weights, standalone, write_json, write_weights
from stentor.models.transformer.build import assemble, finish
from stentor.models.transformer.config import Transformer
from stentor.models.transformer.processor import TransformerProcessor
from stentor.version import __version__


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(state, folder)
    bundle.processor.save(folder)
    write_config(bundle, folder)


def write_config(bundle: Bundle, folder: Path) -> None:
    """Write config.json."""
    model: Any = bundle.model
    config = {
        "model_type": "transformer",
        "stentor_version": __version__,
        "family": bundle.family.model_dump(mode="json", by_alias=True),
        "classes": model.frame_head.out_features if model.frame_head is not None else None,
        "ssl_config": model.frontend.config if model.frontend is not None else None,
    }
    write_json(folder / "config.json", config)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """As `save`: exports need nothing else. This one does not name the model that training started from."""
    save(Bundle(bundle.model, bundle.processor, standalone(bundle.family)), cpu_state(bundle.model), folder)


def load(family_class: type[Transformer], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder; see `Family.load`."""
    config = read_json(folder / "config.json")
    family = family_class.model_validate(config["family"])
    bundle = assemble(family, TransformerProcessor.load(folder), config["classes"], config["ssl_config"])
    weights, _ = read_weights(folder)
    mismatched = sorted(bundle.model.state_dict().keys() ^ weights.keys())
    if mismatched:
        raise ConfigError(
            f"{folder}: the weights do not fit config.json (for example {mismatched[0]}); the export is damaged or was "
            "edited."
        )
    bundle.model.load_state_dict(weights)
    return finish(bundle, trainable)
