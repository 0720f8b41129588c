"""Cross entropy of the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropy(Loss):
    """Negative log-probability of the right token, summed over tokens."""

    type: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target's probability that is spread evenly over the vocabulary."""

    def sum(
        self, targets: Tensor, hidden: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> Tensor:
        """`targets` [N] with -100 left out, and either `logits` [N, V] or `hidden` [N, H] with the output layer's
        `weight` [V, H] and `bias` [V]: then the logits are computed in chunks where torch can (2.13 and later)."""
        import torch
        from torch.nn import functional as F

        if logits is None:
            assert hidden is not None and weight is not None
            if torch.is_autocast_enabled(hidden.device.type):
                dtype = torch.get_autocast_dtype(hidden.device.type)
                hidden, weight = hidden.to(dtype), weight.to(dtype)
                bias = None if bias is None else bias.to(dtype)
            logits = F.linear(hidden, weight, bias)
        return F.cross_entropy(
            logits.float(), targets, ignore_index=-100, reduction="sum", label_smoothing=self.label_smoothing
        )
