"""Speaking rate: seconds that a text takes, from weights of characters by script and a line fitted to records."""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stentor.data.cut import text_of

if TYPE_CHECKING:
    from lhotse.cut import Cut

MOST, LEAST = 5000, 20
"""Records that a speaking rate is fitted to at most, and at least."""
LETTER, DIGIT, PUNCTUATION, SPACE, MARK = 1.0, 3.5, 0.5, 0.2, 0.0
HAN, HANGUL, KANA, INDIC, ABJAD = 3.0, 2.5, 2.2, 1.8, 1.5
SCRIPTS: tuple[tuple[int, float], ...] = (
    (0x058F, LETTER),
    (0x08FF, ABJAD),
    (0x0DFF, INDIC),
    (0x0EFF, ABJAD),
    (0x109F, INDIC),
    (0x10FF, LETTER),
    (0x11FF, HANGUL),
    (0x139F, HAN),
    (0x177F, LETTER),
    (0x17FF, INDIC),
    (0x18FF, LETTER),
    (0x1C7F, INDIC),
    (0x1CBF, LETTER),
    (0x1CFF, INDIC),
    (0x1EFF, LETTER),
    (0x30FF, KANA),
    (0x312F, HAN),
    (0x318F, HANGUL),
    (0xA4CF, HAN),
    (0xA7FF, LETTER),
    (0xA82F, INDIC),
    (0xA87F, LETTER),
    (0xA95F, INDIC),
    (0xA97F, HANGUL),
    (0xAAFF, INDIC),
    (0xAB2F, HAN),
    (0xABBF, LETTER),
    (0xABFF, INDIC),
    (0xD7AF, HANGUL),
    (0xFAFF, HAN),
    (0xFDFF, ABJAD),
    (0xFE6F, LETTER),
    (0xFEFF, ABJAD),
    (0xFFEF, LETTER),
)
"""Last code point of each stretch of Unicode and the weight of a letter in it, as OmniVoice has it
(k2-fsa/OmniVoice, omnivoice/utils/duration.py); letters behind the last one count `HAN` in the planes of Chinese
characters, else `LETTER`."""
LASTS = [last for last, _ in SCRIPTS]
TATWEEL = "\u0640"
"""Lengthens an Arabic word in writing alone."""


def weight(text: str) -> float:
    """Length of a text in units of one Latin letter."""
    return sum(map(_weight, text))


def _weight(character: str) -> float:
    kind = unicodedata.category(character)
    if kind[0] == "Z" or character.isspace():
        return SPACE
    if kind[0] == "M" or kind in ("Cf", "Cc", "Cs") or character == TATWEEL:
        return MARK
    if kind[0] == "N":
        # 三 is a letter to Unicode, ½ and ２ are numbers.
        return DIGIT
    if kind[0] in "PS":
        return PUNCTUATION
    index = bisect_left(LASTS, ord(character))
    if index < len(SCRIPTS):
        return SCRIPTS[index][1]
    return HAN if ord(character) >= 0x20000 else LETTER


class SpeakingRate(NamedTuple):
    """Duration of a text: `start + unit * weight` seconds."""

    start: float
    unit: float

    def seconds(self, text: str) -> float:
        return self.start + self.unit * weight(text)


def fit_speaking_rate(cuts: Iterable[Cut]) -> SpeakingRate | None:
    """The speaking rate of records with text, from their metadata alone: least squares over the first `MOST`, without
    outliers. None where there are too few, or longer texts do not take longer."""
    import numpy as np

    pairs = ((weight(text_of(cut) or ""), cut.duration) for cut in itertools.islice(cuts, MOST))
    points = np.array([pair for pair in pairs if min(pair) > 0], np.float64).reshape(-1, 2)
    for _ in range(3):
        length, seconds = points.T
        if len(points) < LEAST or length.max() == length.min():
            return None
        unit, start = np.polyfit(length, seconds, 1)
        residual = np.abs(start + unit * length - seconds)
        near = residual <= 4 * max(float(np.median(residual)), 1e-6)
        if near.all():
            break
        points = points[near]
    if start < 0:  # through the origin
        start, unit = 0.0, float(seconds.sum() / length.sum())
    return SpeakingRate(round(float(start), 5), round(float(unit), 6)) if unit > 0 else None
