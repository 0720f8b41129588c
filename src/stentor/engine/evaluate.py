"""Scoring: the same items each time, predictions gathered from all ranks, metrics over the whole set."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from stentor.data.batch import Batch, Prediction
from stentor.data.cut import record_from_cut
from stentor.dataloading.batch_sampler import BatchSampler, PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.dataloading.mixing import DropCounter
from stentor.errors import DataError
from stentor.metrics.score import Score

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.data.batch import Example
    from stentor.engine.device import Communicator
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle
    from stentor.tasks.base import Task


@dataclass
class EvalSet:
    """One named set with its batch plan."""

    name: str
    plan: BatchSampler
    dropped: DropCounter = field(default_factory=DropCounter)
    bad_ids: set[str] = field(default_factory=set)
    """Records whose audio could not be used; each evaluation comes past them again."""


class EvalReader(BatchDataset):
    """Keeps the examples beside the batch: decoding needs them without their labels."""

    asked: set[str] | None = None
    """Ids of the records that are answered. None: all."""

    def __getitem__(self, planned: PlannedBatch) -> tuple[list[tuple], list[Example], Batch, int]:  # type: ignore[override]
        """(facts of what is answered, its examples, the batch for the loss, records in it)."""
        examples, dropped = self.examples(planned.items)
        batch = self.task.collate(examples, self.processor, self.packed) if examples else Batch({}, {}, [])
        batch.dropped = dropped  # what the processor leaves out of the loss is scored all the same
        read = len(examples)
        if self.asked is not None:
            examples = [e for e in examples if e.id in self.asked]
        kept = {e.id for e in examples}
        facts = [
            (i.cut.id, self.task.reference(i.cut), i.cut.duration, record_from_cut(i.cut))
            for i in planned.items
            if i.cut.id in kept
        ]
        return facts, examples, batch, read


@torch.no_grad()
def evaluate(
    bundle: Bundle,
    task: Task,
    losses: Mapping[str, Loss],
    eval_set: EvalSet,
    accelerator: Accelerator,
    control: Communicator,
    *,
    workers: int,
    prefetch: int,
    sharded: bool = False,
    packed: bool = False,
    max_bad: float = 1.0,
) -> tuple[dict[str, Score], dict[str, float], list[Prediction]]:
    """(scores, mean loss per term, predictions of all ranks) of one set.

    Losses are measured without what only regularises training (label smoothing), over all records; the task may have
    but some of them answered (`Task.prediction_subset`). For tasks that ask for it (`scores_loss`) the weighted mean
    `loss` is the first score. After the task's scores comes the `perplexity` of each term that is a negative
    log-probability of tokens: exp of its mean over all targets.

    Ranks take different batches, so the model is called bare, not through DDP, whose forward talks to the other ranks.
    A sharded model is run by all ranks together: then every rank takes every batch. Raises DataError when more than the
    share `max_bad` of the records turns out unreadable, or none is left.
    """
    model = bundle.model
    losses = {term: loss.unregularised() for term, loss in losses.items()}
    rank, world = (0, 1) if sharded else (accelerator.process_index, control.world)
    planned: Iterator[PlannedBatch] = (
        PlannedBatch(items, i, 0, i) for i, items in enumerate(eval_set.plan.epoch(0)) if i % world == rank
    )
    reader = EvalReader(task, bundle.processor, None, seed=0, packed=packed)
    reader.asked = task.prediction_subset([i.cut.id for items in eval_set.plan.epoch(0) for i in items])
    training = model.training
    model.eval()
    predictions: list[Prediction] = []
    sums = dict.fromkeys(losses, 0.0)
    counts = dict.fromkeys(losses, 0)
    dropped: list[tuple[str, str, str]] = []
    scored = 0
    try:
        with contextlib.closing(batches(reader, planned, workers, prefetch, pin=False)) as feed:
            for facts, examples, batch, read in feed:
                dropped += batch.dropped
                scored += read
                batch = batch.to(accelerator.device)
                with accelerator.autocast():
                    for term, value in (task.loss_sums(model, batch, losses) if batch.ids and losses else {}).items():
                        sums[term] += float(value)
                        counts[term] += batch.counts[term]
                    outputs = task.predict(bundle, examples) if examples else []
                predictions += [
                    Prediction(name, reference, output, seconds, record)
                    for (name, reference, seconds, record), output in zip(facts, outputs, strict=True)
                ]
    finally:
        model.train(training)
    if not sharded:
        gathered = control.gather((predictions, dropped, scored))
        predictions = [p for part, _, _ in gathered for p in part]
        dropped = [d for _, part, _ in gathered for d in part]
        scored = sum(part for _, _, part in gathered)
        totals = control.sum([*sums.values(), *counts.values()])
        sums = dict(zip(sums, totals[: len(sums)]))
        counts = dict(zip(counts, map(round, totals[len(sums) :])))
    for name, reason, message in dropped:
        if name not in eval_set.bad_ids:
            eval_set.bad_ids.add(name)
            eval_set.dropped.add(reason, message)
    eval_set.dropped.check(scored + len(eval_set.bad_ids), max_bad, eval_set.name)
    if not scored:
        raise DataError(f"{eval_set.name}: no record could be scored.")
    predictions.sort(key=lambda p: p.id)
    means = {term: sums[term] / max(counts[term], 1) for term in losses}
    scores = task.score(predictions) | _perplexities(losses, means, counts)
    if task.scores_loss and losses:
        total = sum(losses[term].weight * mean for term, mean in means.items())
        scores = {"loss": Score(total, details={"items": scored, "targets": counts})} | scores
    return scores, means, predictions


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
"""Values of a field by which scores are broken down; with more, each would rest on too little to say anything."""


def breakdown(
    task: Task, predictions: Sequence[Prediction], fields: Sequence[str]
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Scores of the items that share a value of a field: `{field: {value: {metric: score}}}`, values with most items
    first, for the fields that have 2 to `MOST_GROUPS` values among these items. Items without a value are under
    `(none)`. Scores are as in results.json, of `details` the number of items alone."""
    found = {}
    for field_name in fields:
        groups: dict[str, list[Prediction]] = {}
        for p in predictions:
            value = p.reference[field_name] if field_name in p.reference else p.record.get(field_name)
            groups.setdefault("(none)" if value in (None, "") else str(value), []).append(p)
        if 1 < len(groups) <= MOST_GROUPS:
            parts = {
                value: {
                    metric: {k: v for k, v in score.as_dict().items() if k != "details"} | {"items": len(members)}
                    for metric, score in task.score(members).items()
                }
                for value, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
            }
            if any(parts.values()):  # some tasks score nothing but the loss
                found[field_name] = parts
    return found
