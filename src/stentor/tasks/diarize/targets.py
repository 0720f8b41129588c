"""Frame targets: segments of a recording as labels of a processor's frames, and pools of speaker embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.tasks.diarize import PIECE, Diarize
from stentor.tasks.diarize.frames import HALF, activity, frame_coverage, pools


class FrameTargets:
    """The targets of one example, at the processor's frames."""

    def __init__(self, task: Diarize, example: Example, processor: Any):
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
        self.targets = task.labels.targets(self.active, speakers)
        self.targets[~self.scored] = -100
        scope = "" if task.speaker_names == "global" else f"{example.id.partition(PIECE)[0]}\0"
        speed = "" if abs(scale - 1) < 0.005 else f"\0{scale:.2f}"  # another speed is another voice
        self.names = [f"{scope}{name}{speed}" for name in speakers]


def stack_pools(rows: Sequence[FrameTargets], frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`pools` float32 [B, K, T] and `pool_labels` int64 [B, K] of a batch, padded with 0 and -100."""
    pooled = [pools(row.active, row.names, row.scored) for row in rows]
    count = max(1, *(len(labels) for _, labels in pooled))
    weights, labels = torch.zeros(len(rows), count, frames), torch.full((len(rows), count), -100)
    for i, (row_weights, row_labels) in enumerate(pooled):
        weights[i, : len(row_weights), : row_weights.shape[1]] = torch.from_numpy(row_weights)
        labels[i, : len(row_labels)] = torch.from_numpy(row_labels)
    return weights, labels
