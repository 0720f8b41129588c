"""Frame targets: segments of a recording as labels of a processor's frames, and pools of speaker embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.section.contract import violation
from stentor.tasks.diarize.frames import HALF, activity, frame_coverage, pools
from stentor.tasks.diarize.labels.base import Labels


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
        self.targets = _checked(labels, labels.targets(self.active, speakers), count)
        self.targets[~self.scored] = -100
        speed = "" if abs(scale - 1) < 0.005 else f"\0{scale:.2f}"  # another speed is another voice
        self.names = [f"{scope}{name}{speed}" for name in speakers]


def _checked(labels: Labels, targets: Any, frames: int) -> np.ndarray:
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
