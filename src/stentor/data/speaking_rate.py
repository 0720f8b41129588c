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
LETTER, DIGIT, PUNCTUATION, SPACE, MARK, HAN = 1.0, 3.5, 0.5, 0.2, 0.0, 3.0
OF_SCRIPT = {"letter": LETTER, "han": HAN, "hangul": 2.5, "kana": 2.2, "indic": 1.8, "abjad": 1.5}
STRETCHES = """
058F letter  08FF abjad  0DFF indic  0EFF abjad  109F indic  10FF letter  11FF hangul  139F han  177F letter
17FF indic  18FF letter  1C7F indic  1CBF letter  1CFF indic  1EFF letter  30FF kana  312F han  318F hangul
A4CF han  A7FF letter  A82F indic  A87F letter  A95F indic  A97F hangul  AAFF indic  AB2F han  ABBF letter
ABFF indic  D7AF hangul  FAFF han  FDFF abjad  FE6F letter  FEFF abjad  FFEF letter
"""
"""Last code point of each stretch of Unicode and the script that its letters weigh as, as OmniVoice has it
(k2-fsa/OmniVoice, omnivoice/utils/duration.py); letters behind the last one count `HAN` in the planes of Chinese
characters, else `LETTER`."""
LASTS = [int(last, 16) for last in STRETCHES.split()[::2]]
WEIGHTS = [OF_SCRIPT[script] for script in STRETCHES.split()[1::2]]
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
    if index < len(WEIGHTS):
        return WEIGHTS[index]
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
