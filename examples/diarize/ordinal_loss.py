"""A custom loss in one file, for ordered classes: calling two people three is less wrong than none."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from stentor.extend import Loss


class Ordinal(Loss):
    """Squared earth mover's distance between the predicted classes and the right one (Hou et al. 2016)."""

    type: Literal["ordinal"] = "ordinal"

    per_frame: ClassVar[bool] = True

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A scalar, a sum over frames and never a mean: `logits` [B, T, C], `targets` int64 [B, T], -100 left out."""
        valid = targets != -100
        logits, targets = logits[valid].float(), targets[valid]
        right = functional.one_hot(targets, logits.shape[-1])
        return (logits.softmax(-1).cumsum(-1) - right.cumsum(-1)).square().sum()
