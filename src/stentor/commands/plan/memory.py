"""Memory that a run needs: an estimate for each method (full, LoRA, LoRA on quantised weights) side by side.

Weights, gradients and optimizer state are counted. What a batch adds is measured on one and two items of the largest
batch, on a model whose stacks of equal layers are cut down to one and two of them, and extended in straight lines to
all layers and the whole batch; so nothing large is needed to know how large it would be.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from stentor.config.schema import Config
from stentor.data.batch import Batch
from stentor.engine import memory_estimate
from stentor.engine.standing_memory import MemoryEstimate, standing
from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.pretrained.lora import base_name, inject, is_adapter, lora_targets, matching
from stentor.models.pretrained.quantize import BYTES, HEADS, Bits, quantize
from stentor.models.pretrained.quantized_layers import QuantizedLinear

FIXED = ("encoder.embed_positions.weight", "audio_tower.embed_positions.weight")
"""Sinusoids of Whisper's encoder, which no family trains."""


@dataclass
class Method:
    """One way to train the model: full, LoRA, LoRA 8-bit, LoRA 4-bit."""

    name: str
    trained: set[str]  # names of the parameters that train, adapters left out
    adapters: int = 0  # parameters of adapters
    bits: Bits | None = None  # what frozen weights are held in
    chosen: bool = False  # whether the config says so
    estimate: MemoryEstimate = field(init=False)  # per process


class Weights:
    """The parameters of a model by what could be made of them: counts, bytes, and which could be quantised."""

    def __init__(self, model: nn.Module, family: Any):
        """`family`: the config section; `model`: its bundle's, with adapters and quantised layers or without."""
        self.model, self.family = model, family
        self.root, self.prefix = _root(model)
        self.lora = family.lora if _has(family, "lora") else None
        self.plain: dict[str, tuple[int, int]] = {}  # name -> (count, bytes of one)
        self.rows: dict[str, int] = {}  # of linear layers that could be quantised: name of the weight -> outputs
        self.trains: set[str] = set()
        self.adapters = 0
        uses: dict[int, int] = {}
        for _, parameter in model.named_parameters(remove_duplicate=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                self.adapters += parameter.numel()
                continue
            module = model.get_submodule(name.rpartition(".")[0])
            plain_name = base_name(name)
            if isinstance(module, QuantizedLinear) and name.endswith(".weight"):
                self.plain[plain_name] = (module.in_features * module.out_features, module.dtype.itemsize)
                self.rows[plain_name] = module.out_features
            else:
                self.plain[plain_name] = (parameter.numel(), parameter.element_size())
                linear = type(module) is nn.Linear and name.endswith(".weight") and uses[id(parameter)] == 1
                if linear and plain_name.split(".")[-2] not in HEADS:
                    self.rows[plain_name] = module.out_features  # type: ignore[assignment]
            if parameter.requires_grad:
                self.trains.add(plain_name)
        if self.lora is not None:  # what full training would train
            frozen = matching([n.removeprefix(self.prefix) for n in self.plain], family.freeze, "model.freeze")
            self.trains_fully = {
                n for n in self.plain if n.removeprefix(self.prefix) not in frozen and not n.endswith(FIXED)
            }
        else:
            self.trains_fully = set(self.trains)

    def section(self) -> Any | None:
        """The section `lora` of the config, or the family's usual one; None for families without adapters."""
        if self.lora is not None:
            return self.lora
        annotation = type(self.family).model_fields["lora"].annotation if _has(self.family, "lora") else None
        kinds = [k for k in get_args(annotation) if k is not type(None)]
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

    def estimate(self, config: Config, method: Method, world: int) -> MemoryEstimate:
        """Memory between steps, without activations."""
        parts = self.adapted() if method.bits is not None else ()
        num_bytes = 4.0 * method.adapters + sum(b.nbytes for b in self.model.buffers())
        for name, (count, element_size) in self.plain.items():
            if name in method.trained:
                num_bytes += 4 * count
            elif method.bits is not None and name in self.rows and name.startswith(parts):
                num_bytes += count * BYTES[method.bits] + (4 * self.rows[name] if method.bits == "8bit" else 0)
            else:
                num_bytes += count * element_size
        count = method.adapters + sum(self.plain[n][0] for n in method.trained)
        return standing(num_bytes, count, config.optim, config.train, world)


def methods(
    config: Config,
    bundle: Bundle,
    run: Callable[[Batch], None] | None,
    tries: Sequence[tuple[float, Batch]],
    num_positions: float,
    world: int = 1,
    casts: bool = True,
) -> list[Method]:
    """The estimate for each method that the family knows: full, and with adapters on weights as they are, in 8 and in 4
    bits. The model is left as it was.

    Args:
        run: goes forward and backward with a batch; None leaves activations out.
        tries: (positions, batch) of one or two items; empty leaves activations out.
        num_positions: of the largest batch.
        casts: whether autocast computes in fewer bits, and so keeps copies of frozen weights for the backward pass,
            which layers in 8 or 4 bits do not.
    """
    model = bundle.model
    weights = Weights(model, config.model)
    rows = [Method("full", weights.trains_fully)]
    has_quantize = _has(config.model, "quantize")
    if weights.takes_adapters():
        trained, adapters = weights.with_adapters()
        rows.append(Method("LoRA", trained, adapters))
        if has_quantize:
            rows += [Method("LoRA 8-bit", trained, adapters, "8bit"), Method("LoRA 4-bit", trained, adapters, "4bit")]
    bits = config.model.quantize if has_quantize else None  # type: ignore[attr-defined]
    activations = None
    for method in rows:
        if method.bits is None or (method.bits == "8bit" and casts):  # otherwise as the method before
            activations = None
            if tries and run is not None:

                def measure(method: Method = method, run: Callable[[Batch], None] = run) -> np.ndarray:
                    with _varied(weights, method):
                        return memory_estimate.activations(model, run, tries, num_positions)

                activations = memory_estimate.largest(by_depth(model, bundle.wrap_layers, measure))
        method.chosen = (method.name != "full") == (weights.lora is not None) and method.bits == bits
        method.estimate = replace(weights.estimate(config, method, world), activations=activations)
    return rows


GROWS = np.array([1.0, 1.0, 0.0])
"""The `moments` that add up over layers; for temporary memory only the largest layer counts."""


def by_depth(model: nn.Module, layers: tuple[str, ...], measure: Callable[[], np.ndarray]) -> np.ndarray:
    """Estimate of `measure` for the whole model, from measurements in which stacks of layers (of these class names) are
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
def _varied(weights: Weights, method: Method) -> Iterator[None]:
    """The model as another method would train it; meant for one whose stacks are cut down."""
    model, root = weights.model, weights.root
    with _restored(model):
        if not (method.adapters and weights.lora is not None):  # it has its own adapters
            for name, module in list(model.named_modules()):
                if "base_layer" in module._modules:
                    model.set_submodule(name, module.get_submodule("base_layer"))
            _dequantize(model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(base_name(name) in weights.trains_fully and parameter.is_floating_point())
            if method.adapters:
                layers = {name for name, _ in root.named_modules()}
                inject(root, weights.section(), [t for t in weights.targets if t in layers])
                del root.peft_config
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_adapter(name) or base_name(name) in method.trained)
        if method.bits is not None:
            quantize(root, "8bit", next(model.parameters()).device)
        else:
            _dequantize(model)
        yield


def _dequantize(model: nn.Module) -> None:
    """Plain layers with the rounded weights, frozen, in place of quantised ones."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantizedLinear):
            with torch.device("meta"):
                linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            linear.weight = nn.Parameter(layer.weight, requires_grad=False)
            linear.bias = layer.bias
            model.set_submodule(name, linear)


def _root(model: nn.Module) -> tuple[nn.Module, str]:
    """The module whose children are the parts that adapters are added to, and the prefix of its names."""
    children = list(model.named_children())
    return (children[0][1], f"{children[0][0]}.") if len(children) == 1 else (model, "")


def _has(family: Any, key: str) -> bool:
    return key in type(family).model_fields
