"""Parameter counts of a model: by part, of what is trained, of adapters, on one process or divided over several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.models.pretrained.lora import is_adapter
from stentor.models.pretrained.quantize import sizes

if TYPE_CHECKING:
    from torch import nn


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights are divided over processes (FSDP2). Then all processes must run the
    same layers in each forward, whatever is in their batches: each layer is fetched by all of them together."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def parameter_table(model: nn.Module, parts: dict[str, nn.Module] | None = None) -> list[tuple[str, int, int]]:
    """(part, parameters, trainable parameters) for each part; tied parameters count once, where they come first, and
    weights kept in 4 bits as what they stand for."""
    quantized_sizes = sizes(model)
    parts = parts or dict(model.named_children())
    seen: set[int] = set()
    rows = []
    for name, part in parts.items():
        unseen = [p for p in part.parameters() if id(p) not in seen]
        seen |= {id(p) for p in unseen}
        total = sum(quantized_sizes.get(id(p)) or p.numel() for p in unseen)
        rows.append((name, total, sum(p.numel() for p in unseen if p.requires_grad)))
    return rows


def adapters_in(model: nn.Module, parts: dict[str, nn.Module] | None = None) -> dict[str, int]:
    """Trainable parameters of adapters, for each part."""
    parts = parts or dict(model.named_children())
    return {
        name: sum(p.numel() for n, p in part.named_parameters() if is_adapter(f".{n}") and p.requires_grad)
        for name, part in parts.items()
    }
