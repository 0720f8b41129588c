"""Model loss: what a model computes as its loss itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from stentor.losses.base import Loss

if TYPE_CHECKING:
    import torch


class ModelLoss(Loss):
    """The loss that a model of transformers computes itself from its labels, as a sum over what it averages over."""

    type: Literal["model"] = "model"
    per_token: ClassVar[bool] = False

    def sum(self, loss: torch.Tensor) -> torch.Tensor:
        return loss
