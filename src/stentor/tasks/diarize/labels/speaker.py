"""Labels `speaker`: one output for each speaker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.losses.diarization import PermutationInvariantBCE
from stentor.tasks.diarize.labels.base import Labels, most_active, sigmoid

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class SpeakerLabels(Labels):
    """Whether each speaker talks; any number may talk at once (Fujita et al. 2019, end-to-end neural diarization).

    Trained with `pit_bce` the order of speakers is free; with `ats_bce` it is that of their arrival (Sortformer)."""

    type: Literal["speaker"] = "speaker"
    speakers: int = Field(4, ge=1, le=20)
    """Speakers that are told apart in one window. Of more, those who talk most are."""

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
