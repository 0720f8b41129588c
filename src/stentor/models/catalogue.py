"""Model catalogue: known checkpoints, and the sections of a run file that train each of them (catalogue.yaml).

`stentor models`, the table of docs/finetune.md and the list of the studio are made from it.
"""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from stentor.data.yaml_text import read_yaml

FULL, LORA = "full", "lora"


@dataclass(frozen=True)
class KnownModel:
    """A checkpoint of the Hub, or a model that is trained from scratch."""

    name: str
    """A short name, the key of catalogue.yaml."""
    tasks: tuple[str, ...]
    run: dict[str, Any]
    """Sections of a run file, without data."""
    id: str | None = None
    """Id on the Hub. None: it is trained from scratch, or has one pretrained part among new ones."""
    parameters: float = 0.0
    """Parameters of the whole model; 0 where they depend on the data."""
    adapters: float = 0.0
    """Parameters of the adapters of `lora: {}`."""
    frozen: float = 0.0
    """Parameters that `run` freezes."""
    download: float | None = None
    """Gigabytes to download once. None: it is trained from scratch."""
    languages: tuple[str, ...] | int | None = None
    """Language codes, or their number where the model card gives no list. None: any language that there is data for."""
    licence: str | None = None
    """Licence of the weights, as an SPDX name where there is one. None: not known, or trained from scratch."""
    can: tuple[str, ...] = ()
    """Abilities beyond plain text: `words` (times), `speakers`, `streaming`, `translation`."""
    default: str = FULL
    """Recommended method of training: full or lora."""
    needs: str = ""
    """The task whose records it needs, where that is not the task's own: `words` for streaming models."""
    recipe: str = ""
    """The name of its learning rate, where that is not the family."""
    lora: dict[str, Any] = field(default_factory=dict)
    """Put over `run` for low-rank adapters."""
    full: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    """Put over the section `model` where another model of this family takes its place."""
    methods: tuple[str, ...] = (FULL,)
    """Methods of training."""

    @property
    def family(self) -> str:
        return str(self.run["model"]["type"])

    @property
    def label(self) -> str:
        """Display name: the Hub id, or else the short name."""
        return self.id or self.name

    def sections(self, method: str) -> dict[str, Any]:
        """The sections of a run file that trains it in that way, without data; a copy."""
        tree = copy.deepcopy(self.run)
        merge(tree, copy.deepcopy(self.lora if method == LORA else self.full))
        if method == LORA:
            tree["model"].setdefault("lora", {})
        return tree


def merge(tree: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Put sections over others, in place."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = value


@functools.cache
def known_models() -> dict[str, KnownModel]:
    """The models of catalogue.yaml by short name, in its order. Those that begin from a pretrained one can be trained
    with adapters where their family has them."""
    from stentor.models.base import Family

    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    models = {}
    for name, facts in read_yaml(text)["models"].items():
        run, languages = copy.deepcopy(facts["run"]), facts.get("languages")
        if facts.get("id"):
            run["model"] = {"type": run["model"]["type"], "from": facts["id"], **run["model"]}
        adapters = "lora" in Family.choices()[run["model"]["type"]].model_fields and facts.get("download") is not None
        settled = {
            "name": name,
            "run": run,
            "languages": tuple(languages.split()) if isinstance(languages, str) else languages,
            "methods": (LORA, FULL) if adapters else (FULL,),
            **{key: tuple(facts[key]) for key in ("tasks", "can") if key in facts},
        }
        models[name] = KnownModel(**{**facts, **settled})
    return models
