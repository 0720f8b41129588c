"""Example of a custom loss in one file, for ordered classes: predicting three speakers instead of two is a smaller
error than predicting none."""

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
        """Return the sum over frames, never a mean: `logits` [B, T, C], `targets` int64 [B, T], -100: not scored."""
        valid = targets != -100
        logits, targets = logits[valid].float(), targets[valid]
        right = functional.one_hot(targets, logits.shape[-1])
        return (logits.softmax(-1).cumsum(-1) - right.cumsum(-1)).square().sum()
