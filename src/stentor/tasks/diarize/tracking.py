"""Speaker tracking: the speakers of overlapping windows, followed from window to window by their activity."""

import numpy as np

from stentor.tasks.diarize.inference import WindowOutputs

LINK = 0.3
"""Least agreement (frames of both over frames of either) of two windows' speakers in the frames that they share."""


def link_windows(outputs: WindowOutputs, active: np.ndarray) -> np.ndarray:
    """Track speakers from window to window: return a number for each speaker, int64 [W, S], -1 for silent ones.

    The scores of a window, masked by activity, are compared with the mean of those of earlier windows in shared frames;
    the assignment with the highest agreement is used (Kuhn 1955).
    """
    from scipy.optimize import linear_sum_assignment

    count, length, slots = active.shape
    tracks = np.full((count, slots), -1)
    # Tracks that were active lately, and their summed scores in the frames of the current window.
    known = np.zeros(0, np.int64)
    sums, covered = np.zeros((0, length), np.float32), np.zeros(length, np.float32)
    total = 0
    for w in range(count):
        hop = int(outputs.starts[w] - outputs.starts[w - 1]) if w else 0
        shift = min(hop, length)
        sums = np.pad(sums[:, shift:], ((0, 0), (0, shift)))
        covered = np.pad(covered[shift:], (0, shift))
        valid = np.arange(length) < outputs.lengths[w]
        scores = (outputs.scores[w].astype(np.float32) * active[w]).T
        talking = np.flatnonzero(active[w].any(0))
        shared = (covered > 0) & valid
        if len(known) and shared.any():
            before, now = (sums[:, shared] / covered[shared])[:, None], scores[None, :, shared]
            agreement = np.minimum(before, now).sum(2) / np.maximum(np.maximum(before, now).sum(2), 1e-6)
            for k, s in zip(*linear_sum_assignment(agreement, maximize=True), strict=True):
                if agreement[k, s] >= LINK:
                    tracks[w, s] = known[k]
        for s in talking[tracks[w, talking] < 0]:
            tracks[w, s] = total
            total += 1
            known, sums = np.append(known, tracks[w, s]), np.pad(sums, ((0, 1), (0, 0)))
        for s in talking:
            sums[np.flatnonzero(known == tracks[w, s])[0]] += scores[s]
        covered += valid
        recent = sums.any(1)
        known, sums = known[recent], sums[recent]
    return tracks


def track(tracks: np.ndarray, most: int) -> np.ndarray:
    """At most `most` speakers from tracks of speakers [W, S], without voices.

    A new track is a new speaker while there are fewer than `most`. After that, it is the speaker who shares the fewest
    windows with it, and among equals the one active last: while one person keeps talking, the other one has returned.
    """
    speakers = tracks.copy()
    windows_of = {k: np.flatnonzero((tracks == k).any(1)) for k in np.unique(tracks[tracks >= 0]).tolist()}
    windows: list[np.ndarray] = []  # of each speaker
    for number, rows in sorted(windows_of.items(), key=lambda item: item[1][0]):
        if len(windows) < most:
            speaker = len(windows)
            windows.append(rows)
        else:
            shared = [len(np.intersect1d(w, rows)) for w in windows]
            last = [w[w <= rows[-1]].max(initial=-1) for w in windows]
            speaker = min(range(most), key=lambda k: (shared[k], -last[k]))
            windows[speaker] = np.union1d(windows[speaker], rows)
        speakers[tracks == number] = speaker
    return speakers
