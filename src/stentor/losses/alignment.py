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
        `words` bool [B, W] says which are words, `points` [B] how many grid points an item has and `step` the seconds
        between them. `inside` [B, W + 1, T] are the scores of each word and of silence at each point.
        """
        import torch

        size = start.shape[-1]
        grid = torch.arange(size, device=start.device)
        heard = grid < points[:, None]
        last = (points - 1)[:, None, None].to(start.dtype)
        at = (times.to(start.dtype) / step).minimum(last)
        reach = max(self.blur / step, 1.0)
        near = (1 - (grid - at[..., None]).abs() / reach).clamp(min=0) * heard[:, None, None]
        near = near / near.sum(-1, keepdim=True).clamp(min=1e-6)  # [B, W, 2, T]
        real = words.to(start.dtype)
        total = -self.boundaries * ((near[:, :, 0] * start + near[:, :, 1] * end).sum(-1) * real).sum()
        if self.monotonicity:
            centre = ((start.exp() + end.exp()) * grid).sum(-1) / 2
            back = (centre[:, :-1] - centre[:, 1:]).clamp(min=0) * step
            total = total + self.monotonicity * (back * real[:, :-1] * real[:, 1:]).sum()
        if inside is not None and self.attention:
            # The share of each point's surroundings that lies in the word.
            edges = (grid + 0.5).minimum(at[..., 1:]) - (grid - 0.5).maximum(at[..., :1])
            box = edges.clamp(0, 1) * heard[:, None] * real[..., None]
            length = box.sum(-1).clamp(min=1e-6)
            where = -(box * inside[:, :-1].log_softmax(-1)).sum(-1) / length
            who = torch.cat([box, (1 - box.sum(1, keepdim=True)).clamp(min=0) * heard[:, None]], 1)
            which = -(who * inside.log_softmax(1)).sum() * step * WORDS_PER_SECOND
            total = total + self.attention * ((where * (box.sum(-1) > 0)).sum() + which)
        return total.float()
