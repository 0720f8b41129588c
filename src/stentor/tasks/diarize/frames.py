"""Frame activity: segments in seconds as the activity of frames, and as the targets of a processor's frames.

Frame t is the time from t to t + 1 times `frame_seconds`; the last one ends with the audio. Somebody is active in a
frame who talks in at least half of it: a boundary moves by half a frame at most, to either side alike, so that what is
missed and what is raised falsely by rounding cancel out in the length of speech.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.section.contract import violation
from stentor.tasks.diarize.labels.base import Labels

HALF = 0.5 - 1e-6
"""The least share of a frame; times are rounded to microseconds."""


def spans_of_pieces(duration: float, chunk: float, shift: float | None) -> list[tuple[float, float]]:
    """(start, end) in seconds of the pieces that a recording is cut into.

    A piece begins every `shift` seconds (None: one after the other) and is `chunk` seconds long. The last one reaches
    the end: a rest of less than a quarter of a chunk is left with the piece before it, a longer one is a piece of its
    own.
    """
    least, step = chunk / 4, shift or chunk
    spans = [(0.0, chunk)]
    while duration - spans[-1][1] >= least and duration - (spans[-1][0] + step) >= least:
        start = round(len(spans) * step, 6)
        spans.append((start, start + chunk))
    start, end = spans[-1]
    if end > duration or duration - end < least:
        spans[-1] = (start, duration)
    return spans


def frame_coverage(spans: Iterable[Sequence[float]], frames: int, frame_seconds: float, duration: float) -> np.ndarray:
    """Return the share of each frame covered by the [start, end] spans (seconds, not overlapping), float64 [frames].

    For a frame that reaches beyond `duration`, only the part before it counts.
    """
    edges = np.minimum(np.arange(frames + 1) * frame_seconds, max(duration, 0.0))
    times = np.array([(a, b) for a, b in spans], np.float64).reshape(-1, 2)
    # Seconds covered up to each edge; their differences are what is covered between.
    before = np.clip(edges - times[:, :1], 0, times[:, 1:] - times[:, :1]).sum(0)
    lengths = np.diff(edges)
    return np.diff(before) / np.where(lengths > 1e-9, lengths, np.inf)


def activity(
    segments: Sequence[dict[str, Any]], frames: int, frame_seconds: float, duration: float
) -> tuple[np.ndarray, list[str]]:
    """(who talks in which frame, bool [frames, N]; the N speakers in order of arrival).

    `segments` are `{"speaker", "start", "end"}`, those of one speaker not overlapping. Speakers without a frame are
    left out.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    for s in segments:
        spans.setdefault(s["speaker"], []).append((s["start"], s["end"]))
    tracks = {name: frame_coverage(talk, frames, frame_seconds, duration) >= HALF for name, talk in spans.items()}
    names = sorted((name for name, track in tracks.items() if track.any()), key=lambda name: int(tracks[name].argmax()))
    return np.array([tracks[name] for name in names], bool).reshape(-1, frames).T, names


def pools(active: np.ndarray, names: Sequence[str], scored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights by which frames are averaged to speaker embeddings: (float32 [K, T], labels int64 [K]).

    `active` is bool [T, N], `names` the names of the speakers in the whole data, `scored` bool [T]. Each speaker with
    two or more frames without other speakers has two pools, the first and the second half of these frames, so that each
    embedding has a counterpart of the same speaker.
    """
    alone = active & (active.sum(1, keepdims=True) == 1) & scored[:, None]
    weights, labels = [], []
    for track, name in zip(alone.T, names):
        frames = np.flatnonzero(track)
        if len(frames) < 2:
            continue
        for half in np.array_split(frames, 2):
            row = np.zeros(len(track), np.float32)
            row[half] = 1 / len(half)
            weights.append(row)
            labels.append(number_of(name))
    return np.array(weights, np.float32).reshape(-1, len(active)), np.array(labels, np.int64)


def number_of(name: str) -> int:
    """A number from 0 to 2^62 that stands for a speaker's name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 2


class FrameTargets:
    """The targets of one example, at the processor's frames. `scope`: put before the names of speakers, where the same
    name in another recording is another person."""

    def __init__(self, labels: Labels, example: Example, processor: Any, scope: str = ""):
        extra = example.extra
        samples = extra["samples"] if example.audio is None else len(example.audio)
        seconds = samples / processor.sample_rate
        # The audio may have been played faster or slower.
        scale = seconds / extra["duration"] if example.rng is not None else 1.0
        segments = [s | {"start": s["start"] * scale, "end": s["end"] * scale} for s in extra["segments"]]
        count, frame = processor.frames(samples), processor.frame_seconds
        self.active, speakers = activity(segments, count, frame, seconds)
        self.scored = np.ones(count, bool)
        if extra["uem"] is not None:
            spans = [(a * scale, b * scale) for a, b in extra["uem"]]
            self.scored = frame_coverage(spans, count, frame, seconds) >= HALF
        self.targets = checked_targets(labels, labels.targets(self.active, speakers), count)
        self.targets[~self.scored] = -100
        speed = "" if abs(scale - 1) < 0.005 else f"\0{scale:.2f}"  # another speed is another voice
        self.names = [f"{scope}{name}{speed}" for name in speakers]


def checked_targets(labels: Labels, targets: Any, frames: int) -> np.ndarray:
    """The targets of one example, in each of which another class may come up. Raises ConfigError unless there is a
    class, or a number for each output, in every frame."""
    classes = labels.classes
    if isinstance(targets, np.ndarray) and len(targets) == frames:
        if targets.dtype == np.int64 and targets.ndim == 1 and set(targets.tolist()) <= {-100, *range(classes)}:
            return targets
        # Labels of sets or of targets give the speakers' activity, of which their loss makes classes.
        if targets.dtype == np.float32 and targets.shape in ((frames, classes), (frames, labels.slots)):
            return targets
        if targets.ndim == 1 and targets.dtype == np.int64:
            targets = sorted(set(targets.tolist()))
    expected = f"return one class from 0 to {classes - 1} (int64 [{frames}]) or float32 [{frames}, {classes}]"
    raise violation(labels, "targets", f"{expected} for {frames} frames and `classes` {classes}", targets)


def stack_pools(rows: Sequence[FrameTargets], frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`pools` float32 [B, K, T] and `pool_labels` int64 [B, K] of a batch, padded with 0 and -100."""
    pooled = [pools(row.active, row.names, row.scored) for row in rows]
    count = max(1, *(len(labels) for _, labels in pooled))
    weights, labels = torch.zeros(len(rows), count, frames), torch.full((len(rows), count), -100)
    for i, (row_weights, row_labels) in enumerate(pooled):
        weights[i, : len(row_weights), : row_weights.shape[1]] = torch.from_numpy(row_weights)
        labels[i, : len(row_labels)] = torch.from_numpy(row_labels)
    return weights, labels
