"""Labels `speaker`, one output for each speaker, and `ego`: five classes for each, as the target of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.losses.diarization import PermutationInvariantBCE
from stentor.losses.ego import CLASSES, EgoLoss, ego_classes
from stentor.tasks.diarize.labels.base import Labels, most_active, sigmoid, softmax

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

    @property
    def class_names(self) -> list[str]:
        return ["target_alone", "target_overlap", "other_single", "other_overlap", "no_speech"]

    def frame_classes(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Return the classes for each of the N speakers as the target and, last, for one who is silent, [T, N + 1]."""
        import torch

        return ego_classes(torch.nn.functional.pad(torch.from_numpy(activity), (0, 1))).numpy()

    def class_scores(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes for each slot, float32 [T, S, 5]."""
        return softmax(logits.reshape(len(logits), self.speakers, CLASSES))

    def seen_by_target(self, track: np.ndarray, window: np.ndarray) -> np.ndarray:
        """Return the probabilities [T, 5] for one target. The slot that hears it best decides in each frame; without a
        slot, the target is silent, and every slot says how many others talk."""
        import numpy as np

        if track.shape[1]:
            best = track[..., :2].sum(2).argmax(1)
            return track[np.arange(len(track)), best]
        others = np.zeros_like(window)
        others[..., 2:4] = window[..., :2] + window[..., 2:4]
        others[..., 4] = window[..., 4]
        return others.mean(1)

    def decode(self, logits: np.ndarray) -> np.ndarray:
        return self.class_scores(logits)[..., :2].sum(2)
