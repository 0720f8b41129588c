"""From what a model said of overlapping windows to who spoke when in the whole recording.

A window numbers its speakers in its own way. They are first followed from window to window: the activity in the frames
that windows share says who is whom (`chain`). That leaves no doubt while somebody keeps talking, and knows nothing of
somebody who was silent for longer than a window; there voices decide (`recognise`, see `cluster`): the embeddings of
the model or of another one, or else the long-term spectra. Where voices do not differ clearly, no more speakers are
told apart than in one window (`follow`). The windows' decisions are then put together as pyannote.audio does (Bredin
2023, "pyannote.audio 2.1 speaker diarization pipeline"): the mean of the windows says how many people talk in a frame,
and so many of the most probable ones do.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.tasks.diarize.clustering import cluster, cosine, pairwise_distance, whitened

if TYPE_CHECKING:
    from stentor.tasks.diarize.inference import WindowOutputs
    from stentor.tasks.diarize.windows import Windows

LINK = 0.3
"""Least agreement (frames of both over frames of either) of two windows' speakers in the frames that they share."""
RELIABLE = 3.0
"""Seconds of speech without others that make a voice embedding worth a say in the clustering."""
SMALLEST = 5
"""Stretches in which a speaker must be heard alone, in recordings of so many that these are a tenth of all voices; in
shorter ones a tenth of the voices."""
PAIRS = 4
"""Least number of pairs of one voice, and of two voices, that show how far apart voices are in a recording."""
CLEAR = 1.5
"""Least difference between the two kinds of pairs, in standard deviations, that makes voices worth a say."""
THRESHOLD = 0.5
"""Cosine distance of embeddings that parts two speakers, where a recording has too few of those pairs."""
NAME = "speaker_{}"


def diarization(
    heard: WindowOutputs, windows: Windows, permutes: bool, names: list[str] | None = None
) -> list[dict[str, Any]]:
    """Segments `{"speaker", "start", "end"}` in seconds, in order of time.

    With `permutes` the windows' speakers are matched and named speaker_1, speaker_2 ... in order of arrival; otherwise
    output s means the same in every window and its segments are named `names[s]`.
    """
    tracks = smoothed(activity(heard, windows, permutes), windows, heard.frame_seconds)
    return segments(tracks, heard.frame_seconds, heard.duration, None if permutes else names)


def activity(heard: WindowOutputs, windows: Windows, permutes: bool) -> np.ndarray:
    """Who talks in each frame of the recording, bool [F, K], as the windows say it; see `diarization`."""
    if not permutes:
        return averaged(heard, windows)
    active = binarize(heard, windows)
    return overlap_add(heard, active, identities(heard, active, windows))


def binarize(heard: WindowOutputs, windows: Windows) -> np.ndarray:
    """Which of a window's own speakers talk in each frame: bool [W, T, S]."""
    if windows.threshold is None and heard.hard is not None:
        return heard.hard
    return hysteresis(heard.scores, windows.threshold or 0.5, windows.offset)


def hysteresis(scores: np.ndarray, on: float, off: float | None) -> np.ndarray:
    """Activity, bool [..., T, S], that begins at a score of `on` and lasts until one is below `off` (None: `on`)."""
    started = scores >= on
    if off is None or off >= on:
        return started
    # The last frame up to each one where the score says something, and what it says.
    frames = np.arange(scores.shape[-2])[:, None]
    told = np.maximum.accumulate(np.where(started | (scores < off), frames, 0), axis=-2)
    return np.take_along_axis(started, told, axis=-2)


def identities(heard: WindowOutputs, active: np.ndarray, windows: Windows) -> np.ndarray:
    """The number of the recording's speaker that each of a window's speakers is: int64 [W, S], -1 for silent ones."""
    high = windows.bounds[1]
    slots = active.shape[2]
    if len(active) == 1 and (high is None or high >= slots):
        return np.where(active.any(1), np.arange(slots), -1)
    tracks = chain(heard, active)
    if heard.embeddings is None and heard.spectra is None:
        return track(tracks, high or slots)
    return cluster_speakers(heard, tracks, windows)


def chain(heard: WindowOutputs, active: np.ndarray) -> np.ndarray:
    """Speakers followed from window to window: a number for each speaker of a window, int64 [W, S], -1 for silent ones.

    The scores of a window, where somebody talks, are compared with the mean of those of the windows before it, in the
    frames that they share; the assignment with the highest agreement is taken (Kuhn 1955).
    """
    from scipy.optimize import linear_sum_assignment

    count, length, slots = active.shape
    found = np.full((count, slots), -1)
    known = np.zeros(0, np.int64)  # who was heard lately, and their summed scores in the frames of the current window
    sums, covered = np.zeros((0, length), np.float32), np.zeros(length, np.float32)
    new = 0
    for w in range(count):
        hop = int(heard.starts[w] - heard.starts[w - 1]) if w else 0
        shift = min(hop, length)
        sums = np.pad(sums[:, shift:], ((0, 0), (0, shift)))
        covered = np.pad(covered[shift:], (0, shift))
        valid = np.arange(length) < heard.lengths[w]
        scores = (heard.scores[w].astype(np.float32) * active[w]).T
        talks = active[w].any(0)
        shared = (covered > 0) & valid
        if len(known) and shared.any():
            before, now = sums[:, shared] / covered[shared], scores[:, shared]
            both = np.minimum(before[:, None], now[None]).sum(2)
            either = np.maximum(before[:, None], now[None]).sum(2)
            agreement = both / np.maximum(either, 1e-6)
            for k, s in zip(*linear_sum_assignment(agreement, maximize=True), strict=True):
                if agreement[k, s] >= LINK:
                    found[w, s] = known[k]
        for s in np.flatnonzero(talks & (found[w] < 0)):
            found[w, s] = new
            new += 1
            known, sums = np.append(known, found[w, s]), np.pad(sums, ((0, 1), (0, 0)))
        for s in np.flatnonzero(talks):
            sums[np.flatnonzero(known == found[w, s])[0]] += scores[s]
        covered += valid
        lately = sums.any(1)
        known, sums = known[lately], sums[lately]
    return found


def track(tracks: np.ndarray, most: int) -> np.ndarray:
    """At most `most` speakers from tracks of speakers [W, S], without knowing voices.

    A track that begins anew is a new speaker while there are fewer than `most`. Then it is the one who shares fewest
    windows with it, and of these the one heard last: while one person keeps talking, the other must have come back.
    """
    found = tracks.copy()
    rows = {track: np.flatnonzero((tracks == track).any(1)) for track in np.unique(tracks[tracks >= 0]).tolist()}
    heard: list[np.ndarray] = []  # the windows of each speaker
    for track, own in sorted(rows.items(), key=lambda item: item[1][0]):
        if len(heard) < most:
            speaker = len(heard)
            heard.append(own)
        else:
            before = [h[h <= own[-1]] for h in heard]
            speaker = min(
                range(len(heard)), key=lambda k: (len(np.intersect1d(heard[k], own)), -before[k].max(initial=-1))
            )
            heard[speaker] = np.union1d(heard[speaker], own)
        found[tracks == track] = speaker
    return found


def cluster_speakers(heard: WindowOutputs, tracks: np.ndarray, windows: Windows) -> np.ndarray:
    """Speakers by their voices, from tracks of speakers [W, S]; int64 [W, S], -1 for silent ones.

    A voice is the mean of a track over windows that all overlap, so that a track that is led astray does not take the
    rest of the recording with it. How far apart two voices may be is read off the recording itself, unless it is given:
    tracks show what one voice varies by, and speakers of one window how two differ. Where that is no clear difference,
    voices are not asked (`follow`). Voices with little speech of their own join a speaker at the end.
    """
    low, high = windows.bounds
    voices = _Voices(heard, tracks)
    telling = voices.known & (voices.weights * heard.frame_seconds >= RELIABLE)
    if telling.sum() < low:
        telling = voices.known
    if not telling.any():
        return track(tracks, high or tracks.shape[1])
    both = telling[:, None] & telling[None]
    same, different = (np.argwhere(np.triu(pairs & both)) for pairs in (voices.one, voices.apart))
    enough = min(len(same), len(different)) >= PAIRS
    if not telling.any() or (heard.embeddings is None and not enough):
        return track(tracks, high or tracks.shape[1])
    distances = cosine(voices.vectors) if heard.embeddings is not None else whitened(voices.vectors, same)
    threshold = windows.cluster_threshold
    if threshold is None:
        threshold, separation = THRESHOLD, CLEAR
        if enough:
            near, far = (distances[pairs[:, 0], pairs[:, 1]] for pairs in (same, different))
            threshold, separation = pairwise_distance(near, far, squared=heard.embeddings is None)
        if separation < CLEAR:
            return track(tracks, high or tracks.shape[1])

    chosen = np.flatnonzero(telling)
    pick = np.ix_(chosen, chosen)
    labels = cluster(distances[pick], voices.weights[chosen], voices.apart[pick], threshold, low, high)
    least = min(SMALLEST, round(0.1 * len(distances)))
    labels = _without_small(labels, voices.weights[chosen], least, low, high)
    speaker = np.full(len(distances), -1)
    speaker[chosen] = labels
    # Of each speaker, how much each voice counts.
    shares = [np.where(speaker == k, voices.weights + 1e-6, 0) for k in range(int(labels.max()) + 1)]
    for i in np.argsort(-voices.weights, kind="stable").tolist():
        if speaker[i] >= 0:
            continue
        far = np.array([distances[i] @ share / share.sum() for share in shares])
        taken = np.unique(speaker[voices.apart[i] & (speaker >= 0)])
        if len(taken) < len(far):
            far[taken] = np.inf
        elif least <= 1 and (high is None or len(far) < high):
            # In a short recording, somebody who says a word while all others talk is somebody else.
            far = np.append(np.full(len(far), np.inf), 0)
            shares.append((np.arange(len(distances)) == i).astype(float))
        speaker[i] = int(far.argmin())
    found = np.full(tracks.shape, -1)
    found[tracks >= 0] = speaker[voices.of]
    return found


def _without_small(labels: np.ndarray, weights: np.ndarray, least: int, low: int, high: int | None) -> np.ndarray:
    """Cluster numbers with -1 for voices of clusters that are no speaker's: those of fewer than `least` voices, in
    which the model took two speakers for one (pyannote.audio has a least cluster as well), and the smallest of more
    than `high`, which talk at the same time and are too many all the same."""
    sizes, total = np.bincount(labels), np.bincount(labels, weights)
    order = np.argsort(-total, kind="stable")
    whole = [k for k in order.tolist() if sizes[k] >= least]
    kept = (whole + [k for k in order.tolist() if k not in whole])[: max(len(whole), low, 1)][:high]
    return np.array([kept.index(k) if k in kept else -1 for k in labels.tolist()])


class _Voices:
    """The voice of each track in each stretch of windows that overlap the first of them."""

    def __init__(self, heard: WindowOutputs, tracks: np.ndarray):
        own = heard.embeddings if heard.embeddings is not None else heard.spectra
        where, slot = np.nonzero(tracks >= 0)
        stretch = heard.starts // max(int(heard.lengths.max()), 1)
        keys, of = np.unique(np.stack([stretch[where], tracks[where, slot]], 1), axis=0, return_inverse=True)
        alone = heard.alone[where, slot].astype(np.float64)
        self.of = of.reshape(-1)
        """The voice of each window's speaker, in the order of `tracks >= 0`."""
        self.weights = np.zeros(len(keys))
        """Frames in which only this speaker talks, in the window where these are most."""
        np.maximum.at(self.weights, self.of, alone)
        sums, total = np.zeros((len(keys), own.shape[2])), np.zeros(len(keys))
        np.add.at(sums, self.of, own[where, slot] * np.maximum(alone, 1e-3)[:, None])
        np.add.at(total, self.of, np.maximum(alone, 1e-3))
        self.known = np.linalg.norm(sums, axis=1) > 0
        scale = np.linalg.norm(sums, axis=1) if heard.embeddings is not None else total
        self.vectors = (sums / np.maximum(scale, 1e-9)[:, None]).astype(np.float32)
        gap = np.abs(keys[:, None, 0] - keys[None, :, 0])
        self.one = (keys[:, None, 1] == keys[None, :, 1]) & (gap >= 2) & (gap <= 4)
        """Pairs of one track that share no audio, but are not far from each other."""
        self.apart = np.zeros((len(keys), len(keys)), bool)
        """Pairs that share a window: two speakers."""
        for window in range(len(tracks)):
            inside = self.of[where == window]
            self.apart[np.ix_(inside, inside)] = True
        np.fill_diagonal(self.apart, False)


def overlap_add(heard: WindowOutputs, active: np.ndarray, who: np.ndarray) -> np.ndarray:
    """Who talks in each frame of the recording: bool [F, K], from decisions [W, T, S] and identities [W, S]."""
    speakers = int(who.max()) + 1
    scores = np.zeros((heard.frames, speakers), np.float32)
    number = np.zeros(heard.frames, np.float32)
    covered = np.zeros(heard.frames, np.float32)
    for w, (start, length) in enumerate(zip(heard.starts.tolist(), heard.lengths.tolist(), strict=True)):
        weight = _weight(length)
        covered[start : start + length] += weight
        spoken = np.flatnonzero(who[w] >= 0)
        number[start : start + length] += weight * active[w, :length].sum(1)
        # A decision outweighs every probability: one window alone is taken as it is.
        own = active[w, :length] + heard.scores[w, :length].astype(np.float32)
        for k in np.unique(who[w, spoken]):
            scores[start : start + length, k] += weight * own[:, who[w] == k].max(1)
    number = np.floor(number / np.maximum(covered, 1e-6) + 0.5)
    if not speakers:
        return np.zeros((heard.frames, 0), bool)
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return (ranks < number[:, None]) & (scores > 0)


def averaged(heard: WindowOutputs, windows: Windows) -> np.ndarray:
    """Activity bool [F, S] where output s means the same in every window: their mean against the threshold."""
    said = heard.hard if windows.threshold is None and heard.hard is not None else heard.scores
    scores = np.zeros((heard.frames, said.shape[2]), np.float32)
    covered = np.zeros((heard.frames, 1), np.float32)
    for w, (start, length) in enumerate(zip(heard.starts.tolist(), heard.lengths.tolist(), strict=True)):
        weight = _weight(length)[:, None]
        scores[start : start + length] += weight * said[w, :length]
        covered[start : start + length] += weight
    return hysteresis(scores / np.maximum(covered, 1e-6), windows.threshold or 0.5, windows.offset)


def _weight(length: int) -> np.ndarray:
    """How much a window says about each of its frames, float32 [length]: less at its edges, where it hears one side."""
    middle = 1 - np.abs(2 * (np.arange(length) + 0.5) / length - 1)
    return np.maximum(middle, 0.1).astype(np.float32)


def smoothed(tracks: np.ndarray, windows: Windows, frame_seconds: float) -> np.ndarray:
    """Activity [F, K] after the median filter, with short pauses filled and then short stretches removed."""
    if windows.median > 1 and len(tracks):
        from scipy.ndimage import median_filter

        tracks = median_filter(tracks.astype(np.uint8), (windows.median, 1), mode="nearest").astype(bool)
    if not windows.min_off and not windows.min_on:
        return tracks
    tracks = tracks.copy()
    for track in tracks.T:
        runs = stretches(track)
        for (_, end), (start, _) in pairwise(runs):
            if (start - end) * frame_seconds < windows.min_off - 1e-6:
                track[end:start] = True
        for start, end in stretches(track):
            if (end - start) * frame_seconds < windows.min_on - 1e-6:
                track[start:end] = False
    return tracks


def stretches(track: np.ndarray) -> np.ndarray:
    """First frame, and the frame after the last, of each stretch of True: int64 [N, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[False], track, [False]]).astype(np.int8))).reshape(-1, 2)


def segments(
    tracks: np.ndarray, frame_seconds: float, duration: float, names: list[str] | None = None
) -> list[dict[str, Any]]:
    """Segments in order of time from activity [F, K]; without `names`, speakers are numbered in order of arrival."""
    found = [
        (start, end, k)
        for k, track in enumerate(tracks.T)
        for start, end in stretches(track).tolist()
        if start * frame_seconds < duration
    ]
    found.sort()
    arrived = {k: NAME.format(i) for i, k in enumerate(dict.fromkeys(k for _, _, k in found), 1)}
    return [
        {
            "speaker": names[k] if names else arrived[k],
            "start": round(start * frame_seconds, 3),
            "end": round(min(end * frame_seconds, duration), 3),
        }
        for start, end, k in found
    ]
