"""Classification metrics: accuracy, F1 of each class and their mean (macro F1), as scikit-learn defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stentor.metrics.score import LEVEL, Direction, Score


def directions(classes: Sequence[str]) -> dict[str, Direction]:
    """Metrics of `scores` with their directions."""
    return dict.fromkeys(["accuracy", "macro_f1", *(f"f1_{name}" for name in classes)], "max")


def confusion(reference: np.ndarray, prediction: np.ndarray, classes: int) -> np.ndarray:
    """Number of frames by class of the reference and class of the prediction, int64 [classes, classes]. Frames whose
    reference is negative (padding, not scored) are not counted. Both are int64 of the same shape."""
    counted = reference >= 0
    pairs = reference[counted] * classes + prediction[counted]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def scores(confusions: Sequence[np.ndarray], classes: Sequence[str]) -> dict[str, Score]:
    """Return `accuracy`, `macro_f1` and `f1_CLASS` of each class over all frames of a set, from the `confusion` of each
    recording. A class in neither reference nor prediction has no F1 (NaN) and does not count in the mean.

    `low` and `high` are percentiles of a bootstrap over recordings with a fixed seed.
    """
    names = list(directions(classes))
    if not confusions:
        return {name: Score(math.nan) for name in names}
    counts = np.stack(confusions)
    total = counts.sum(0)
    items = len(counts)
    draws = np.random.default_rng(0).multinomial(items, [1 / items] * items, size=1000)
    values, resampled = _values(total[None])[0], _values(np.tensordot(draws, counts, 1))
    results = {}
    for name, value, sample in zip(names, values, resampled.T, strict=True):
        results[name] = Score(float(value), details={"items": items})
        if math.isfinite(value):
            ends = np.nanquantile(sample, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            results[name].low, results[name].high = map(float, ends)
    accuracy, frames = results["accuracy"], int(total.sum())
    accuracy.errors, accuracy.total = frames - int(np.trace(total)), frames
    accuracy.details |= {"classes": list(classes), "confusion": total.tolist()}
    return results


def _values(confusions: np.ndarray) -> np.ndarray:
    """Return accuracy, macro F1 and the F1 of each class, float64 [N, 2 + C], from [N, C, C]; NaN without frames."""
    right = np.diagonal(confusions, axis1=1, axis2=2).astype(np.float64)
    both = confusions.sum(1) + confusions.sum(2)
    with np.errstate(invalid="ignore"):
        f1 = 2 * right / both
        macro = np.nansum(f1, 1) / (both > 0).sum(1)
        accuracy = right.sum(1) / confusions.sum((1, 2))
    return np.column_stack([accuracy, macro, f1])
