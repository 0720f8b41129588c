"""Alignment loss: boundaries of words, supervised attention and order."""

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

    Supervised attention as in VoxLM and CrisperWhisper (arXiv 2408.16589), with a cross entropy instead of their
    cosine. The attention is scored in both directions: where each word lies, and which word (or silence) each frame
    belongs to.
    """

    type: Literal["alignment"] = "alignment"
    boundaries: float = Field(1.0, ge=0)
    """Weight of start and end."""
    attention: float = Field(0.5, ge=0)
    """Weight of the attention to each word's frames, for the head that has one."""
    monotonicity: float = Field(0.1, ge=0)
    """Weight of the penalty for words out of order: the seconds by which a word is expected before its predecessor."""
    blur: float = Field(0.02, ge=0)
    """Seconds on each side of a boundary over which its target is spread, falling linearly."""

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
        NaN where they are unknown, `words` bool [B, W] is true for words and false for padding, `points` [B] are the
        grid points of each item and `step` the seconds between them. `inside` [B, W + 1, T] are the scores of each word
        and, last, of silence at each point. Of words without times only the order counts.
        """
        import torch

        size = start.shape[-1]
        grid = torch.arange(size, device=start.device)
        valid = grid < points[:, None]
        last = (points - 1)[:, None, None].to(start.dtype)
        timed = words & times.isfinite().all(-1)
        boundaries = (times.to(start.dtype) / step).nan_to_num().minimum(last)
        is_word, is_timed = words.to(start.dtype), timed.to(start.dtype)
        width = max(self.blur / step, 1.0)
        targets = (1 - (grid - boundaries[..., None]).abs() / width).clamp(min=0) * valid[:, None, None]
        targets = targets / targets.sum(-1, keepdim=True).clamp(min=1e-6)  # [B, W, 2, T]
        total = -self.boundaries * ((targets[:, :, 0] * start + targets[:, :, 1] * end).sum(-1) * is_timed).sum()
        if self.monotonicity:
            centre = ((start.exp() + end.exp()) * grid).sum(-1) / 2
            reversal = (centre[:, :-1] - centre[:, 1:]).clamp(min=0) * step
            total = total + self.monotonicity * (reversal * is_word[:, :-1] * is_word[:, 1:]).sum()
        if inside is not None and self.attention:
            # The share of each point's surroundings that lies in the word.
            overlap = (grid + 0.5).minimum(boundaries[..., 1:]) - (grid - 0.5).maximum(boundaries[..., :1])
            coverage = overlap.clamp(0, 1) * valid[:, None] * is_timed[..., None]  # [B, W, T]
            over_time = -(coverage * inside[:, :-1].log_softmax(-1)).sum(-1) / coverage.sum(-1).clamp(min=1e-6)
            with_silence = torch.cat([coverage, (1 - coverage.sum(1, keepdim=True)).clamp(min=0)], 1)
            certain = (valid & ~doubtful(boundaries, words, timed, size)).to(start.dtype)
            over_words = -((with_silence * inside.log_softmax(1)).sum(1) * certain).sum() * step * WORDS_PER_SECOND
            total = total + self.attention * (over_time.sum() + over_words)
        return total.float()


def doubtful(boundaries: Tensor, words: Tensor, timed: Tensor, size: int) -> Tensor:
    """True where a word without times may lie, bool [B, size]: between the neighbours whose times are known.
    `boundaries` [B, W, 2] are start and end in grid points, valid where `timed` bool [B, W]."""
    import torch

    before = boundaries[..., 1].masked_fill(~timed, -1.0).cummax(1).values
    after = boundaries[..., 0].masked_fill(~timed, float(size)).flip(1).cummin(1).values.flip(1)
    grid = torch.arange(size, device=boundaries.device)
    untimed = (words & ~timed)[..., None]
    return (untimed & (grid > before[..., None]) & (grid < after[..., None])).any(1)
