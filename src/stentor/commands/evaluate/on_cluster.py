"""Evaluation on a Ray cluster: workers answer the batches; scores are computed where the command runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from stentor.commands.file_progress import FileProgress
from stentor.commands.prepare.executor import RecordWorker, make_executor
from stentor.commands.prepare.pipeline import Stop
from stentor.dataloading.batch_sampler import BatchSampler, PlannedBatch
from stentor.engine.evaluate import EvalReader, Predicted, planned_batches, predict
from stentor.tasks.base import Task

if TYPE_CHECKING:
    from stentor.cli.train import EvaluateOptions

GROUP_BATCHES = 8
"""Batches that a worker is given at a time."""


class EvaluateWorker(RecordWorker):
    """Answers groups of batches. `predicted`: ids of the records that are predicted; None: all."""

    def __init__(self, options: EvaluateOptions, predicted: set[str] | None):
        self.options, self.predicted = options, predicted

    def setup(self, device: str) -> None:
        from stentor.commands.evaluate import placed, task_of
        from stentor.inference.load import load

        loaded = load(str(self.options.model), device)
        self.bundle, self.task = loaded.bundle, task_of(loaded, self.options)
        self.accelerator = placed(loaded, device)
        self.bundle.model.eval()
        self.reader = EvalReader(self.task, self.bundle.processor, None, seed=0)
        self.reader.predicted_ids = self.predicted

    def process(self, group: Sequence[PlannedBatch]) -> Predicted:
        import torch

        parts = []
        for planned in group:
            facts, examples, batch, read = self.reader[planned]
            with torch.no_grad(), self.accelerator.autocast():
                predictions = predict(self.task, self.bundle, facts, examples)
            parts.append(Predicted(predictions, list(batch.dropped), read))
        return self.join(parts)

    def name(self, group: Sequence[PlannedBatch]) -> str:
        return ", ".join(item.cut.id for item in group[0].items)

    def join(self, results: Sequence[Any]) -> Predicted:
        joined = Predicted()
        for part in results:
            joined.predictions += part.predictions
            joined.dropped += part.dropped
            joined.read += part.read
        return joined

    def crashed(self, group: Sequence[PlannedBatch]) -> Predicted:
        """A batch of which every process died: its records are not scored."""
        _, (reject,) = super().crashed(group)
        return Predicted(dropped=[(item.cut.id, reject.reason, reject.message) for item in group[0].items])


def predict_on_cluster(options: EvaluateOptions, task: Task, plan: BatchSampler) -> Iterator[Predicted]:
    """The answers to all batches, in their order. Raises `Stopped` at a signal."""
    batches = planned_batches(plan)
    groups = [batches[i : i + GROUP_BATCHES] for i in range(0, len(batches), GROUP_BATCHES)]
    predicted = task.prediction_subset([item.cut.id for batch in batches for item in batch.items])
    executor = make_executor(options, ("auto",))
    with (
        Stop(lambda: "nothing is scored yet"),
        FileProgress(len(groups), "evaluating") as bar,
        closing(executor.map(EvaluateWorker(options, predicted), groups, lambda: False)) as results,
    ):
        for result in results:
            bar.add_file()
            yield result
