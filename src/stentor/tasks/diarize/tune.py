"""Tuning of `task.windows` on a development set: a search over settings, with the model's outputs computed once.

One setting after the other is tried over its candidates while the others stay, round after round until nothing gets
better (coordinate descent). The errors of a diarization are counted on a grid of 10 ms, which is quick; the result is
measured again by the metric itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.tasks.diarize.aggregate import activity, smoothed
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.windows import Windows

GRID = 0.01
"""Seconds of a step in which errors are counted."""
ROUNDS = 4
THRESHOLDS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
GAPS = (0.0, 0.1, 0.2, 0.3)
"""Differences of the offset below the threshold."""
DISTANCES = (None, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Distances of embeddings."""
SPECTRAL = (None, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
"""Distances of spectra."""
FILTERS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 2.1)
"""Seconds of the median filter."""
LENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
"""Seconds of the least speech and the least pause."""


@dataclass
class TuningRecording:
    """A recording of a development set: the model's outputs and the reference."""

    outputs: WindowOutputs
    reference: np.ndarray  # who speaks, bool [G, N] on the grid
    scored: np.ndarray  # which steps of the grid count, bool [G]

    @classmethod
    def of(
        cls,
        outputs: WindowOutputs,
        segments: Sequence[Mapping[str, Any]],
        uem: Sequence[Sequence[float]] | None = None,
        names: Sequence[str] | None = None,
    ) -> TuningRecording:
        """`segments` `{"speaker", "start", "end"}` are the reference, `uem` the [start, end] of what is scored (None:
        all), `names` those of the outputs where they are not speakers."""
        size = round(outputs.duration / GRID)
        speakers = list(names or dict.fromkeys(s["speaker"] for s in segments))
        active = np.zeros((size, len(speakers)), bool)
        for segment in segments:
            if segment["speaker"] in speakers:
                active[_step(segment["start"]) : _step(segment["end"]), speakers.index(segment["speaker"])] = True
        scored = np.full(size, uem is None)
        for start, end in uem or []:
            scored[_step(start) : _step(end)] = True
        return cls(outputs, active, scored)

    def error_seconds(self, tracks: np.ndarray, permutes: bool) -> float:
        """Seconds of error, missed, false and confused, of activity bool [F, K]."""
        from scipy.optimize import linear_sum_assignment

        frame = (np.arange(len(self.scored)) + 0.5) * GRID / self.outputs.frame_seconds
        hypothesis = tracks[np.minimum(frame.astype(int), len(tracks) - 1)][self.scored]
        reference = self.reference[self.scored]
        shared = reference.astype(np.float32).T @ hypothesis.astype(np.float32)
        correct = shared[linear_sum_assignment(shared, maximize=True)].sum() if permutes else np.trace(shared)
        return float(np.maximum(hypothesis.sum(1), reference.sum(1)).sum() - correct) * GRID


def tune(
    recordings: Sequence[TuningRecording],
    windows: Windows,
    permutes: bool,
    tell: Callable[[str], None] = lambda line: None,
) -> Windows:
    """The settings with the fewest seconds of error over all recordings, beginning with `windows`.

    Only settings that are applied to the model's outputs are searched: threshold, offset, clustering, filter, least
    lengths.
    """
    cached: dict[str, list[np.ndarray]] = {}  # the activity of all recordings, before smoothing, of one setting

    def errors(trial: Windows) -> float:
        key = trial.model_dump_json(exclude={"median", "min_on", "min_off"})
        if key not in cached:
            cached.clear()
            cached[key] = [activity(r.outputs, trial, permutes) for r in recordings]
        return sum(
            r.error_seconds(smoothed(tracks, trial, r.outputs.frame_seconds), permutes)
            for r, tracks in zip(recordings, cached[key], strict=True)
        )

    frame = recordings[0].outputs.frame_seconds
    tried: dict[str, float] = {}
    best, least = windows, errors(windows)
    for number in range(1, ROUNDS + 1):
        before = least
        for candidates in _searches(recordings, frame):
            for trial in candidates(best):
                key = trial.model_dump_json()
                if key not in tried:
                    tried[key] = errors(trial)
                if tried[key] < least - 1e-9:
                    best, least = trial, tried[key]
        tell(f"round {number}: {least:.1f} s of error, {len(tried)} settings tried")
        if least >= before - 1e-9:
            break
    return best


def _searches(recordings: Sequence[TuningRecording], frame: float) -> list[Callable[[Windows], list[Windows]]]:
    """For each setting, the candidates that differ from the best so far in it."""
    thresholds: tuple[float | None, ...] = THRESHOLDS
    if any(r.outputs.hard is not None for r in recordings):
        thresholds = (None, *thresholds)
    filters = sorted({2 * (round(seconds / frame) // 2) + 1 for seconds in FILTERS})

    def threshold(best: Windows) -> list[Windows]:
        gap = (best.threshold or 0.5) - (best.offset or best.threshold or 0.5)
        return [_with(best, threshold=t, offset=_below(t, gap)) for t in thresholds]

    def offset(best: Windows) -> list[Windows]:
        return [_with(best, offset=_below(best.threshold or 0.5, gap)) for gap in GAPS] if _decides(best) else []

    def _decides(best: Windows) -> bool:
        return best.threshold is not None or recordings[0].outputs.hard is None

    searches = [
        threshold,
        offset,
        lambda best: [_with(best, median=frames) for frames in filters],
        lambda best: [_with(best, min_off=seconds) for seconds in LENGTHS],
        lambda best: [_with(best, min_on=seconds) for seconds in LENGTHS],
    ]
    if any(len(r.outputs.starts) > 1 for r in recordings):
        distances = DISTANCES if recordings[0].outputs.embeddings is not None else SPECTRAL
        searches.insert(0, lambda best: [_with(best, cluster_threshold=distance) for distance in distances])
    return searches


def _below(threshold: float | None, gap: float) -> float | None:
    if threshold is None or gap <= 0:
        return None
    offset = round(threshold - gap, 3)
    return offset if offset > 0 else None


def _with(windows: Windows, **changed: Any) -> Windows:
    return Windows.model_validate({**windows.model_dump(by_alias=True), **changed})


def _step(seconds: float) -> int:
    return max(round(seconds / GRID), 0)
