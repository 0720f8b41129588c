"""Model catalogue: the checkpoints that are known, and the sections of a run file that train each (catalogue.yaml).

`stentor models`, the table of docs/finetune.md and the list of the studio are this one.
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
    """A checkpoint of the Hub, or a model that begins from nothing."""

    name: str
    """A short name, the key of catalogue.yaml."""
    tasks: tuple[str, ...]
    run: dict[str, Any]
    """Sections of a run file, without data."""
    id: str | None = None
    """On the Hub. None: it begins from nothing, or puts one pretrained part among new ones."""
    parameters: float = 0.0
    """Parameters of the whole model; 0 where they depend on the data."""
    adapters: float = 0.0
    """Parameters of the adapters of `lora: {}`."""
    frozen: float = 0.0
    """Parameters that `run` freezes."""
    download: float | None = None
    """Gigabytes that have to be fetched once. None: it begins from nothing."""
    languages: tuple[str, ...] | int | None = None
    """Codes, in what they are listed; how many, where a card says no more. None: any that there is data of."""
    licence: str | None = None
    """Licence of the weights, as an SPDX name where there is one. None: unknown, or there are no weights."""
    can: tuple[str, ...] = ()
    """Abilities besides plain text: `words` (times), `speakers`, `streaming`, `translation`."""
    default: str = FULL
    """The way of training that is proposed: full or lora."""
    needs: str = ""
    """The task whose records it needs, where that is not the task's own: `words` for models that write while they
    listen."""
    recipe: str = ""
    """Key of its learning rate, where that is not the family."""
    lora: dict[str, Any] = field(default_factory=dict)
    """Put over `run` for low-rank adapters."""
    full: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    """Put over the section `model` where another model of this family takes its place."""
    methods: tuple[str, ...] = (FULL,)
    """Training methods."""

    @property
    def family(self) -> str:
        return str(self.run["model"]["type"])

    @property
    def label(self) -> str:
        """Name for people: the Hub id, or else the short name."""
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
