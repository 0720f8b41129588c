"""Selection of pseudo-labels: a threshold of the expected error, and limits of the speaking rate.

The threshold keeps as many seconds as possible under a target error rate. The speaking rate compares the seconds of a
record with those that its text takes; its limits come from labelled records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stentor.data.cut import Cut, text_of
from stentor.data.speaking_rate import SpeakingRate, fit_speaking_rate

STEPS = 20
"""Points of the curve."""


@dataclass(frozen=True)
class Choice:
    """The records that are kept, and what is expected of them."""

    kept: frozenset[int]
    seconds: float
    summary: dict[str, Any] = field(default_factory=dict)
    """`min_confidence`, `kept_share` (of seconds), `hours`, `expected_error` and its `upper` bound, and the `curve`:
    the same figures for twenty shares. Where nothing is kept, no hours and errors."""


def choose(
    errors: np.ndarray,
    words: Sequence[int],
    seconds: Sequence[float],
    max_error: float,
    assurance: float,
    hours: float | None = None,
) -> Choice:
    """The records with the least expected errors, as many as together stay under `max_error`.

    Args:
        errors: [resamples + 1, records], the expected share of errors of each, the first row the estimate and the
            others by resamples of the labelled records.
        words: of each label, the weight of its errors.
        seconds: of each record.
        max_error: errors over words of all that is kept.
        assurance: share of the resamples for which this must hold, in addition to the estimate.
        hours: most hours that are kept.

    Records of one expected error are kept together or not at all.
    """
    if not len(words):
        return Choice(frozenset(), 0.0, {"min_confidence": None, "kept_share": 0.0, "curve": []})
    order = np.argsort(errors[0], kind="stable")
    weights = np.maximum(np.asarray(words, np.float64), 1)[order]
    time = np.cumsum(np.asarray(seconds, np.float64)[order])
    totals = np.cumsum(errors[:, order] * weights, 1) / np.cumsum(weights)
    upper = np.maximum(np.quantile(totals, assurance, axis=0), totals[0])
    ranked = errors[0][order]
    ends = np.flatnonzero(np.append(ranked[1:] > ranked[:-1], True))  # after a record with the next one's error: none
    allowed = [i for i in ends if upper[i] <= max_error and (hours is None or time[i] <= 3600 * hours)]

    def figures(last: int) -> dict[str, Any]:
        return {
            "min_confidence": round(1 - float(ranked[last]), 4),
            "kept_share": round(float(time[last] / time[-1]), 4),
            "hours": round(float(time[last] / 3600), 6),
            "expected_error": round(float(totals[0][last]), 4),
            "upper": round(float(upper[last]), 4),
        }

    shares = np.linspace(1 / STEPS, 1, STEPS) * time[-1]
    curve = [figures(ends[min(np.searchsorted(time[ends], share - 1e-9), len(ends) - 1)]) for share in shares]
    curve = [point for i, point in enumerate(curve) if not i or point != curve[i - 1]]
    if not allowed:
        return Choice(frozenset(), 0.0, {"min_confidence": None, "kept_share": 0.0, "curve": curve})
    last = int(max(allowed))
    return Choice(frozenset(order[: last + 1].tolist()), float(time[last]), {**figures(last), "curve": curve})


def drawn(seconds: Sequence[float], total: float, seed: int) -> frozenset[int]:
    """Draw records at random, each that still fits into `total` seconds."""
    kept, left = [], total + 1e-6  # the same seconds in another order may add up to a little more
    for i in np.random.default_rng(seed).permutation(len(seconds)).tolist():
        if seconds[i] <= left:
            kept.append(i)
            left -= seconds[i]
    return frozenset(kept)


TAIL, MARGIN = 0.005, 1.25
"""Share of the labelled records that may lie beyond each limit, and the factor by which the limits are wider than
that."""


class Pace(NamedTuple):
    """A speaking rate, and the least and most seconds as factors of what it says."""

    rate: SpeakingRate
    low: float
    high: float

    def factor(self, text: str, seconds: float) -> float:
        """Return the duration of a record divided by the expected duration of its text."""
        return seconds / self.rate.seconds(text)


def fit_pace(cuts: Sequence[Cut]) -> Pace | None:
    """The pace of records with text. None where there are too few, or longer texts do not take longer."""
    rate = fit_speaking_rate(cuts)
    if rate is None:
        return None
    factors = [cut.duration / rate.seconds(text_of(cut) or "") for cut in cuts]
    low, high = np.quantile(factors, [TAIL, 1 - TAIL])
    return Pace(rate, float(low) / MARGIN, float(high) * MARGIN)
