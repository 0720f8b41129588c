"""Speaking rate: seconds that a text takes, from weights of characters by script and a line fitted to records."""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stentor.data.cut import text_of

if TYPE_CHECKING:
    from lhotse.cut import Cut

MOST, LEAST = 5000, 20
"""Records that a speaking rate is fitted to at most, and at least."""
LETTER, DIGIT, PUNCTUATION, SPACE, MARK = 1.0, 3.5, 0.5, 0.2, 0.0
HAN, HANGUL, KANA, INDIC, ABJAD = 3.0, 2.5, 2.2, 1.8, 1.5
SCRIPTS: tuple[tuple[int, int, float], ...] = (
    (0x0590, 0x08FF, ABJAD),  # Hebrew, Arabic, Syriac, Thaana, N'Ko
    (0x0900, 0x0DFF, INDIC),  # Devanagari to Sinhala
    (0x0E00, 0x0EFF, ABJAD),  # Thai and Lao
    (0x0F00, 0x109F, INDIC),  # Tibetan, Myanmar
    (0x1100, 0x11FF, HANGUL),
    (0x1200, 0x139F, HAN),  # Ethiopic: a syllable each
    (0x1780, 0x17FF, INDIC),  # Khmer
    (0x3040, 0x30FF, KANA),
    (0x3100, 0x312F, HAN),  # Bopomofo
    (0x3130, 0x318F, HANGUL),
    (0x31F0, 0x31FF, KANA),
    (0x3400, 0x4DBF, HAN),
    (0x4E00, 0x9FFF, HAN),
    (0xA000, 0xA4CF, HAN),  # Yi: a syllable each
    (0xA8E0, 0xA8FF, INDIC),
    (0xA960, 0xA97F, HANGUL),
    (0xAC00, 0xD7FF, HANGUL),
    (0xF900, 0xFAFF, HAN),
    (0xFB1D, 0xFDFF, ABJAD),
    (0xFE70, 0xFEFC, ABJAD),
    (0xFF66, 0xFF9F, KANA),
    (0x1B000, 0x1B16F, KANA),
    (0x20000, 0x323AF, HAN),
)
"""First and last code point, and the weight of a letter between them; any other letter counts `LETTER`."""
FIRSTS = [first for first, _, _ in SCRIPTS]


def weight(text: str) -> float:
    """Length of a text in units of one Latin letter."""
    return sum(map(_weight, text))


def _weight(character: str) -> float:
    kind = unicodedata.category(character)
    if kind[0] == "M" or kind in ("Cf", "Cc", "Cs"):
        return SPACE if character.isspace() else MARK
    if kind[0] == "Z":
        return SPACE
    if kind[0] == "N":
        # 三 is a letter to Unicode, ½ and ２ are numbers.
        return DIGIT
    if kind[0] in "PS":
        return PUNCTUATION
    index = bisect_right(FIRSTS, ord(character)) - 1
    if index >= 0 and ord(character) <= SCRIPTS[index][1]:
        return SCRIPTS[index][2]
    return LETTER


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
