"""`binary`: speech or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from stentor.losses.elementwise import BCEWithLogits
from stentor.tasks.diarize.labels.base import Labels, sigmoid, where

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Binary(Labels):
    """Whether anybody talks: voice activity detection."""

    type: Literal["binary"] = "binary"

    @property
    def classes(self) -> int:
        return 1

    @property
    def names(self) -> list[str]:
        return ["speech"]

    def losses(self) -> dict[str, Loss]:
        return {"speech": BCEWithLogits()}

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        return activity.any(1, keepdims=True).astype("float32")

    def activity(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)

    def told(self, segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return where(segments, 1, self.names[0])
