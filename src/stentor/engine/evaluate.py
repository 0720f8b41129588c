"""Evaluation: predictions for the same items each time, gathered from all ranks, and metrics over the whole set."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from stentor.data.batch import Batch, Example, Prediction
from stentor.data.cut import record_from_cut
from stentor.dataloading.batch_sampler import BatchSampler, PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.dataloading.mixing import DropCounter
from stentor.engine.device import Communicator
from stentor.errors import DataError
from stentor.losses.base import Loss, measured
from stentor.metrics.score import Score
from stentor.models.base import Bundle
from stentor.section.contract import violation
from stentor.tasks.base import Task

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class EvalSet:
    """A named evaluation set with its batch plan."""

    name: str
    plan: BatchSampler
    dropped: DropCounter = field(default_factory=DropCounter)
    without_loss: DropCounter = field(default_factory=DropCounter)
    """Records that are scored, but not in the loss: the model cannot write their text."""
    bad_ids: set[str] = field(default_factory=set)
    """Ids of records with unusable audio, which every evaluation meets again."""

    def facts(self) -> dict[str, Any]:
        """See `DropCounter.facts`, with the `without_loss` by reason, if any."""
        lossless = dict(self.without_loss.reasons)
        return {**self.dropped.facts(), **({"without_loss": lossless} if lossless else {})}


@dataclass
class EvalOptions:
    """Options of reading and running a set."""

    workers: int = 0
    prefetch: int = 1
    sharded: bool = False
    """Whether the model is sharded: then all ranks run it together, on the same batches."""
    packed: bool = False  # layout of the batches
    max_bad: float = 1.0  # maximum share of unreadable records


@dataclass(frozen=True)
class EvalSetup:
    """Everything needed to score a set."""

    bundle: Bundle
    task: Task
    losses: Mapping[str, Loss]
    accelerator: Accelerator
    communicator: Communicator
    options: EvalOptions


class EvalReader(BatchDataset):
    """Returns the examples with the batch, because decoding needs them without labels."""

    predicted_ids: set[str] | None = None
    """Ids of the records to predict. None: all."""

    def __getitem__(self, planned: PlannedBatch) -> tuple[list[tuple], list[Example], Batch, int]:  # type: ignore[override]
        """Return ((id, reference, seconds, record) of each record to predict, their examples, the batch for the loss,
        number of records in it)."""
        examples, dropped = self.examples(planned.items)
        batch = self.task.collate(examples, self.processor, self.packed) if examples else Batch({}, {}, [])
        batch.dropped = dropped  # records that the processor leaves out of the loss are still scored
        read = len(examples)
        if self.predicted_ids is not None:
            examples = [e for e in examples if e.id in self.predicted_ids]
        ids = {e.id for e in examples}
        cuts = [item.cut for item in planned.items if item.cut.id in ids]
        facts = [(cut.id, self.task.reference(cut), cut.duration, record_from_cut(cut)) for cut in cuts]
        return facts, examples, batch, read


@torch.no_grad()
def evaluate(
    setup: EvalSetup, eval_set: EvalSet, elsewhere: Iterable[Predicted] | None = None
) -> tuple[dict[str, Score], dict[str, float], list[Prediction]]:
    """Score one set: return (scores, mean loss per term, predictions of all ranks).

    Losses are computed over all records without regularisation (label smoothing); the task may predict only some of the
    records (`Task.prediction_subset`). For tasks with `scores_loss`, the weighted mean `loss` is the first score. The
    task's scores are followed by the `perplexity` of each term that is a negative log-probability of tokens: exp of its
    mean over all targets.

    Ranks take different batches (unless `sharded`), so the model is called without DDP, whose forward communicates with
    the other ranks. With `elsewhere`, outputs computed elsewhere for all batches, the model is not called and no loss
    is computed. Raises DataError if more than the share `max_bad` of the records is unreadable, or none is left.
    """
    task = setup.task
    losses = measured(setup.losses)
    run = _EvalRun(dict.fromkeys(losses, 0.0), dict.fromkeys(losses, 0))
    if elsewhere is not None:
        for predicted in elsewhere:
            run.add(predicted)
    else:
        _run_batches(run, replace(setup, losses=losses), eval_set)
    for name, reason, message in run.dropped:
        if name not in eval_set.bad_ids:
            eval_set.bad_ids.add(name)
            eval_set.dropped.add(reason, message)
    eval_set.dropped.check(run.read + len(eval_set.bad_ids), setup.options.max_bad, eval_set.name)
    if not run.read:
        raise DataError(f"{eval_set.name}: no record could be scored.")
    run.predictions.sort(key=lambda p: p.id)
    means = {term: run.sums[term] / max(run.counts[term], 1) for term in losses}
    scores = task.score(run.predictions)
    if not isinstance(scores, dict) or not all(isinstance(s, Score) for s in scores.values()):
        raise violation(task, "score", "return a dict of `stentor.metrics.score.Score`", scores)
    scores |= _perplexities(losses, means, run.counts)
    if task.scores_loss and losses:
        total = sum(losses[term].weight * mean for term, mean in means.items())
        scores = {"loss": Score(total, details={"items": run.read, "targets": run.counts})} | scores
    return scores, means, run.predictions


def _answers(task: Task, bundle: Bundle, examples: list[Example]) -> list[dict[str, Any]]:
    outputs = task.predict(bundle, examples)
    if not isinstance(outputs, list) or len(outputs) != len(examples):
        raise violation(task, "predict", f"return a list with an answer for each of {len(examples)} examples", outputs)
    return outputs


def predict(task: Task, bundle: Bundle, facts: list[tuple], examples: list[Example]) -> list[Prediction]:
    """Return the model's predictions for examples, whose ids, references, seconds and records are `facts`."""
    outputs = _answers(task, bundle, examples) if examples else []
    return [
        Prediction(name, reference, output, seconds, record)
        for (name, reference, seconds, record), output in zip(facts, outputs, strict=True)
    ]


def _run_batches(run: _EvalRun, setup: EvalSetup, eval_set: EvalSet) -> None:
    """Compute losses and predictions of the batches of this rank, and gather those of all ranks."""
    bundle, task, losses = setup.bundle, setup.task, setup.losses
    training = bundle.model.training
    bundle.model.eval()
    try:
        with contextlib.closing(_read_batches(setup, eval_set)) as loader:
            for facts, examples, batch, read in loader:
                batch = batch.to(setup.accelerator.device)
                with setup.accelerator.autocast():
                    sums = task.loss_sums(bundle.model, batch, losses) if batch.ids and losses else {}
                    for term, value in sums.items():
                        run.sums[term] += float(value)
                        run.counts[term] += batch.counts[term]
                    run.add(Predicted(predict(task, bundle, facts, examples), list(batch.dropped), read))
    finally:
        bundle.model.train(training)
    if not setup.options.sharded:
        run.gather(setup.communicator)


@dataclass
class Predicted:
    """Predictions for some batches."""

    predictions: list[Prediction] = field(default_factory=list)
    dropped: list[tuple[str, str, str]] = field(default_factory=list)
    """(id, reason, message) of unreadable records."""
    read: int = 0
    """Number of records that were read."""


@dataclass
class _EvalRun:
    """Results of one rank, and after `gather` of all ranks, for a set."""

    sums: dict[str, float]  # summed loss of each term
    counts: dict[str, int]  # targets of each term
    predictions: list[Prediction] = field(default_factory=list)
    dropped: list[tuple[str, str, str]] = field(default_factory=list)
    """(id, reason, message) of unreadable records."""
    read: int = 0  # records that were read

    def add(self, predicted: Predicted) -> None:
        self.predictions += predicted.predictions
        self.dropped += predicted.dropped
        self.read += predicted.read

    def gather(self, communicator: Communicator) -> None:
        parts = communicator.gather((self.predictions, self.dropped, self.read))
        self.predictions = [p for predictions, _, _ in parts for p in predictions]
        self.dropped = [d for _, dropped, _ in parts for d in dropped]
        self.read = sum(read for _, _, read in parts)
        totals = communicator.sum([*self.sums.values(), *self.counts.values()])
        self.sums = dict(zip(self.sums, totals[: len(self.sums)]))
        self.counts = dict(zip(self.counts, map(round, totals[len(self.sums) :])))


def planned_batches(plan: BatchSampler) -> list[PlannedBatch]:
    """Return the batches of an evaluation set."""
    return [PlannedBatch(items, i, 0, i) for i, items in enumerate(plan.epoch(0))]


def _read_batches(setup: EvalSetup, eval_set: EvalSet) -> Generator[tuple[list[tuple], list[Example], Batch, int]]:
    """Yield the batches of this rank as `EvalReader` returns them."""
    options = setup.options
    rank, world = (0, 1) if options.sharded else (setup.accelerator.process_index, setup.communicator.world)
    planned = planned_batches(eval_set.plan)
    reader = EvalReader(setup.task, setup.bundle.processor, None, seed=0, packed=options.packed)
    reader.predicted_ids = setup.task.prediction_subset([item.cut.id for batch in planned for item in batch.items])
    return batches(reader, iter(planned[rank::world]), options.workers, options.prefetch, pin=False)


def _perplexities(
    losses: Mapping[str, Loss], means: Mapping[str, float], counts: Mapping[str, int]
) -> dict[str, Score]:
    terms = [term for term, loss in losses.items() if loss.per_token and counts[term]]
    return {
        "perplexity" if len(terms) == 1 else f"perplexity_{term}": Score(
            math.exp(means[term]) if means[term] < 700 else math.inf, details={"tokens": counts[term]}
        )
        for term in terms
    }


MOST_GROUPS = 200
"""Maximum number of values of a field for a breakdown of scores; with more, each group would be too small."""


def metrics_row(
    losses: Mapping[str, Loss], name: str, scores: Mapping[str, Score], means: Mapping[str, float]
) -> dict[str, float]:
    """Return the row of metrics.jsonl for a scored set; `means`: the mean of each loss term."""
    row = {f"eval/{name}/{k}": s.value for k, s in scores.items()}
    if means:
        row |= {f"eval/{name}/loss": sum(losses[t].weight * v for t, v in means.items())}
    return row | {f"eval/{name}/loss_{t}": v for t, v in means.items()}


class Scores(Protocol):
    """A scorer of predictions, such as a task."""

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]: ...


def breakdown(
    task: Scores, predictions: Sequence[Prediction], fields: Sequence[str]
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return the scores by value of a field: `{field: {value: {metric: score}}}`, values with most items first, for
    fields with 2 to `MOST_GROUPS` values among these items. Items without a value are under `(none)`. Scores are as in
    results.json, with the number of items instead of `details`."""
    scores_by_field = {}
    for field_name in fields:
        groups: dict[str, list[Prediction]] = {}
        for p in predictions:
            value = p.reference[field_name] if field_name in p.reference else p.record.get(field_name)
            groups.setdefault("(none)" if value in (None, "") else str(value), []).append(p)
        if 1 < len(groups) <= MOST_GROUPS:
            by_value = {
                value: {
                    metric: {k: v for k, v in score.as_dict().items() if k != "details"} | {"items": len(members)}
                    for metric, score in task.score(members).items()
                }
                for value, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
            }
            if any(by_value.values()):  # some tasks only score the loss
                scores_by_field[field_name] = by_value
    return scores_by_field
