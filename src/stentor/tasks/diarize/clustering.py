"""Voices that were heard in pieces of a recording, sorted into speakers.

Agglomerative clustering with average linkage under the cosine distance (Day & Edelsbrunner 1984 for its cost), where
voices that talk in one window can never be one speaker (Kinoshita et al. 2021, "Integrating end-to-end neural and
clustering-based diarization").
"""

from __future__ import annotations

import numpy as np

NEVER = np.float32(np.inf)


def cluster(
    distances: np.ndarray,
    weights: np.ndarray,
    apart: np.ndarray,
    threshold: float,
    least: int = 1,
    most: int | None = None,
) -> np.ndarray:
    """A cluster number from 0 on for each of N voices, int64 [N].

    `distances` [N, N] (float, symmetric), `weights` [N] how much each voice counts, `apart` [N, N] (bool, symmetric)
    the pairs that cannot be one speaker. Clusters are merged, the nearest first, while their mean distance is at most
    `threshold` and there are more than `least`; with `most` they are merged further until no more than that are left,
    as far as `apart` allows.

    Memory is 4 N² bytes, time about N² (some thousand voices take seconds).
    """
    count = len(distances)
    distances = distances.astype(np.float32)
    distances[apart] = NEVER
    np.fill_diagonal(distances, NEVER)
    sizes = np.maximum(weights.astype(np.float64), 1e-6)
    labels = np.arange(count)
    alive = np.ones(count, bool)
    left = count
    nearest = distances.argmin(1)
    gaps = distances[np.arange(count), nearest]
    while left > least:
        i = int(gaps.argmin())
        if not np.isfinite(gaps[i]) or (gaps[i] > threshold and (most is None or left <= most)):
            break
        j = int(nearest[i])
        # The mean over all pairs; a pair that cannot be keeps the merged cluster from ever being one with the other.
        merged = ((sizes[i] * distances[i] + sizes[j] * distances[j]) / (sizes[i] + sizes[j])).astype(np.float32)
        merged[[i, j]] = NEVER
        distances[i] = distances[:, i] = merged
        distances[j] = distances[:, j] = NEVER
        sizes[i] += sizes[j]
        labels[labels == j] = i
        alive[j] = False
        left -= 1
        gaps[j] = NEVER
        stale = np.flatnonzero(alive & ((nearest == i) | (nearest == j)))
        for k in {i, *stale.tolist()}:
            nearest[k] = distances[k].argmin()
            gaps[k] = distances[k, nearest[k]]
        closer = alive & (merged < gaps)
        nearest[closer], gaps[closer] = i, merged[closer]
    return np.unique(labels, return_inverse=True)[1]


def cosine(voices: np.ndarray) -> np.ndarray:
    """Distances float32 [N, N] of unit vectors [N, E]: from 0 to 2."""
    return (1 - voices @ voices.T).astype(np.float32)


def whitened(voices: np.ndarray, same: np.ndarray) -> np.ndarray:
    """Distances float32 [N, N] of vectors [N, E], in which what varies within a voice counts little: squared, and
    about 1 in the mean between two of the `same` pairs, int64 [P, 2].

    The within-class covariance (Hatch et al. 2006) is drawn half of the way to its diagonal, as pairs are few.
    """
    differences = voices[same[:, 0]] - voices[same[:, 1]]
    covariance = differences.T @ differences / (2 * len(same))
    covariance = 0.5 * covariance + (0.5 + 1e-3) * np.diag(np.diag(covariance)) + 1e-8 * np.eye(len(covariance))
    values, axes = np.linalg.eigh(covariance)
    flat = (voices - voices.mean(0)) @ (axes / np.sqrt(np.maximum(values, 1e-9)))
    squares = (flat**2).sum(1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * flat @ flat.T, 0)
    return (distances / max(float(distances[same[:, 0], same[:, 1]].mean()), 1e-9)).astype(np.float32)


def pairwise_distance(same: np.ndarray, different: np.ndarray, squared: bool) -> tuple[float, float]:
    """(the distance half of the way from `same` pairs to `different` ones; how far apart the two kinds are, in standard
    deviations). Half of the way is the geometric mean of `squared` distances, whose spread grows with them."""
    low, high = float(np.median(same)), float(np.median(different))
    spread = float(np.sqrt((same.var() + different.var()) / 2)) + 1e-6
    threshold = float(np.sqrt(max(low * high, 0.0))) if squared else (low + high) / 2
    return threshold, (float(different.mean()) - float(same.mean())) / spread
