"""Labels `ego`: each speaker as the target, with what everybody else does beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stentor.losses.ego import CLASSES, EgoLoss
from stentor.tasks.diarize.labels.speaker import SpeakerLabels

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Ego(SpeakerLabels):
    """What each speaker does and what goes on around him: five classes for each speaker as the target (alone, in
    overlap, one other, several others, nobody), as in target-speaker diarization.

    All targets of a window are labelled at once, and an output that no speaker takes is the target "nobody"; nobody is
    enrolled."""

    type: Literal["ego"] = "ego"  # type: ignore[assignment]

    @property
    def classes(self) -> int:
        return self.speakers * CLASSES

    def losses(self) -> dict[str, Loss]:
        return {"speakers": EgoLoss()}

    def decode(self, logits: np.ndarray) -> np.ndarray:
        import numpy as np

        grouped = logits.astype(np.float32).reshape(len(logits), self.speakers, CLASSES)
        odds = np.exp(grouped - grouped.max(2, keepdims=True))
        return odds[..., :2].sum(2) / odds.sum(2)
