"""Base class of tasks: prepare items, sum losses, predict and score. It does not depend on a model family."""

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
    from stentor.metrics.score import Direction, Score
    from stentor.models.base import Bundle
    from stentor.models.contracts import Processor


class Task(Choice):
    """Task of the model: the section `task`."""

    required: ClassVar = ("losses", "example", "predict", "reference", "score", "main_metric or metrics")
    audio: ClassVar[bool] = True
    """Whether the model takes audio. If False, no audio is read and `example` gets None."""

    any_length: ClassVar[bool] = False
    """True if records may be of any length, regardless of `data.max_seconds`: training uses `training_segments`, and
    `predict` uses windows."""

    audible: ClassVar[bool] = False
    """True if outputs are audio (`output["audio"]`), saved at each evaluation even without the callback `samples`."""

    hypotheses: ClassVar[tuple[str, ...]] = ()
    """Kinds of `hypotheses` of a family that sequence losses can use in this task."""

    scores_loss: ClassVar[bool] = False
    """True if the weighted mean loss over a whole evaluation set is its first score, `loss`."""

    def is_a(self, kinds: Sequence[str]) -> bool:
        """Return whether this task is one of these types or a subclass of one, which families support too."""
        known = self.choices()
        return any(isinstance(self, known[kind]) for kind in kinds if kind in known)

    def check(self) -> None:
        """Check before training that everything the section names can be loaded. Raises ConfigError."""

    def incompatible_with(self, family: Family) -> tuple[str, str] | None:
        """Return why this family's settings do not support this task, as (key of the section, message), or None."""
        return None

    def check_processor(self, processor: Processor) -> None:
        """Raise ConfigError for settings that the model, which was just built, does not support."""

    def losses(self) -> dict[str, Loss]:
        """Return the default loss terms, used if the config has no section `losses`."""
        raise NotImplementedError

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        """Return what the family must provide."""
        return TaskRequirements(task=self.type, terms=tuple(losses))

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """Return a drop reason (`empty_text`, ...) and a message with the id if the metadata of the cut is unusable for
        this task; otherwise None."""
        return None

    def length_drop_reason(self, cut: Cut, tokens: Callable[[], int]) -> tuple[str, str] | None:
        """Like `drop_reason`, for too few or too many sequence positions, which `tokens()` counts."""
        return None

    def training_segments(self, cut: Cut) -> Iterable[Cut]:
        """Divide a training record into shorter cuts with their own ids if the task has `any_length`. The result must
        always be the same. Records of evaluation sets are not divided."""
        return (cut,)

    def data_warnings(self, cuts: Iterable[Cut]) -> list[str]:
        """Return warnings for the user about the training data, from its metadata; an empty list if there are none."""
        return []

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        """Return one item with its (augmented) audio, float32 [samples]. The audio is None in tasks without audio, and
        if the processor has stored features of the unaugmented audio. Runs in a loader worker."""
        raise NotImplementedError

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """Return a training batch."""
        return processor.collate(examples, packed=packed, labels=True)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets per loss term, on the CPU."""
        return batch.counts

    def loss_sums(self, model: torch.nn.Module, batch: Batch, losses: Mapping[str, Loss]) -> dict[str, torch.Tensor]:
        """Return the sum of the losses per term (never means: only the engine divides)."""
        outputs = model(**batch.inputs)
        if "hypotheses" in outputs:
            outputs["hypotheses"] |= batch.search.facts  # type: ignore[union-attr]
        return {term: loss.checked_sum(outputs, loss.reads or term) for term, loss in losses.items()}

    def add_hypotheses(self, bundle: Bundle, batch: Batch, losses: Mapping[str, Loss]) -> None:
        """Add hypotheses of the model, generated without gradient, for the sequence losses among `losses` to a training
        batch on its device. Called before `loss_sums`, with the unwrapped model."""

    def prediction_subset(self, ids: Sequence[str]) -> set[str] | None:
        """Return the ids of the records of an evaluation set to predict, for slow predictions; None: all. The other
        records only count in the loss."""
        return None

    def predict(self, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the model's output for each example, as plain data (`Prediction.output`)."""
        raise NotImplementedError

    def reference(self, cut: Cut) -> dict[str, Any]:
        """Return the reference of a record (`Prediction.reference`)."""
        raise NotImplementedError

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return the metrics of a whole evaluation set. The first one is the task's main metric."""
        raise NotImplementedError

    def change(self, before: Sequence[Prediction], after: Sequence[Prediction]) -> dict[str, Score]:
        """Return the relative change of error rates (-0.25: a quarter fewer errors) between two systems' predictions
        for the same items in the same order, with a paired interval. Empty for tasks without error rates."""
        return {}

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        """Return the metrics of `score` for a model with these loss terms, the main one first, and whether lower
        (`min`) or higher (`max`) is better; None: neither is. Losses and perplexities are the engine's."""
        return {}

    def main_metric(self) -> tuple[str, Direction]:
        """Return the name of the metric that selects the best checkpoint by default, and `min` or `max`."""
        name, direction = next(iter(self.metrics({}).items()))
        return name, direction or "min"
