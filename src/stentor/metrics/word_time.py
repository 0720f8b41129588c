"""Word time metrics against a reference: shifts, shares within a tolerance, F1 with collars, calibration.

Words are matched by the Levenshtein alignment of the word error rate, after the same normalisers; only words that are
equal there have time errors. All errors are hypothesis minus reference, in milliseconds: positive is late.

Shifts follow Shi et al. 2023 (arXiv:2301.12343, accumulated average shift); the expected calibration error is that of
Guo et al. 2017 (arXiv:1706.04599) with equal-width bins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stentor.metrics.score import Direction, Score, bootstrap, rate_interval
from stentor.metrics.word_match import Matches, Word, has_times, match, time_of
from stentor.text.normalize import DEFAULT

TOLERANCES = (20, 50, 100, 200)
"""Milliseconds of the shares within and of the collars of F1."""
DIRECTIONS: dict[str, Direction] = {
    **{f"word_{slot}_{kind}_ms": "min" for slot in ("time", "start", "end") for kind in ("mean", "median")},
    "aas_ms": "min",
    **{f"{name}_{t}ms": "max" for name in ("within", "word_f1") for t in TOLERANCES},
    "words_matched": "max",
    "ece": "min",
}
"""Metrics of `score`, the main one first."""
BINS = 10
"""Equal-width bins of confidence."""
HISTOGRAM = range(-200, 201, 5)
"""Edges of the histogram of signed errors, ms; a bin holds its left edge, not its right one."""
WORST = 20
"""Words, and half as many items, that are listed as the worst."""
RESAMPLES = 1000


def score(
    references: Sequence[Sequence[Word]],
    hypotheses: Sequence[Sequence[Word]],
    normalizer: str = DEFAULT,
    languages: Sequence[str | None] | None = None,
    ids: Sequence[str] | None = None,
) -> dict[str, Score]:
    """All word time metrics of a set, one list of words per item on either side. The first is the main one.

    * `word_time_mean_ms`, `word_time_median_ms`, `word_start_...`, `word_end_...`: absolute errors of boundaries of
      matched words. `aas_ms`, the accumulated average shift over all slots, is the mean by its usual name.
    * `within_{20,50,100,200}ms`: share of those boundaries with at most this error.
    * `word_f1_{20,50,100,200}ms`: a hypothesis word is right when it is matched and both its boundaries lie within the
      collar. Right words of both sides over all words of both sides, which is 2PR/(P+R). A hypothesis word without
      times is wrong; reference words without times cannot be judged and are left out, with what they are matched to.
    * `words_matched`: share of reference words that the hypothesis has.
    * `ece`: expected calibration error of `confidence`, where a word is right when it is matched, at any time.

    `low` and `high` are percentiles of a bootstrap over items with a fixed seed. Where nothing can be measured (no
    match, no confidence) `value` is NaN, which `Score.as_dict` gives as None, without an interval.
    `ids` name items in the lists of the worst; default their positions. Details of the first metric are plain data:
    counts, histogram, worst words and items.
    """
    if not len(references) == len(hypotheses) == len(languages or references) == len(ids or references):
        raise ValueError(
            f"{len(references)} references, {len(hypotheses)} hypotheses, languages {languages and len(languages)}, "
            f"ids {ids and len(ids)}: there must be one of each per item."
        )
    items = [
        match(r, h, normalizer, lang)
        for r, h, lang in zip(references, hypotheses, languages or [None] * len(references), strict=True)
    ]
    names = list(ids) if ids is not None else [str(i) for i in range(len(items))]
    scores: dict[str, Score] = {}
    for slot, name in (("both", "word_time"), ("start", "word_start"), ("end", "word_end")):
        scores[f"{name}_mean_ms"] = _mean(items, slot)
        scores[f"{name}_median_ms"] = _median(items, slot)
    mean = scores["word_time_mean_ms"]
    scores["aas_ms"] = Score(mean.value, low=mean.low, high=mean.high, details=dict(mean.details))
    scores |= {f"within_{t}ms": _within(items, t) for t in TOLERANCES}
    scores |= {f"word_f1_{t}ms": _f1(items, t) for t in TOLERANCES}
    scores["words_matched"] = _matched(items)
    scores["ece"] = _calibration(items)
    scores["word_time_mean_ms"].details |= _details(items, names, normalizer, references, hypotheses)
    return scores


# Metrics ------------------------------------------------------------------------------------------------------------


def _ratio(sums: Sequence[float], totals: Sequence[int], interval: Callable[..., Any] = bootstrap) -> Score:
    """`sum(sums) / sum(totals)` with its interval; [items] each."""
    above, below = np.asarray(sums, np.float64), np.asarray(totals, np.int64)
    total = int(below.sum())
    if total == 0:
        return Score(math.nan)
    # An item with nothing to measure changes no ratio, but a resample of such items alone would have none.
    measured = below > 0
    low, high = interval(above[measured], below[measured])
    return Score(float(above.sum() / total), low=low, high=high)


def _share(right: Sequence[int], totals: Sequence[int]) -> Score:
    """Right ones over all, [items] each; what is not right are its errors."""
    score = _ratio(right, totals, rate_interval)
    score.errors, score.total = sum(totals) - sum(right), sum(totals)
    return score


def _mean(items: Sequence[Matches], slot: str) -> Score:
    errors = [[abs(e) for e in item.errors(slot)] for item in items]
    score = _ratio([sum(e) for e in errors], [len(e) for e in errors])
    score.details = {"boundaries": sum(map(len, errors))}
    return score


def _median(items: Sequence[Matches], slot: str) -> Score:
    errors = [np.abs(item.errors(slot)) for item in items if item.errors(slot)]
    if not errors:
        return Score(math.nan, details={"boundaries": 0})
    values = np.concatenate(errors)
    owner = np.repeat(np.arange(len(errors)), [len(e) for e in errors])
    order = np.argsort(values, kind="stable")
    ranked, owner = values[order], owner[order]
    medians = []
    for times in _resamples(len(errors)):
        # The resample in order, without writing it out: error k stands there as often as its item was drawn.
        reached = np.cumsum(times[owner])
        middle = np.searchsorted(reached, [(reached[-1] - 1) // 2, reached[-1] // 2], side="right")
        medians.append(ranked[middle].mean())
    low, high = np.quantile(medians, [0.025, 0.975])
    details = {"boundaries": len(values)}
    return Score(float(np.median(values)), low=float(low), high=float(high), details=details)


def _within(items: Sequence[Matches], tolerance: float) -> Score:
    errors = [item.errors() for item in items]
    inside = [sum(abs(e) <= tolerance for e in row) for row in errors]
    totals = [len(row) for row in errors]
    return _share(inside, totals)


def _f1(items: Sequence[Matches], collar: float) -> Score:
    right_reference, right_hypothesis, reference, hypothesis = [], [], [], []
    for item in items:
        right = [m for m in item.pairs if m.within(collar)]
        right_reference.append(sum(has_times(w) for m in right for w in m.reference))
        right_hypothesis.append(sum(len(m.hypothesis) for m in right))
        reference.append(sum(map(has_times, item.reference)))
        hypothesis.append(len(item.hypothesis) - sum(len(m.hypothesis) for m in item.pairs if not m.timed))
    score = _ratio(
        [a + b for a, b in zip(right_reference, right_hypothesis)],
        [a + b for a, b in zip(reference, hypothesis)],
        rate_interval,
    )
    score.details = {
        "precision": sum(right_hypothesis) / sum(hypothesis) if sum(hypothesis) else None,
        "recall": sum(right_reference) / sum(reference) if sum(reference) else None,
        "right": sum(right_hypothesis),
        "hypothesis_words": sum(hypothesis),
        "reference_words": sum(reference),
    }
    return score


def _matched(items: Sequence[Matches]) -> Score:
    matched = [sum(len(m.reference) for m in item.pairs) for item in items]
    totals = [len(item.reference) for item in items]
    return _share(matched, totals)


def _calibration(items: Sequence[Matches]) -> Score:
    tables = []
    for item in items:
        table = np.zeros((BINS, 3))  # words, summed confidence, right words
        for word, right in zip(item.hypothesis, item.right, strict=True):
            confidence = time_of(word, "confidence")
            if confidence is not None:
                confidence = min(max(confidence, 0.0), 1.0)
                table[min(int(confidence * BINS), BINS - 1)] += (1.0, confidence, right)
        if table.any():
            tables.append(table)
    if not tables:
        return Score(math.nan, details={"words": 0})
    stacked = np.stack(tables)
    total = stacked.sum(0)
    drawn = [_ece(np.tensordot(times, stacked, 1)) for times in _resamples(len(stacked))]
    low, high = np.quantile(drawn, [0.025, 0.975])
    words, confidence, right_words = total.sum(0)
    details = {
        "words": int(words),
        "confidence": float(confidence / words),
        "accuracy": float(right_words / words),
        "bins": [
            {
                "low": i / BINS,
                "high": (i + 1) / BINS,
                "words": int(count),
                "confidence": float(s / count) if count else None,
                "accuracy": float(r / count) if count else None,
            }
            for i, (count, s, r) in enumerate(total)
        ],
    }
    return Score(_ece(total), low=float(low), high=float(high), details=details)


def _ece(table: np.ndarray) -> float:
    """Expected calibration error of [bins, 3]: words, summed confidence, right words."""
    return float(abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


def _resamples(items: int) -> Iterator[np.ndarray]:
    """Number of times that each item is drawn, int64 [items]; the same resamples every time."""
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        yield np.bincount(rng.integers(items, size=items), minlength=items)


# Details ------------------------------------------------------------------------------------------------------------


def _details(
    items: Sequence[Matches],
    names: Sequence[str],
    normalizer: str,
    references: Sequence[Sequence[Word]],
    hypotheses: Sequence[Sequence[Word]],
) -> dict[str, Any]:
    matched = [m for item in items for m in item.pairs]
    both = np.abs([e for item in items for e in item.errors()])
    return {
        "items": len(items),
        "normalizer": normalizer,
        "reference_words": sum(len(item.reference) for item in items),
        "hypothesis_words": sum(len(item.hypothesis) for item in items),
        "matched_words": sum(len(m.reference) for m in matched),
        "boundaries": len(both),
        "reference_words_without_times": sum(not has_times(w) for item in items for w in item.reference),
        "hypothesis_words_without_times": sum(not has_times(w) for item in items for w in item.hypothesis),
        "words_not_scored": sum(map(len, references))
        + sum(map(len, hypotheses))
        - sum(len(item.reference) + len(item.hypothesis) for item in items),
        "percentiles_ms": {str(p): float(np.percentile(both, p)) for p in (50, 90, 95, 99)} if len(both) else {},
        "histogram": {
            "edges_ms": list(HISTOGRAM),
            **{slot: _histogram([e for item in items for e in item.errors(slot)]) for slot in ("start", "end")},
        },
        "worst_words": _worst_words(items, names),
        "worst_items": _worst_items(items, names),
    }


def _histogram(errors: Sequence[float]) -> dict[str, Any]:
    """Signed errors in the bins of `HISTOGRAM`, with those outside, and their mean and median (the bias)."""
    values = np.asarray(errors, np.float64)
    edges = np.asarray(HISTOGRAM)
    # Counts by the left edge; numpy's own histogram would put the last edge into the last bin.
    bins = np.searchsorted(edges, values, side="right")
    counts = np.bincount(bins, minlength=len(edges) + 1)
    return {
        "below": int(counts[0]),
        "counts": counts[1:-1].tolist(),
        "above": int(counts[-1]),
        "mean_ms": float(values.mean()) if len(values) else None,
        "median_ms": float(np.median(values)) if len(values) else None,
    }


def _worst_words(items: Sequence[Matches], names: Sequence[str]) -> list[dict[str, Any]]:
    rows = sorted(
        ((m.worst, i, k) for i, item in enumerate(items) for k, m in enumerate(item.pairs) if m.worst > 0),
        key=lambda row: (-row[0], row[1], row[2]),
    )
    return [
        {
            "item": names[i],
            "word": " ".join(w["word"] for w in m.reference),
            "reference": [time_of(m.reference[0], "start"), time_of(m.reference[-1], "end")],
            "hypothesis": [time_of(m.hypothesis[0], "start"), time_of(m.hypothesis[-1], "end")],
            "start_error_ms": m.start_error,
            "end_error_ms": m.end_error,
        }
        for _, i, k in rows[:WORST]
        for m in (items[i].pairs[k],)
    ]


def _worst_items(items: Sequence[Matches], names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "item": names[i],
            "mean_ms": sum(map(abs, errors)) / len(errors),
            "boundaries": len(errors),
            "words": len(item.reference),
            "matched": sum(len(m.reference) for m in item.pairs),
        }
        for i, item in enumerate(items)
        if (errors := item.errors())
    ]
    return sorted(rows, key=lambda row: -row["mean_ms"])[: WORST // 2]
