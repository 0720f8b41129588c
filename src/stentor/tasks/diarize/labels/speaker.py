"""Labels `speaker`, one output for each speaker, and `ego`: five classes for each, as the target of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.losses.diarization import PermutationInvariantBCE
from stentor.losses.ego import CLASSES, EgoLoss
from stentor.tasks.diarize.labels.base import Labels, most_active, sigmoid

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class SpeakerLabels(Labels):
    """One output for each speaker; any number may talk at once (Fujita et al. 2019, end-to-end neural diarization).

    With `pit_bce` the order of speakers is free; with `ats_bce` it is the order of first appearance (Sortformer)."""

    type: Literal["speaker"] = "speaker"
    speakers: int = Field(4, ge=1, le=20)
    """Number of speakers distinguished in one window. If there are more, those who talk most."""

    permutes: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return self.speakers

    @property
    def slots(self) -> int:
        return self.speakers

    def losses(self) -> dict[str, Loss]:
        return {"speakers": PermutationInvariantBCE()}

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        return most_active(activity, self.speakers)

    def decode(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)


class Ego(SpeakerLabels):
    """Five classes for each speaker as the target (alone, in overlap, one other, several others, silence), as in
    target-speaker diarization.

    All targets of a window are labelled at once, without enrolment. An output without a speaker has an empty target."""

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
