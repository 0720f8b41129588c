"""Losses of a model's hidden states: embeddings of speakers, and terms without targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class Contrastive(Loss):
    """Supervised contrastive loss of speaker embeddings (Khosla et al. 2020, arXiv 2004.11362, `L_out`).

    Each embedding is contrasted with all others of the batch, so that unlike other losses it depends on what shares a
    batch: several small batches are not one large one.
    """

    type: Literal["contrastive"] = "contrastive"
    temperature: float = Field(0.1, gt=0)
    """Divides the cosines: smaller values look harder at the nearest embeddings."""

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
    """Mean square of a frame's hidden state, summed over frames: keeps activations small."""

    type: Literal["norm_reg"] = "norm_reg"
    scores: ClassVar[str] = "hidden"
    per_frame: ClassVar[bool] = True

    def sum(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """A float32 scalar: `hidden` [B, T, D], of which the first `lengths` int64 [B] frames are no padding."""
        import torch

        padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        return hidden.float().masked_fill(padding[..., None], 0).square().mean(-1).sum()
