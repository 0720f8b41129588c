"""Base weights in 8 or 4 bits under low-rank adapters (QLoRA, Dettmers et al. 2023), for any family.

`8bit`: int8 codes with one scale for each output (row-wise absolute maximum, as the weights of LLM.int8, Dettmers et
al. 2022). `4bit`: NormalFloat codes in blocks of 64 with quantised scales, by the kernels of bitsandbytes. Weights are
expanded layer by layer to the type that the layer computes in, forward and again backward; activations are never
quantised.

A family has the key `quantize: Bits | None`, calls `check` in a validator, and `quantize(model, family.quantize)` once
adapters are in and the rest is frozen. Names in state dicts stay as they were, with codes as the quantised weights:
`dequantized` puts plain weights in their place before an export writes or folds them (`models.weights_io` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stentor.models.pretrained.lora import base_name, is_adapter
from stentor.section import ConfigConflict

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Bits = Literal["8bit", "4bit"]

HEADS = ("lm_head", "ctc_head", "proj_out")
BYTES = {"8bit": 1.0, "4bit": 0.5 + (1 + 4 / 256) / 64}
"""Bytes for each weight: of 4 bits with a byte for each block of 64 and a float for each 256 of those."""


def check(quantize: Bits | None, lora: Any | None) -> None:
    """Raise ConfigConflict, for the validator of a family, where `quantize` stands without `lora`."""
    if quantize is not None and lora is None:
        raise ConfigConflict(
            "quantize",
            "weights in 8 or 4 bits cannot be trained themselves: add adapters (`lora: {}`), or leave `quantize` out",
        )


def quantize(model: nn.Module, bits: Bits | None, device: torch.device | None = None) -> None:
    """Put quantised layers in the place of those that `quantisable` names; nothing without `bits`.

    Layers are quantised one after the other and put where training will be: on `device`, or the current GPU, or else
    the CPU. Raises ConfigError when bitsandbytes is needed and missing.
    """
    if bits is None:
        return
    import torch

    from stentor.models.pretrained.quantized_layers import QuantizedLinear

    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in quantisable(model):
        linear: Any = model.get_submodule(name)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, QuantizedLinear(linear, bits, device))


def quantisable(model: nn.Module) -> list[str]:
    """Paths of the linear layers that `quantize` replaces: all frozen ones in the parts (direct children of the model)
    that have adapters, but weights that two modules share and the output head, which is small beside the rest and
    where rounding harms most."""
    from collections import Counter

    from torch import nn

    adapted = {name.partition(".")[0] for name, _ in model.named_parameters() if is_adapter(name)}
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and name.partition(".")[0] in adapted
        and not module.weight.requires_grad
        and uses[id(module.weight)] == 1
        and base_name(f"{name}.weight").split(".")[-2] not in HEADS
    ]


def sizes(model: nn.Module) -> dict[int, int]:
    """Number of weights that the codes of each quantised layer stand for, by the `id` of the codes."""
    from stentor.models.pretrained.quantized_layers import QuantizedLinear

    return {id(m.codes): m.in_features * m.out_features for m in model.modules() if isinstance(m, QuantizedLinear)}


def dequantized(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`state` (names of the model, tensors on the CPU) with plain float32 weights in the place of codes."""
    from stentor.models.pretrained.quantized_layers import QuantizedLinear

    layers = {f"{n}.weight": m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    return {n: layers[n].weight.float().cpu() if n in layers else t for n, t in state.items()}
