"""Labels `powerset`: one class for each set of speakers that may talk at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.losses.diarization import PowersetLoss, powerset_table
from stentor.section import ConfigConflict
from stentor.tasks.diarize.labels.base import Labels, most_active, softmax

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Powerset(Labels):
    """Powerset labels: one class for each set of active speakers (Plaquet and Bredin 2023). Needs no threshold."""

    type: Literal["powerset"] = "powerset"
    speakers: int = Field(3, ge=1, le=12)
    """Number of speakers distinguished in one window. If there are more, those who talk most."""
    at_once: int = Field(2, ge=1)
    """Maximum number of speakers at once. 3 speakers and 2 at once give 7 classes, 4 and 2 give 11."""

    permutes: ClassVar[bool] = True
    exclusive: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits(self) -> Powerset:
        if self.at_once > self.speakers:
            raise ConfigConflict(
                "at_once", f"must not be above the number of speakers ({self.speakers}), got {self.at_once}"
            )
        return self

    @property
    def classes(self) -> int:
        return sum(comb(self.speakers, n) for n in range(self.at_once + 1))

    @property
    def slots(self) -> int:
        return self.speakers

    def losses(self) -> dict[str, Loss]:
        return {"powerset": PowersetLoss()}

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Return the activity, float32 [T, speakers]: the loss finds the sets for the best order of speakers. If more
        than `at_once` talk, those who talk most in the item count."""
        import numpy as np

        active = most_active(activity, self.speakers)
        crowded = active.sum(1) > self.at_once
        if crowded.any():
            rank = np.argsort(np.argsort(-active.sum(0), kind="stable"))
            order = np.where(active[crowded] > 0, rank, len(rank))
            active[crowded] = np.argsort(np.argsort(order, axis=1, kind="stable"), axis=1) < self.at_once
        return active

    def decode(self, logits: np.ndarray) -> np.ndarray:
        return (softmax(logits) @ self.table).astype("float32")

    @property
    def table(self) -> np.ndarray:
        """See `powerset_table`."""
        return powerset_table(self.speakers, self.at_once)
