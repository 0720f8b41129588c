"""Prompt: the ids that precede the frames to speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Prompt:
    """One utterance to speak: style and text, the reference's codes where there is one, and how long it shall be.

    The frames to speak follow it, at first all MASK; they are not among `ids`.
    """

    ids: Tensor
    """int64 [C, S]: a text token is repeated in every row, a reference frame has its codes. S may be 0."""
    audio_mask: Tensor
    """bool [S]: which positions are frames of the reference."""
    frames: int
    """Frames to speak, at least 1."""
