"""Frame labels: speakers' activity as the targets of a model, and the logits of a model as activity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss


class Labels(Choice):
    """The section `task.labels` of the task `diarize`."""

    default_type: ClassVar[str | None] = "speaker"
    required: ClassVar[tuple[str, ...]] = ("classes", "losses", "targets", "decode")
    permutes: ClassVar[bool] = False
    """True when outputs are speakers, each window in its own order: windows must be matched. False when an output means
    the same everywhere; its segments are called by `names`."""
    exclusive: ClassVar[bool] = False
    """True when exactly one of the model's outputs is meant in each frame (classes), False when each is on or off."""

    @property
    def classes(self) -> int:
        """Outputs of the model for each frame."""
        raise NotImplementedError

    @property
    def slots(self) -> int | None:
        """Most speakers that `targets` tells apart in one item. None: any number."""
        return None

    @property
    def names(self) -> list[str]:
        """Names of segments, for each column of `activity`, where labels are not speakers."""
        return []

    def losses(self) -> dict[str, Loss]:
        """The loss terms used when the config has none."""
        raise NotImplementedError

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Targets of the model: float32 [T, C] of 0 and 1, or one class per frame, int64 [T].

        `activity` is bool [T, N], who talks in which frame, with the N speakers `ids` in order of arrival. Of more than
        `slots` speakers the most active ones are kept (see `most_active`); the task counts such items.
        """
        raise NotImplementedError

    def decode(self, logits: np.ndarray) -> np.ndarray:
        """Probability that each local speaker talks (or of each of `names`), float32 [T, S], from logits [T, C]."""
        raise NotImplementedError

    def reference_segments(self, segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Speakers' segments `{"speaker", "start", "end"}` as the segments that a perfect model of these labels would
        find: the speakers' own, unless labels have `names`."""
        return list(segments)


def most_active(activity: np.ndarray, slots: int) -> np.ndarray:
    """Speaker activity in exactly `slots` columns, float32 [T, slots], from bool [T, N].

    Of more speakers those who talk most stay, in their order; missing ones are silent.
    """
    import numpy as np

    if activity.shape[1] > slots:
        loudest = np.argsort(-activity.sum(0), kind="stable")[:slots]
        activity = activity[:, np.sort(loudest)]
    columns = np.zeros((len(activity), slots), np.float32)
    columns[:, : activity.shape[1]] = activity
    return columns


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Float32 of the same shape."""
    import numpy as np

    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float32)))).astype(np.float32)
