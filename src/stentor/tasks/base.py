"""Task base class: prepares items, sums losses, predicts and scores. It names no model family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.cut import Cut
from stentor.models.base import Family, TaskRequirements
from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stentor.data.batch import Batch, Example, Prediction
    from stentor.losses.base import Loss
    from stentor.metrics.score import Score
    from stentor.models.base import Bundle
    from stentor.models.contracts import Processor


class Task(Choice):
    """The section `task:`."""

    required: ClassVar[tuple[str, ...]] = ("losses", "example", "predict", "reference", "score", "main_metric")
    audio: ClassVar[bool] = True
    """Whether the model takes audio. False: none is read, and `example` gets None for it."""

    any_length: ClassVar[bool] = False
    """True when records may be of any length, whatever `data.max_seconds` says: training takes them as
    `training_segments`, and `predict` in windows."""

    audible: ClassVar[bool] = False
    """True when answers are sound (`output["audio"]`): they are saved at each evaluation, also
    without the callback `samples`."""

    hypotheses: ClassVar[tuple[str, ...]] = ()
    """Kinds of `hypotheses` of a family that sequence losses may use in this task."""

    scores_loss: ClassVar[bool] = False
    """True when the weighted mean loss over a whole evaluation set is one of its scores, `loss`, the first one."""

    def is_a(self, kinds: Sequence[str]) -> bool:
        """Whether this task is one of these types or a subclass of one: families serve those too."""
        known = self.choices()
        return any(isinstance(self, known[kind]) for kind in kinds if kind in known)

    def check(self) -> None:
        """Raises ConfigError for what the section names that cannot be loaded, before training."""

    def incompatible_with(self, family: Family) -> tuple[str, str] | None:
        """Reason why a model of this family's settings cannot do this task with its settings, as (key of the section,
        sentence). None when it can."""
        return None

    def check_processor(self, processor: Processor) -> None:
        """Raises ConfigError for settings that the model, which was just built, has no room for."""

    def losses(self) -> dict[str, Loss]:
        """The loss terms used when the config has no `losses:` section."""
        raise NotImplementedError

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        """Requirements for the family."""
        return TaskRequirements(task=self.type, terms=tuple(losses))

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """A drop reason (`empty_text`, ...) and a message that names the cut when its metadata cannot serve this task;
        None when it can."""
        return None

    def length_drop_reason(self, cut: Cut, tokens: Callable[[], int]) -> tuple[str, str] | None:
        """As `drop_reason`, of a record or training segment that takes too few or too many sequence positions, which
        `tokens()` counts."""
        return None

    def training_segments(self, cut: Cut) -> Iterable[Cut]:
        """The cuts that one training record is trained on as, where the task has `any_length`: shorter ones with ids of
        their own, always the same. The records of evaluation sets stay as they are."""
        return (cut,)

    def data_warnings(self, cuts: Iterable[Cut]) -> list[str]:
        """Sentences for a person about what is trained on, from its metadata alone; none when all is well."""
        return []

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        """One item with its (augmented) audio, float32 [samples]; None where the processor has its features stored and
        the audio, which is as it was recorded, was not read, and in tasks without audio. Runs in a loader worker."""
        raise NotImplementedError

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """A training batch."""
        return processor.collate(examples, packed=packed, labels=True)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets per loss term, on the CPU."""
        return batch.counts

    def loss_sums(self, model: torch.nn.Module, batch: Batch, losses: Mapping[str, Loss]) -> dict[str, torch.Tensor]:
        """Summed losses per term (never means: only the engine divides)."""
        outputs = model(**batch.inputs)
        if "hypotheses" in outputs:
            outputs["hypotheses"] |= batch.search.facts  # type: ignore[union-attr]
        return {term: loss.checked_sum(outputs, loss.reads or term) for term, loss in losses.items()}

    def add_hypotheses(self, bundle: Bundle, batch: Batch, losses: Mapping[str, Loss]) -> None:
        """Have the model write, without a gradient, what sequence losses among the `losses` score, into a training
        batch that is on its device. It is called before `loss_sums`, with the model itself and not what wraps it."""

    def prediction_subset(self, ids: Sequence[str]) -> set[str] | None:
        """Records of an evaluation set that the model answers, given the ids of all: for answers that take long. The
        others count in the loss alone. None: all."""
        return None

    def predict(self, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """The model's answer for each example, as plain data (`Prediction.output`)."""
        raise NotImplementedError

    def reference(self, cut: Cut) -> dict[str, Any]:
        """Reference for the answer (`Prediction.reference`)."""
        raise NotImplementedError

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Metrics over a whole evaluation set. The first one is the task's main metric."""
        raise NotImplementedError

    def change(self, before: Sequence[Prediction], after: Sequence[Prediction]) -> dict[str, Score]:
        """Relative change of error rates (-0.25: a quarter fewer errors) between two systems' answers for the same
        items in the same order, with a paired interval. Empty for tasks that have no such rate."""
        return {}

    def main_metric(self) -> tuple[str, str]:
        """Name of the metric that picks the best checkpoint, and `min` or `max`."""
        raise NotImplementedError
