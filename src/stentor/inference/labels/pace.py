"""Pace of pseudo-labels: their seconds against those that their texts take, with limits from labelled records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stentor.data.cut import text_of
from stentor.data.speaking_rate import SpeakingRate, fit_speaking_rate

if TYPE_CHECKING:
    from lhotse.cut import Cut

TAIL, MARGIN = 0.005, 1.25
"""Share of the labelled records that may lie beyond each limit, and the factor by which the limits are wider than
that."""


class Pace(NamedTuple):
    """A speaking rate, and the least and most seconds as factors of what it says."""

    rate: SpeakingRate
    low: float
    high: float

    def factor(self, text: str, seconds: float) -> float:
        """How many times as long as its text is expected to take a record is."""
        return seconds / self.rate.seconds(text)


def fit_pace(cuts: Sequence[Cut]) -> Pace | None:
    """The pace of records with text. None where there are too few, or longer texts do not take longer."""
    import numpy as np

    rate = fit_speaking_rate(cuts)
    if rate is None:
        return None
    factors = [cut.duration / rate.seconds(text_of(cut) or "") for cut in cuts]
    low, high = np.quantile(factors, [TAIL, 1 - TAIL])
    return Pace(rate, float(low) / MARGIN, float(high) * MARGIN)
