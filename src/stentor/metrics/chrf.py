"""chrF, the character n-gram F-score of translations.

Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", with the settings that sacreBLEU prints as
`nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no`: n-grams of 1 to 6 characters, without white space, recall twice as
important as precision, counts of the whole set.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from stentor.metrics.score import Score

ORDER = 6
BETA = 2


def chrf(references: Sequence[str], hypotheses: Sequence[str], resamples: int = 1000, seed: int = 0) -> Score:
    """The score over a set, from 0 to 1 (sacreBLEU prints it times 100), with a bootstrap interval over its items. The
    texts count as they are, with case and punctuation. NaN for no items."""
    counts = np.array([_counts(r, h) for r, h in zip(references, hypotheses, strict=True)], dtype=np.float64)
    n = len(counts)
    if n == 0:
        return Score(float("nan"))
    counts = counts.reshape(n, 3 * ORDER)
    draws = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=resamples)  # how often each item is drawn
    low, high = np.quantile(_f_score(draws @ counts), [0.025, 0.975])
    return Score(float(_f_score(counts.sum(0))), low=float(low), high=float(high), details={"items": n})


def _counts(reference: str, hypothesis: str) -> list[tuple[int, int, int]]:
    """(n-grams of the hypothesis, of the reference, in both) for n from 1 to `ORDER`."""
    texts = ["".join(text.split()) for text in (hypothesis, reference)]
    rows = []
    for n in range(1, ORDER + 1):
        first, second = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        rows.append((first.total(), second.total(), (first & second).total()))
    return rows


def _f_score(sums: np.ndarray) -> np.ndarray:
    """F-score [...] of summed counts [..., 3 * ORDER]: precision and recall are means over the n-gram lengths that
    both sides have."""
    hypothesis, reference, both = (sums[..., i::3] for i in range(3))
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(-1), 1)
    precision = (both / np.maximum(hypothesis, 1) * counted).sum(-1) / orders
    recall = (both / np.maximum(reference, 1) * counted).sum(-1) / orders
    denominator = BETA**2 * precision + recall
    return np.divide((1 + BETA**2) * precision * recall, denominator, out=np.zeros_like(recall), where=denominator > 0)
