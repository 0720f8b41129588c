"""Relative change of an error rate between two systems on the same items."""

from collections.abc import Sequence

import numpy as np

from stentor.metrics.resampling import by_unit
from stentor.metrics.score import Score
from stentor.metrics.wer import REFERENCE, Unit, count_errors, normalized_pairs, resampled


def relative_change(
    references: Sequence[str],
    before: Sequence[str],
    after: Sequence[str],
    normalizer: str = "whisper_basic",
    languages: Sequence[str | None] | None = None,
    unit: Unit = "word",
    spelling: str | None = None,
    speakers: Sequence[str | None] | None = None,
) -> Score | None:
    """Relative change of the corpus-level error rate from `before` to `after`: -0.25 is a quarter fewer errors. The
    interval resamples items with both systems' errors on them together (paired bootstrap, Bisani and Ney 2004), so it
    is much narrower than the two rates' own intervals suggest. Enough `speakers` (one label an item) are drawn whole,
    see `stentor.metrics.resampling`. `details` has the share of the resamples with fewer errors, `better`. None when
    `before` makes no error."""

    def errors(hypotheses: Sequence[str]) -> np.ndarray:
        pairs = normalized_pairs(references, hypotheses, normalizer, languages, unit, spelling)
        return count_errors(pairs, unit)[:, :REFERENCE].sum(1)

    first, second = errors(before), errors(after)
    if not first.sum():
        return None
    drawn, (change, before_sums) = by_unit(speakers, second - first, first)
    changes = resampled(change, before_sums)
    low, high = map(float, np.quantile(changes, [0.025, 0.975]))
    value = float((second.sum() - first.sum()) / first.sum())
    details = {"items": len(first), "better": float((changes < 0).mean())}
    return Score(value, low=low, high=high, details=details, **drawn)
