"""Prompt: the ids that precede the frames to speak."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "FULLWIDTH", "THAI", "LAO", "KHMER", "MYANMAR")
"""Beginnings of the Unicode names of characters between which no space is written."""


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


def joined(before: str, after: str) -> str:
    """Two texts as one, with a space between them where their scripts have spaces."""
    before, after = before.rstrip(), after.lstrip()
    spaced = before and after and not (_unspaced(before[-1]) or _unspaced(after[0]))
    return f"{before} {after}" if spaced else before + after


def _unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(UNSPACED)
