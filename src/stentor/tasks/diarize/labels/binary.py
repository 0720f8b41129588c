"""Labels `binary`, speech or not, and `overlap`, where several talk at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.losses.elementwise import BCEWithLogits
from stentor.tasks.diarize.labels.base import Labels, sigmoid

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Detection(Labels):
    """Base of labels with one output: whether at least `least` speakers talk, in segments called `label`."""

    least: ClassVar[int]
    label: ClassVar[str]

    @property
    def classes(self) -> int:
        return 1

    @property
    def names(self) -> list[str]:
        return [self.label]

    @property
    def class_names(self) -> list[str]:
        return [f"no_{self.label}", self.label]

    def losses(self) -> dict[str, Loss]:
        return {self.label: BCEWithLogits()}

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        return (activity.sum(1, keepdims=True) >= self.least).astype("float32")

    def decode(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)

    def reference_segments(self, segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return concurrent_segments(segments, self.least, self.label)


class Binary(Detection):
    """Voice activity detection: whether anyone talks."""

    type: Literal["binary"] = "binary"

    least: ClassVar = 1
    label: ClassVar = "speech"


class Overlap(Detection):
    """Overlapped speech detection: whether two or more talk at once."""

    type: Literal["overlap"] = "overlap"

    least: ClassVar = 2
    label: ClassVar = "overlap"


def concurrent_segments(segments: Sequence[dict[str, Any]], least: int, name: str) -> list[dict[str, Any]]:
    """The stretches of time in which at least so many different speakers talk, as segments called `name`."""
    by_speaker: dict[str, list[tuple[float, float]]] = {}
    for s in segments:
        by_speaker.setdefault(s["speaker"], []).append((s["start"], s["end"]))
    # A speaker who overlaps himself counts once: his segments are merged first. At one time, ends come before starts.
    events = sorted(e for spans in by_speaker.values() for a, b in _merged(spans) for e in ((a, 1), (b, -1)))
    stretches: list[tuple[float, float]] = []
    talking, begun = 0, 0.0
    for time, change in events:
        before, talking = talking, talking + change
        if before < least <= talking:
            begun = time
        elif talking < least <= before:
            stretches.append((begun, time))
    return [{"speaker": name, "start": a, "end": b} for a, b in _merged(stretches)]


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """In order of time, overlapping and touching ones made one, empty ones left out."""
    merged: list[tuple[float, float]] = []
    for a, b in sorted(spans):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        elif b > a:
            merged.append((a, b))
    return merged
