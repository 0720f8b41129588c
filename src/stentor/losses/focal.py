"""Focal loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss
from stentor.losses.classes import flatten_frames
from stentor.losses.elementwise import masked_pair

if TYPE_CHECKING:
    from torch import Tensor


class Focal(Loss):
    """Cross entropy in which what the model is sure of weighs less (Lin et al. 2017, arXiv 1708.02002).

    Binary for labels with one number per output, over classes for labels with one class per frame.
    """

    type: Literal["focal"] = "focal"
    gamma: float = Field(2.0, ge=0)
    """Focusing exponent: the loss of an output of probability p is multiplied by (1 - p)^gamma."""
    alpha: float | None = Field(None, gt=0, lt=1)
    """Weight of the targets that are 1, the others have 1 - alpha; over classes, class 0 has 1 - alpha and the others
    alpha. null weighs all alike, with 1."""

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, C] against `targets` float [B, T, C] of 0 to 1 or classes int64 [B, T];
        -100 is left out. Targets between 0 and 1 share the loss of both answers."""
        if targets.dim() == logits.dim() - 1:
            return self._of_classes(*flatten_frames(self, logits, targets))
        from torch.nn import functional as F

        logits, targets, valid = masked_pair(self, logits, targets)
        on_weight, off_weight = (1.0, 1.0) if self.alpha is None else (self.alpha, 1 - self.alpha)
        # Of logarithms: (1 - p)^gamma has no finite gradient at p = 1.
        on = on_weight * (self.gamma * F.logsigmoid(-logits)).exp() * F.softplus(-logits)
        off = off_weight * (self.gamma * F.logsigmoid(logits)).exp() * F.softplus(logits)
        return (targets * on + (1 - targets) * off).masked_fill(~valid, 0).sum()

    def _of_classes(self, logits: Tensor, targets: Tensor) -> Tensor:
        import torch

        valid = targets != -100
        classes = targets.clamp(min=0)[:, None]
        normalizer = logits.logsumexp(-1)
        other_logits = logits.masked_fill(torch.zeros_like(logits, dtype=torch.bool).scatter(1, classes, True), -1e4)
        log_complement = other_logits.logsumexp(-1) - normalizer  # log (1 - p), exact when p is near 1
        loss = (self.gamma * log_complement).exp() * (normalizer - logits.gather(1, classes)[:, 0])
        if self.alpha is not None:
            loss = loss * torch.where(classes[:, 0] == 0, 1 - self.alpha, self.alpha)
        return loss.masked_fill(~valid, 0).sum()
