"""Word times: boundaries, attention and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor

WORDS_PER_SECOND = 4.0
"""A second of audio weighs as much as this many words, about as many as are said in it."""


class Alignment(Loss):
    """Cross entropy of each word's start and end over the audio's frames, with supervised attention and order.

    Supervised attention as in VoxLM and CrisperWhisper (arXiv 2408.16589), with a cross entropy in place of their
    cosine. The attention is scored in both directions: where each word lies, and which word (or silence) each frame
    belongs to.
    """

    type: Literal["alignment"] = "alignment"
    boundaries: float = Field(1.0, ge=0)
    """Weight of start and end."""
    attention: float = Field(0.5, ge=0)
    """Weight of the attention to each word's frames, for the head that has one."""
    monotonicity: float = Field(0.1, ge=0)
    """Weight of the order of neighbouring words: seconds by which a word is expected before the one that precedes
    it."""
    blur: float = Field(0.02, ge=0)
    """Seconds to either side of a boundary that its target is spread over, falling linearly."""

    def sum(
        self,
        start: Tensor,
        end: Tensor,
        times: Tensor,
        words: Tensor,
        points: Tensor,
        step: float,
        inside: Tensor | None = None,
    ) -> Tensor:
        """A float32 scalar, a sum over words.

        `start` and `end` [B, W, T] are log-probabilities over the grid, `times` [B, W, 2] start and end in seconds,
        NaN where they are unknown, `words` bool [B, W] says which are words, `points` [B] how many grid points an item
        has and `step` the seconds between them. `inside` [B, W + 1, T] are the scores of each word and, last, of
        silence at each point. Words without times teach nothing but their order.
        """
        import torch

        size = start.shape[-1]
        grid = torch.arange(size, device=start.device)
        heard = grid < points[:, None]
        last = (points - 1)[:, None, None].to(start.dtype)
        known = words & times.isfinite().all(-1)
        at = (times.to(start.dtype) / step).nan_to_num().minimum(last)
        real, taught = words.to(start.dtype), known.to(start.dtype)
        reach = max(self.blur / step, 1.0)
        near = (1 - (grid - at[..., None]).abs() / reach).clamp(min=0) * heard[:, None, None]
        near = near / near.sum(-1, keepdim=True).clamp(min=1e-6)  # [B, W, 2, T]
        total = -self.boundaries * ((near[:, :, 0] * start + near[:, :, 1] * end).sum(-1) * taught).sum()
        if self.monotonicity:
            centre = ((start.exp() + end.exp()) * grid).sum(-1) / 2
            back = (centre[:, :-1] - centre[:, 1:]).clamp(min=0) * step
            total = total + self.monotonicity * (back * real[:, :-1] * real[:, 1:]).sum()
        if inside is not None and self.attention:
            # The share of each point's surroundings that lies in the word.
            edges = (grid + 0.5).minimum(at[..., 1:]) - (grid - 0.5).maximum(at[..., :1])
            box = edges.clamp(0, 1) * heard[:, None] * taught[..., None]
            length = box.sum(-1)
            where = -(box * inside[:, :-1].log_softmax(-1)).sum(-1) / length.clamp(min=1e-6)
            who = torch.cat([box, (1 - box.sum(1, keepdim=True)).clamp(min=0)], 1)
            clear = (heard & ~doubtful(at, words, known, size)).to(start.dtype)
            which = -((who * inside.log_softmax(1)).sum(1) * clear).sum() * step * WORDS_PER_SECOND
            total = total + self.attention * (where.sum() + which)
        return total.float()


def doubtful(at: Tensor, words: Tensor, known: Tensor, size: int) -> Tensor:
    """True where a word without times may lie, bool [B, size]: between the neighbours whose times are known.

    `at` [B, W, 2] are boundaries in grid points, true where `known` [B, W] says so.
    """
    import torch

    before = at[..., 1].masked_fill(~known, -1.0).cummax(1).values
    after = at[..., 0].masked_fill(~known, float(size)).flip(1).cummin(1).values.flip(1)
    grid = torch.arange(size, device=at.device)
    lost = (words & ~known)[..., None]
    return (lost & (grid > before[..., None]) & (grid < after[..., None])).any(1)
