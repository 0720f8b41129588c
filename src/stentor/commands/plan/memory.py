"""How much memory a run needs: an estimate for each method side by side, and the figure of a dry run.

Weights, gradients and optimizer state are counted. What a batch adds is measured on one and two items of the largest
batch, on a model whose stacks of equal layers are cut down to one and two of them, and extended in straight lines to
all layers and the whole batch; so nothing large is needed to know how large it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from stentor.engine import memory_estimate
from stentor.engine.memory_estimate import MemoryEstimate
from stentor.errors import ConfigError
from stentor.models.parameters import size
from stentor.models.peft import base_name, inject, is_adapter, lora_targets, matching
from stentor.models.quantize import BYTES, HEADS, Bits, quantize
from stentor.models.quantize.layers import QuantizedLinear

if TYPE_CHECKING:
    from stentor.config.schema import Config
    from stentor.data.batch import Batch

FIXED = ("encoder.embed_positions.weight", "audio_tower.embed_positions.weight")
"""Sinusoids of Whisper's encoder, which no family trains."""


@dataclass
class Method:
    """One way to train the model, and what it takes per process."""

    name: str
    """full, LoRA, LoRA 8-bit, LoRA 4-bit."""
    chosen: bool
    """Whether the config says so."""
    estimate: MemoryEstimate


class Weights:
    """The parameters of a model by what could be made of them: counts, bytes, and which could be quantised."""

    def __init__(self, model: nn.Module, family: Any):
        """`family`: the config section; `model`: its bundle's, with adapters and quantised layers or without."""
        self.model, self.family = model, family
        self.root, self.prefix = _root(model)
        self.lora = family.lora if "lora" in type(family).model_fields else None
        self.plain: dict[str, tuple[int, int]] = {}  # name -> (count, bytes of one)
        self.rows: dict[str, int] = {}  # of linear layers that could be quantised: name of the weight -> outputs
        self.trains: set[str] = set()
        self.adapters = 0
        uses: dict[int, int] = {}
        for _, parameter in model.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                self.adapters += size(parameter)
                continue
            module = model.get_submodule(name.rpartition(".")[0])
            own = base_name(name)
            if isinstance(module, QuantizedLinear) and name.endswith(".weight"):
                self.plain[own] = (module.in_features * module.out_features, module.dtype.itemsize)
                self.rows[own] = module.out_features
            else:
                self.plain[own] = (size(parameter), parameter.element_size())
                linear = type(module) is nn.Linear and name.endswith(".weight") and uses[id(parameter)] == 1
                if linear and own.split(".")[-2] not in HEADS:
                    self.rows[own] = module.out_features  # type: ignore[assignment]
            if parameter.requires_grad:
                self.trains.add(own)
        if self.lora is not None:  # what full training would train
            frozen = matching([n.removeprefix(self.prefix) for n in self.plain], family.freeze, "model.freeze")
            self.trains_fully = {
                n for n in self.plain if n.removeprefix(self.prefix) not in frozen and not n.endswith(FIXED)
            }
        else:
            self.trains_fully = set(self.trains)

    @property
    def total(self) -> int:
        return sum(count for count, _ in self.plain.values())

    def section(self) -> Any | None:
        """The section `lora` of the config, or the family's usual one; None for families without adapters."""
        if self.lora is not None:
            return self.lora
        annotation = type(self.family).model_fields["lora"].annotation if _has(self.family, "lora") else None
        kinds = [k for k in getattr(annotation, "__args__", ()) if k is not type(None)]
        return kinds[0]() if kinds else None

    @cached_property
    def targets(self) -> list[str]:
        """Paths below `root` of the layers that the usual section would give adapters. Raises ConfigError."""
        globs = self.section().targets or ["*.q_proj", "*.v_proj"]  # type: ignore[union-attr]
        return lora_targets(self.root, globs)

    def takes_adapters(self) -> bool:
        """Whether the family knows adapters and its usual ones, where the config has none, fit this model."""
        if self.lora is not None or self.section() is None:
            return self.lora is not None
        with suppress(ConfigError):
            return bool(self.targets)
        return False

    def with_adapters(self) -> tuple[set[str], int]:
        """(names that train beside adapters, parameters of adapters) under LoRA."""
        if self.lora is not None:
            return self.trains, self.adapters
        count = 0
        for target in self.targets:
            layer = self.root.get_submodule(target)
            count += self.section().rank * (layer.in_features + layer.out_features)  # type: ignore[union-attr, operator]
        if self.family.adapters_alone:
            return set(), count
        parts = {self.prefix + target.partition(".")[0] + "." for target in self.targets}
        return {n for n in self.trains if not n.startswith(tuple(parts))}, count

    def adapted(self) -> tuple[str, ...]:
        """Prefixes of the parts that have adapters, or would."""
        if self.lora is not None:
            names = [n.removeprefix(self.prefix) for n, _ in self.model.named_parameters() if is_adapter(n)]
        else:
            names = self.targets
        return tuple({self.prefix + name.partition(".")[0] + "." for name in names})

    def estimate(
        self, config: Config, trained: set[str], adapters: int, bits: Bits | None, world: int
    ) -> MemoryEstimate:
        """What stands between steps when these parameters train, others being kept as they are or in few bits."""
        parts = self.adapted() if bits is not None else ()
        bytes_ = 4.0 * adapters + sum(b.nbytes for b in self.model.buffers())
        for name, (count, each) in self.plain.items():
            if name in trained:
                bytes_ += 4 * count
            elif bits is not None and name in self.rows and name.startswith(parts):
                bytes_ += count * BYTES[bits] + (4 * self.rows[name] if bits == "8bit" else 0)
            else:
                bytes_ += count * each
        count = adapters + sum(self.plain[n][0] for n in trained)
        return memory_estimate.standing(bytes_, count, config, world)


def methods(
    config: Config,
    model: nn.Module,
    run: Callable[[Batch], None] | None,
    tries: Sequence[tuple[float, Batch]],
    slots: float,
    world: int = 1,
    casts: bool = True,
) -> list[Method]:
    """The estimate for each method that the family knows: full, and with adapters on weights as they are, in 8 and in 4
    bits. The model is left as it was.

    `run(batch)` goes forward and backward; `tries` are (positions, batch) of one or two items, `slots` the positions of
    the largest batch. Without tries activations are left out. `casts`: whether autocast computes in fewer bits, and so
    keeps copies of frozen weights for the backward pass, which layers in 8 or 4 bits do not.
    """
    weights = Weights(model, config.model)
    rows: list[tuple[str, set[str], int, Bits | None]] = [("full", weights.trains_fully, 0, None)]
    if weights.takes_adapters():
        trained, adapters = weights.with_adapters()
        rows.append(("LoRA", trained, adapters, None))
        if _has(config.model, "quantize"):
            rows += [("LoRA 8-bit", trained, adapters, "8bit"), ("LoRA 4-bit", trained, adapters, "4bit")]
    bits = config.model.quantize if _has(config.model, "quantize") else None  # type: ignore[attr-defined]
    found: list[Method] = []
    for name, trained, adapters, kept in rows:
        base = weights.estimate(config, trained, adapters, kept, world)
        held = None
        if kept == "4bit" or (kept is not None and not casts):  # as the method before
            held = found[-1].estimate.activations
        elif tries and run is not None:
            held = _activations(weights, config.model.wrap_layers, trained, bool(adapters), kept, run, tries, slots)
        chosen = (name != "full") == (weights.lora is not None) and kept == bits
        figures = MemoryEstimate(base.weights, base.gradients, base.optimizer, held, base.together)
        found.append(Method(name, chosen, figures))
    return found


def _activations(
    weights: Weights,
    layers: tuple[str, ...],
    trained: set[str],
    adapters: bool,
    bits: Bits | None,
    run: Callable[[Batch], None],
    tries: Sequence[tuple[float, Batch]],
    slots: float,
) -> float:
    def measure() -> np.ndarray:
        with _varied(weights, trained, adapters, bits):
            return memory_estimate.activations(weights.model, run, tries, slots)

    return memory_estimate.largest(by_depth(weights.model, layers, measure))


GROWS = np.array([1.0, 1.0, 0.0])
"""Which of the `moments` add up over layers; what comes and goes for a moment is that of the largest layer."""


def by_depth(model: nn.Module, layers: tuple[str, ...], measure: Callable[[], np.ndarray]) -> np.ndarray:
    """What `measure` would say of the whole model, from what it says when stacks of layers (of these class names) are
    cut down to one and two."""
    stacks = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) and all(type(m).__name__ in layers for m in child)
    ]
    with _restored(model):
        for parent, name, stack in stacks:
            parent._modules[name] = nn.ModuleList(list(stack)[:1])
        one = measure()
        total = one.copy()
        for parent, name, stack in stacks:
            if len(stack) > 1:
                parent._modules[name] = nn.ModuleList(list(stack)[:2])
                two = measure()
                total = total + (len(stack) - 1) * np.maximum(two - one, 0.0) * GROWS
                total[2] = min(total[2], two[2])
                parent._modules[name] = nn.ModuleList(list(stack)[:1])
    return total


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Whatever modules and `requires_grad` are changed inside are put back."""
    modules = [(m, dict(m._modules)) for m in model.modules()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield
    finally:
        for module, children in modules:
            module._modules.clear()
            module._modules.update(children)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def _varied(weights: Weights, trained: set[str], adapters: bool, bits: Bits | None) -> Iterator[None]:
    """The model as another method would train it; meant for one whose stacks are cut down."""
    model, root = weights.model, weights.root
    with _restored(model):
        if not (adapters and weights.lora is not None):  # it has its own adapters
            for name, module in list(model.named_modules()):
                if hasattr(module, "base_layer"):
                    _put(model, name, module.base_layer)
            for name, module in list(model.named_modules()):
                if isinstance(module, QuantizedLinear):
                    _put(model, name, _expanded(module))
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(base_name(name) in weights.trains_fully and parameter.is_floating_point())
            if adapters:
                here = {name for name, _ in root.named_modules()}
                inject(root, weights.section(), [t for t in weights.targets if t in here])
                del root.peft_config
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_adapter(name) or base_name(name) in trained)
        if bits is not None:
            quantize(root, "8bit", next(model.parameters()).device)
        else:
            for name, module in list(model.named_modules()):
                if isinstance(module, QuantizedLinear):
                    _put(model, name, _expanded(module))
        yield


def _expanded(layer: QuantizedLinear) -> nn.Linear:
    """A plain layer with the rounded weight, frozen."""
    with torch.device("meta"):
        linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    linear.weight = nn.Parameter(layer.weight, requires_grad=False)
    linear.bias = layer.bias
    return linear


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    model.get_submodule(parent)._modules[own] = module


def _root(model: nn.Module) -> tuple[nn.Module, str]:
    """The module whose children are the parts that adapters are added to, and the prefix of its names."""
    children = list(model.named_children())
    return (children[0][1], f"{children[0][0]}.") if len(children) == 1 else (model, "")


def _has(family: Any, key: str) -> bool:
    return key in type(family).model_fields
