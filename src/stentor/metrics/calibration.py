"""Confidence calibration: a logistic map from signs of certainty to the probability of being right.

Platt scaling (Platt 1999) over the logits of several signs, fitted on held-out words.
"""

import math
from collections.abc import Sequence

import numpy as np

EDGE = 1e-4
"""Least distance of a probability from 0 and 1 before its logit is taken."""
PRIOR = 1.0
"""Strength of the prior at the first sign itself, in observations, so that a few words change little."""


def confidence(signs: Sequence[float], calibration: Sequence[float]) -> float:
    """The probability of being right, from `signs` in [0, 1] and `calibration`: a factor for each, and a shift."""
    *factors, shift = calibration
    return 1 / (1 + math.exp(-(sum(f * logit(s) for f, s in zip(factors, signs, strict=True)) + shift)))


def logit(probability: float) -> float:
    """The log-odds of a probability, which is kept `EDGE` away from 0 and 1."""
    clipped = min(max(probability, EDGE), 1 - EDGE)
    return math.log(clipped / (1 - clipped))


def fit(signs: Sequence[Sequence[float]], right: Sequence[bool], counts: Sequence[float] | None = None) -> list[float]:
    """Fit the calibration (see `confidence`) by maximum likelihood, with Newton's method. `signs` [N, S] in [0, 1],
    `right` [N], `counts` [N]: how often each was observed (None: once). A Gaussian prior at the unchanged first sign
    keeps the map finite where everything was right."""
    x = np.array([[*map(logit, row), 1.0] for row in signs], np.float64)
    y = np.asarray(right, np.float64)
    n = np.ones(len(x)) if counts is None else np.asarray(counts, np.float64)
    start = np.zeros(x.shape[1])
    start[0] = 1.0

    def loss(weights: np.ndarray) -> float:
        z = x @ weights
        return float(n @ (np.logaddexp(0, z) - y * z) + PRIOR / 2 * np.square(weights - start).sum())

    weights = start.copy()
    for _ in range(100):
        p = 1 / (1 + np.exp(-(x @ weights)))
        gradient = x.T @ (n * (p - y)) + PRIOR * (weights - start)
        hessian = (x * (n * p * (1 - p))[:, None]).T @ x + PRIOR * np.eye(len(start))
        step = np.linalg.solve(hessian, gradient)
        current, size = loss(weights), 1.0
        while loss(weights - size * step) > current and size > 1e-6:  # a full step may overshoot far from the minimum
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    return weights.tolist()
