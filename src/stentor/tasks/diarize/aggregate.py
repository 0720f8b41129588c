"""Aggregation of windows: from a model's scores of overlapping windows to the diarization of the whole recording.

Each window numbers its speakers independently. They are first linked from window to window by their activity in shared
frames (`link_windows`). This is reliable while a speaker keeps talking, but does not find a speaker again after a
silence longer than a window. Voices do (`cluster_speakers`): the embeddings of the model or another one, or the
long-term spectra. If voices do not differ clearly, no more speakers are distinguished than in one window (`track`). The
decisions of the windows are then aggregated as in pyannote.audio (Bredin 2023, "pyannote.audio 2.1 speaker diarization
pipeline"): the mean over windows is the number of speakers in a frame, and the most probable ones are active.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from stentor.tasks.diarize.clustering import cluster_speakers
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.tracking import link_windows, track
from stentor.tasks.diarize.windows import Windows

NAME = "speaker_{}"


def diarization(
    outputs: WindowOutputs, windows: Windows, permutes: bool, names: list[str] | None = None
) -> list[dict[str, Any]]:
    """Segments `{"speaker", "start", "end"}` in seconds, in order of time.

    With `permutes` the windows' speakers are matched and named speaker_1, speaker_2 ... in order of arrival; otherwise
    output s means the same in every window and its segments are named `names[s]`.
    """
    tracks = smoothed(activity(outputs, windows, permutes), windows, outputs.frame_seconds)
    return segments(tracks, outputs.frame_seconds, outputs.duration, None if permutes else names)


def activity(outputs: WindowOutputs, windows: Windows, permutes: bool) -> np.ndarray:
    """Return the active speakers of each frame of the recording, bool [F, K], before smoothing; see `diarization`."""
    if not permutes:
        return averaged(outputs, windows)
    active = binarize(outputs, windows)
    return overlap_add(outputs, active, identities(outputs, active, windows))


def binarize(outputs: WindowOutputs, windows: Windows) -> np.ndarray:
    """Return the active speakers of each frame of each window, bool [W, T, S]."""
    if windows.threshold is None and outputs.hard is not None:
        return outputs.hard
    return hysteresis(outputs.scores, windows.threshold or 0.5, windows.offset)


def hysteresis(scores: np.ndarray, on: float, off: float | None) -> np.ndarray:
    """Activity, bool [..., T, S], that begins at a score of `on` and lasts until one is below `off` (None: `on`)."""
    started = scores >= on
    if off is None or off >= on:
        return started
    # The last frame up to each one in which the score crosses a threshold decides.
    frames = np.arange(scores.shape[-2])[:, None]
    decisive = np.maximum.accumulate(np.where(started | (scores < off), frames, 0), axis=-2)
    return np.take_along_axis(started, decisive, axis=-2)


def identities(outputs: WindowOutputs, active: np.ndarray, windows: Windows) -> np.ndarray:
    """The number of the recording's speaker that each of a window's speakers is: int64 [W, S], -1 for silent ones."""
    high = windows.bounds[1]
    slots = active.shape[2]
    if len(active) == 1 and (high is None or high >= slots):
        return np.where(active.any(1), np.arange(slots), -1)
    tracks = link_windows(outputs, active)
    if outputs.embeddings is None and outputs.spectra is None:
        return track(tracks, high or slots)
    return cluster_speakers(outputs, tracks, windows)


def overlap_add(outputs: WindowOutputs, active: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    """Return the active speakers of each frame, bool [F, K], from decisions [W, T, S] and identities [W, S]."""
    count = int(speakers.max()) + 1
    scores = np.zeros((outputs.frames, count), np.float32)
    talking = np.zeros(outputs.frames, np.float32)
    total = np.zeros(outputs.frames, np.float32)
    for w, (start, length) in enumerate(zip(outputs.starts.tolist(), outputs.lengths.tolist(), strict=True)):
        weight = frame_weights(length)
        total[start : start + length] += weight
        talking[start : start + length] += weight * active[w, :length].sum(1)
        # A decision outweighs every probability: one window alone is taken as it is.
        window_scores = active[w, :length] + outputs.scores[w, :length].astype(np.float32)
        for k in np.unique(speakers[w, speakers[w] >= 0]):
            scores[start : start + length, k] += weight * window_scores[:, speakers[w] == k].max(1)
    if not count:
        return np.zeros((outputs.frames, 0), bool)
    number = np.floor(talking / np.maximum(total, 1e-6) + 0.5)
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return (ranks < number[:, None]) & (scores > 0)


def averaged(outputs: WindowOutputs, windows: Windows) -> np.ndarray:
    """Activity bool [F, S] where output s means the same in every window: their mean against the threshold."""
    activations = outputs.hard if windows.threshold is None and outputs.hard is not None else outputs.scores
    scores = np.zeros((outputs.frames, activations.shape[2]), np.float32)
    total = np.zeros((outputs.frames, 1), np.float32)
    for w, (start, length) in enumerate(zip(outputs.starts.tolist(), outputs.lengths.tolist(), strict=True)):
        weight = frame_weights(length)[:, None]
        scores[start : start + length] += weight * activations[w, :length]
        total[start : start + length] += weight
    return hysteresis(scores / np.maximum(total, 1e-6), windows.threshold or 0.5, windows.offset)


def frame_weights(length: int) -> np.ndarray:
    """Return the weight of each frame of a window, float32 [length]: lower at the edges, with context on one side."""
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
    for speaker in tracks.T:
        runs = stretches(speaker)
        for (_, end), (start, _) in pairwise(runs):
            if (start - end) * frame_seconds < windows.min_off - 1e-6:
                speaker[end:start] = True
        for start, end in stretches(speaker):
            if (end - start) * frame_seconds < windows.min_on - 1e-6:
                speaker[start:end] = False
    return tracks


def stretches(speaker: np.ndarray) -> np.ndarray:
    """First frame, and the frame after the last, of each stretch of True: int64 [N, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[False], speaker, [False]]).astype(np.int8))).reshape(-1, 2)


def segments(
    tracks: np.ndarray, frame_seconds: float, duration: float, names: list[str] | None = None
) -> list[dict[str, Any]]:
    """Segments in order of time from activity [F, K]; without `names`, speakers are numbered in order of arrival."""
    runs = sorted(
        (start, end, k)
        for k, speaker in enumerate(tracks.T)
        for start, end in stretches(speaker).tolist()
        if start * frame_seconds < duration
    )
    if not names:
        order = {k: i for i, k in enumerate(dict.fromkeys(k for _, _, k in runs), 1)}
        names = [NAME.format(order.get(k)) for k in range(tracks.shape[1])]
    return [
        {
            "speaker": names[k],
            "start": round(start * frame_seconds, 3),
            "end": round(min(end * frame_seconds, duration), 3),
        }
        for start, end, k in runs
    ]
