"""Relative change of an error rate between two systems on the same items."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from stentor.metrics.score import Score
from stentor.metrics.wer import REFERENCE, bootstrap, count_errors, normalized_pairs


def relative_change(
    references: Sequence[str],
    before: Sequence[str],
    after: Sequence[str],
    normalizer: str = "whisper_basic",
    languages: Sequence[str | None] | None = None,
    unit: Literal["word", "character"] = "word",
    spelling: str | None = None,
) -> Score | None:
    """Relative change of the corpus-level error rate from `before` to `after`: -0.25 is a quarter fewer errors. The
    interval resamples items with both systems' errors on them together (paired bootstrap, Bisani and Ney 2004), so it
    is much narrower than the two rates' own intervals suggest. None when `before` makes no error."""

    def errors(hypotheses: Sequence[str]) -> np.ndarray:
        pairs = normalized_pairs(references, hypotheses, normalizer, languages, unit, spelling)
        return count_errors(pairs)[:, :REFERENCE].sum(1)

    first, second = errors(before), errors(after)
    if not first.sum():
        return None
    low, high = bootstrap(second - first, first)
    return Score(float((second.sum() - first.sum()) / first.sum()), low=low, high=high, details={"items": len(first)})
