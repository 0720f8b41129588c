"""Losses of a model's hidden states and weights: embeddings of speakers, and terms without targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class Contrastive(Loss):
    """Supervised contrastive loss of speaker embeddings (Khosla et al. 2020, arXiv 2004.11362, `L_out`).

    Each embedding is compared with all others of the batch. Unlike other losses it therefore depends on how items are
    batched: several small batches are not equal to one large one.
    """

    type: Literal["contrastive"] = "contrastive"
    temperature: float = Field(0.1, gt=0)
    """Temperature that the cosines are divided by. Lower values give more weight to the nearest embeddings."""

    scores: ClassVar[str] = "embeddings"

    def sum(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """A float32 scalar, a sum over anchors: `embeddings` [N, E] of length 1, `labels` int64 [N], -100 is left out.
        An anchor is an embedding with another one of its label; there are `anchors(labels)`."""
        import torch

        valid = labels != -100
        embeddings = embeddings.float().masked_fill(~valid[:, None], 0)
        with torch.autocast(embeddings.device.type, enabled=False):  # which would multiply in half precision
            cosine = embeddings @ embeddings.T / self.temperature
        diagonal = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        log_probs = cosine.masked_fill(diagonal | ~valid, -1e4).log_softmax(-1)
        positives = positive_pairs(labels)
        return -((log_probs * positives).sum(-1) / positives.sum(-1).clamp(min=1)).sum()


def positive_pairs(labels: Tensor) -> Tensor:
    """Bool [N, N]: two different embeddings of one label."""
    pairs = (labels[:, None] == labels) & (labels != -100)
    return pairs.fill_diagonal_(False)


def anchors(labels: Tensor) -> int:
    """Targets of `contrastive`: how many of the `labels` int64 [N] occur more than once, -100 left out."""
    return int(positive_pairs(labels).any(-1).sum())


class NormRegularisation(Loss):
    """Mean square of each frame's hidden state, summed over frames. It keeps activations small; `weight_reg` keeps the
    weights small."""

    type: Literal["norm_reg"] = "norm_reg"
    scores: ClassVar[str] = "hidden"
    per_frame: ClassVar[bool] = True

    def sum(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """A float32 scalar: `hidden` [B, T, D], of which the first `lengths` int64 [B] frames are no padding."""
        import torch

        padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        return hidden.float().masked_fill(padding[..., None], 0).square().mean(-1).sum()


class WeightRegularisation(Loss):
    """Mean square of all weights of the model: L2 regularisation as a loss. Unlike `optim.weight_decay` it passes
    through the optimizer's moments."""

    type: Literal["weight_reg"] = "weight_reg"
    scores: ClassVar[str] = "weights"
    per_frame: ClassVar[bool] = True

    def sum(self, weights: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """A float32 scalar: the mean square of all numbers in `weights`, once for each frame of `lengths` int64 [B], so
        that division by the frames of the step gives the mean square."""
        import torch
        from torch.distributed.tensor import DTensor

        if any(isinstance(w, DTensor) for w in weights):
            raise ConfigError(
                "losses: `weight_reg` needs whole weights, and `train.shard` divides them: use `optim.weight_decay`."
            )
        squares = torch.stack([w.float().square().sum() for w in weights]).sum()
        return squares / sum(w.numel() for w in weights) * lengths.sum()
