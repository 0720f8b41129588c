"""Regularisation: terms over hidden states, without targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class NormRegularisation(Loss):
    """Mean square of a frame's hidden state, summed over frames: keeps activations small."""

    type: Literal["norm_reg"] = "norm_reg"
    scores: ClassVar[str] = "hidden"
    per_frame: ClassVar[bool] = True

    def sum(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """A float32 scalar: `hidden` [B, T, D], of which the first `lengths` int64 [B] frames are no padding."""
        import torch

        padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        return hidden.float().masked_fill(padding[..., None], 0).square().mean(-1).sum()
