"""Trained parameters of a model: freezing by globs and low-rank adapters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pydantic import Field

from stentor.errors import ConfigError
from stentor.section import Section

if TYPE_CHECKING:
    from torch import nn

ADAPTER = "default"


class Lora(Section):
    """Low-rank adapters (PEFT). Families add `targets`, globs on module paths."""

    rank: int = Field(16, ge=1)
    """Rank of the two matrices."""
    alpha: float = Field(32, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(0.05, ge=0, lt=1)
    """Dropout on the adapter's input."""


def matching(names: Iterable[str], globs: Iterable[str], where: str) -> set[str]:
    """Names that match at least one of the globs (anchored at both ends, `*` matches dots too).

    Raises ConfigError for a glob that matches nothing.
    """
    names = list(names)
    matches: set[str] = set()
    for glob in globs:
        hits = {name for name in names if fnmatchcase(name, glob)}
        if not hits:
            # The last part is what is mistyped most often, and the paths before it are long.
            last = {name.rpartition(".")[2]: name for name in reversed(names)}
            like = difflib.get_close_matches(glob.rpartition(".")[2], last, 1)
            close = [last[n] for n in like] or difflib.get_close_matches(glob, names, 1, 0.3) or names[:1]
            raise ConfigError(f"{where}: '{glob}' matches nothing; there is for example '{close[0]}'.")
        matches |= hits
    return matches


def adapt(model: nn.Module, lora: Any | None, freeze: list[str]) -> None:
    """Freeze parameters that match `freeze`, then add adapters to the linear layers that match `lora.targets`.

    Frozen layers get no adapter, so a frozen part has no trainable parameter at all. A part (direct child of the
    model) that gets adapters is frozen but for them. `lora` is a section with `rank`, `alpha`, `dropout`, `targets`.
    Raises ConfigError for a glob that matches nothing and when every target is frozen.
    """
    freeze_parameters(model, freeze)
    if lora is not None:
        inject(model, lora, lora_targets(model, lora.targets))


def adapt_only(model: nn.Module, lora: Any | None, freeze: list[str]) -> None:
    """As `adapt`, but with adapters nothing else is trained, in no part: what PEFT does to a whole model."""
    freeze_parameters(model, freeze)
    if lora is not None:
        targets = lora_targets(model, lora.targets)
        model.requires_grad_(False)
        inject(model, lora, targets)


def freeze_parameters(model: nn.Module, globs: list[str]) -> None:
    """Stop training of the parameters whose names match."""
    parameters = dict(model.named_parameters())
    for name in matching(parameters, globs, "model.freeze"):
        parameters[name].requires_grad_(False)


def lora_targets(model: nn.Module, globs: list[str]) -> list[str]:
    """Paths of the linear layers that get adapters: those that match and are not frozen."""
    from torch import nn

    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    matches = matching(linear, globs, "model.lora.targets")
    targets = sorted(name for name in matches if linear[name].weight.requires_grad)
    if not targets:
        raise ConfigError(
            "model.lora.targets: every layer that matches is frozen by `model.freeze`. A part with adapters is frozen "
            "but for them already: take it out of `freeze`."
        )
    return targets


def inject(model: nn.Module, lora: Any, targets: list[str]) -> None:
    """Add LoRA adapters (Hu et al. 2021) to the layers at these paths and freeze the rest of their parts."""
    from peft import LoraConfig, inject_adapter_in_model

    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets)
    inject_adapter_in_model(config, model, ADAPTER)
    adapted = {target.partition(".")[0] for target in targets}
    for name, parameter in model.named_parameters():  # peft froze everything but the adapters
        if is_adapter(name):
            continue
        part = name.partition(".")[0]
        parameter.requires_grad_(part not in adapted and name in trained)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, the model is what it was before adapters were added."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to a LoRA adapter."""
    return ".lora_" in name


def base_name(name: str) -> str:
    """The name that a parameter had before adapters were added."""
    return name.replace(".base_layer.", ".")
