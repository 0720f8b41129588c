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
    """True if outputs are speakers, in a different order in each window, so windows must be matched. False if an output
    means the same in all windows; its segments are called by `names`."""
    exclusive: ClassVar[bool] = False
    """True if the outputs are mutually exclusive classes, False if each one is on or off."""

    @property
    def classes(self) -> int:
        """Number of outputs of the model for each frame."""
        raise NotImplementedError

    @property
    def slots(self) -> int | None:
        """Maximum number of speakers that `targets` distinguishes in one item. None: any number."""
        return None

    @property
    def names(self) -> list[str]:
        """Names of the segments, for each column of `activity`, if labels are not speakers."""
        return []

    def losses(self) -> dict[str, Loss]:
        """Return the default loss terms."""
        raise NotImplementedError

    def targets(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Return the targets of the model: float32 [T, C] of 0 and 1, or one class per frame, int64 [T].

        `activity`, bool [T, N], has the active speakers of each frame, with the N speakers `ids` in order of first
        appearance. If there are more than `slots`, those who talk most are used (see `most_active`).
        """
        raise NotImplementedError

    def decode(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each local speaker, or of each of `names`, float32 [T, S], from logits [T, C]."""
        raise NotImplementedError

    @property
    def class_names(self) -> list[str]:
        """Names of the classes of a frame, for accuracy and F1; empty for labels that are no classes. By default those
        of `exclusive` labels, whose `targets` are classes."""
        if self.permutes or not self.exclusive:
            return []
        return self.names if len(self.names) == self.classes else [f"class_{i}" for i in range(self.classes)]

    def frame_classes(self, activity: np.ndarray, ids: Sequence[str]) -> np.ndarray:
        """Return the class of each frame, int64 [T, 1] (-100: not scored), from the arguments of `targets`."""
        targets = self.targets(activity, ids)
        return (targets.argmax(1) if self.classes > 1 and targets.ndim > 1 else targets).reshape(-1, 1).astype("int64")

    def class_scores(self, logits: np.ndarray) -> np.ndarray | None:
        """Return the probabilities of the classes, float32 [T, 1, classes], from logits [T, C]. None: the output is on
        or off, and is the class."""
        return softmax(logits)[:, None] if self.class_names and self.classes > 1 else None

    def seen_by_target(self, track: np.ndarray, window: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes for one target, [T, classes], from those of its outputs, [T, N,
        classes], or, if it has none, from those of all outputs."""
        return track[:, 0]

    def reference_segments(self, segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the segments that a perfect model of these labels would find, given the speakers' segments
        `{"speaker", "start", "end"}`; these are the same unless labels have `names`."""
        return list(segments)


def most_active(activity: np.ndarray, slots: int) -> np.ndarray:
    """Return the activity in exactly `slots` columns, float32 [T, slots], from bool [T, N].

    If there are more speakers, those who talk most are kept, in order; missing speakers are silent.
    """
    import numpy as np

    if activity.shape[1] > slots:
        loudest = np.argsort(-activity.sum(0), kind="stable")[:slots]
        activity = activity[:, np.sort(loudest)]
    columns = np.zeros((len(activity), slots), np.float32)
    columns[:, : activity.shape[1]] = activity
    return columns


def softmax(logits: np.ndarray) -> np.ndarray:
    """Float32 of the same shape, over the last dimension."""
    from scipy import special

    return special.softmax(logits.astype("float32"), -1)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Float32 of the same shape."""
    import numpy as np

    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float32)))).astype(np.float32)
