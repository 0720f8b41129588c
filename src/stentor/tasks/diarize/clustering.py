"""Speaker clustering: the voices of the windows of a recording, sorted into speakers.

Agglomerative clustering with average linkage under the cosine distance (Day & Edelsbrunner 1984 for its cost), where
voices that talk in one window can never be one speaker (Kinoshita et al. 2021, "Integrating end-to-end neural and
clustering-based diarization").
"""

from __future__ import annotations

import numpy as np

from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.tracking import track
from stentor.tasks.diarize.vbx import apart_labels, speaker_space, vbx
from stentor.tasks.diarize.windows import Windows

RELIABLE = 3.0
"""Seconds of speech without others that make a voice embedding count in the clustering."""
SMALLEST = 5
"""Stretches in which a speaker must talk alone, in recordings of so many that these are a tenth of all voices; in
shorter ones a tenth of the voices."""
PAIRS = 4
"""Least number of pairs of one voice, and of two voices, that show how far apart voices are in a recording."""
CLEAR = 1.5
"""Least difference between the two kinds of pairs, in standard deviations, for voices to be compared."""
THRESHOLD = 0.5
"""Cosine distance of embeddings that parts two speakers, where a recording has too few of those pairs."""
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


def threshold_between(same: np.ndarray, different: np.ndarray, squared: bool) -> tuple[float, float]:
    """(the distance half of the way from `same` pairs to `different` ones; how far apart the two kinds are, in standard
    deviations). Half of the way is the geometric mean of `squared` distances, whose spread grows with them."""
    low, high = float(np.median(same)), float(np.median(different))
    spread = float(np.sqrt((same.var() + different.var()) / 2)) + 1e-6
    threshold = float(np.sqrt(max(low * high, 0.0))) if squared else (low + high) / 2
    return threshold, (float(different.mean()) - float(same.mean())) / spread


def cluster_speakers(outputs: WindowOutputs, tracks: np.ndarray, windows: Windows) -> np.ndarray:
    """Speakers by their voices, from tracks of speakers [W, S]; int64 [W, S], -1 for silent ones.

    A voice is the mean of a track over windows that all overlap, so that a track that is led astray does not take the
    rest of the recording with it. Unless it is given, the threshold between voices comes from the recording itself:
    tracks show how one voice varies, and speakers of one window how two differ. Where that is no clear difference,
    voices are not compared (`track`). Voices with little speech of their own join a speaker at the end.
    """
    low, high = windows.bounds
    voices = _Voices(outputs, tracks)
    reliable = voices.known & (voices.weights * outputs.frame_seconds >= RELIABLE)
    if reliable.sum() < low:
        reliable = voices.known
    both = reliable[:, None] & reliable[None]
    same, different = (np.argwhere(np.triu(pairs & both)) for pairs in (voices.one, voices.apart))
    enough = min(len(same), len(different)) >= PAIRS
    if not reliable.any() or (outputs.embeddings is None and not enough):
        return track(tracks, high or tracks.shape[1])
    distances = cosine(voices.vectors) if outputs.embeddings is not None else whitened(voices.vectors, same)
    threshold = windows.cluster_threshold
    if threshold is None:
        threshold, separation = THRESHOLD, CLEAR
        if enough:
            near, far = (distances[pairs[:, 0], pairs[:, 1]] for pairs in (same, different))
            threshold, separation = threshold_between(near, far, squared=outputs.embeddings is None)
        if separation < CLEAR:
            return track(tracks, high or tracks.shape[1])

    rows = np.flatnonzero(reliable)
    square = np.ix_(rows, rows)
    labels = cluster(distances[square], voices.weights[rows], voices.apart[square], threshold, low, high)
    if windows.clustering == "vbx" and len(same):
        labels = _resegmented(labels, distances[square], voices, rows, same, threshold, windows)
        rows, labels = rows[labels >= 0], labels[labels >= 0]
    least = min(SMALLEST, round(0.1 * len(distances)))
    labels = _without_small(labels, voices.weights[rows], least, low, high)
    speakers = np.full(len(distances), -1)
    speakers[rows] = labels
    _assign_remaining(speakers, distances, voices, may_add=least <= 1, most=high)
    identities = np.full(tracks.shape, -1)
    identities[tracks >= 0] = speakers[voices.of]
    return identities


def _resegmented(
    labels: np.ndarray,
    distances: np.ndarray,
    voices: _Voices,
    rows: np.ndarray,
    same: np.ndarray,
    threshold: float,
    windows: Windows,
) -> np.ndarray:
    """The labels by `vbx` of the voices in `rows`, -1 where no speaker is left for one; the agglomerative `labels`
    where it finds fewer or more speakers than there may be. It begins with the clusters of half of the threshold."""
    low, high = windows.bounds
    apart = voices.apart[np.ix_(rows, rows)]
    initial = cluster(distances, voices.weights[rows], apart, threshold / 2, low)
    space, between = speaker_space(voices.vectors[rows], np.searchsorted(rows, same))
    options = windows.vbx
    found = vbx(space, between, initial, voices.track[rows], options.fa, options.fb, options.loop)
    bayesian = apart_labels(found, apart)
    count = int(bayesian.max()) + 1
    return bayesian if low <= count <= (high or count) else labels


def _assign_remaining(
    speakers: np.ndarray, distances: np.ndarray, voices: _Voices, may_add: bool, most: int | None
) -> None:
    """Fill in the voices without a speaker (-1): the nearest one who does not talk in the same window. Where all do,
    with `may_add` and fewer than `most`, a new speaker."""
    # Of each speaker, how much each voice counts.
    shares = [np.where(speakers == k, voices.weights + 1e-6, 0) for k in range(int(speakers.max()) + 1)]
    for i in np.argsort(-voices.weights, kind="stable").tolist():
        if speakers[i] >= 0:
            continue
        far = np.array([distances[i] @ share / share.sum() for share in shares])
        taken = np.unique(speakers[voices.apart[i] & (speakers >= 0)])
        if len(taken) < len(far):
            far[taken] = np.inf
        elif may_add and (most is None or len(far) < most):
            # In a short recording, a voice that speaks while all known speakers talk is a new speaker.
            far = np.append(np.full(len(far), np.inf), 0)
            shares.append((np.arange(len(distances)) == i).astype(float))
        speakers[i] = int(far.argmin())


def _without_small(labels: np.ndarray, weights: np.ndarray, least: int, low: int, high: int | None) -> np.ndarray:
    """Cluster numbers with -1 for voices of clusters that are no speaker's: those of fewer than `least` voices, in
    which the model took two speakers for one (pyannote.audio has a least cluster as well), and the smallest of more
    than `high`, which talk at the same time and are too many all the same."""
    sizes, total = np.bincount(labels), np.bincount(labels, weights)
    order = np.argsort(-total, kind="stable")
    large = [k for k in order.tolist() if sizes[k] >= least]
    speakers = (large + [k for k in order.tolist() if k not in large])[: max(len(large), low, 1)][:high]
    return np.array([speakers.index(k) if k in speakers else -1 for k in labels.tolist()])


class _Voices:
    """The voice of each track in each stretch of windows that overlap the first of them."""

    def __init__(self, outputs: WindowOutputs, tracks: np.ndarray):
        embeddings = outputs.embeddings if outputs.embeddings is not None else outputs.spectra
        assert embeddings is not None
        window_of, slot = np.nonzero(tracks >= 0)
        stretch = outputs.starts // max(int(outputs.lengths.max()), 1)
        keys, of = np.unique(np.stack([stretch[window_of], tracks[window_of, slot]], 1), axis=0, return_inverse=True)
        frames = outputs.nonoverlapping[window_of, slot].astype(np.float64)
        self.of = of.reshape(-1)
        """The voice of each window's speaker, in the order of `tracks >= 0`."""
        self.weights = np.zeros(len(keys))
        """Frames in which only this speaker talks, in the window where these are most."""
        np.maximum.at(self.weights, self.of, frames)
        sums, total = np.zeros((len(keys), embeddings.shape[2])), np.zeros(len(keys))
        np.add.at(sums, self.of, embeddings[window_of, slot] * np.maximum(frames, 1e-3)[:, None])
        np.add.at(total, self.of, np.maximum(frames, 1e-3))
        self.known = np.linalg.norm(sums, axis=1) > 0
        scale = np.linalg.norm(sums, axis=1) if outputs.embeddings is not None else total
        self.vectors = (sums / np.maximum(scale, 1e-9)[:, None]).astype(np.float32)
        self.track = keys[:, 1]
        """The track of each voice, in order of time within one."""
        gap = np.abs(keys[:, None, 0] - keys[None, :, 0])
        self.one = (keys[:, None, 1] == keys[None, :, 1]) & (gap >= 2) & (gap <= 4)
        """Pairs of one track that share no audio, but are not far from each other."""
        self.apart = np.zeros((len(keys), len(keys)), bool)
        """Pairs that share a window: two speakers."""
        for window in range(len(tracks)):
            inside = self.of[window_of == window]
            self.apart[np.ix_(inside, inside)] = True
        np.fill_diagonal(self.apart, False)
