"""`overlap`: where several talk at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from stentor.losses.elementwise import BCEWithLogits
from stentor.tasks.diarize.labels.base import Labels, sigmoid, where

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Overlap(Labels):
    """Whether two or more talk at once: overlapped speech detection."""

    type: Literal["overlap"] = "overlap"

    @property
    def classes(self) -> int:
        return 1

    @property
    def names(self) -> list[str]:
        return ["overlap"]

    def losses(self) -> dict[str, Loss]:
        return {"overlap": BCEWithLogits()}

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        return (activity.sum(1, keepdims=True) > 1).astype("float32")

    def activity(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)

    def told(self, segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return where(segments, 2, self.names[0])
