"""Lines about a training that is about to start: its data, what is dropped of it, and its parameters."""

from collections.abc import Sequence

from stentor.dataloading.section import Data
from stentor.engine.evaluate import EvalSet
from stentor.engine.setup import TrainingSetup
from stentor.models.parameters import adapters_in, parameter_table


def summary(setup: TrainingSetup) -> list[str]:
    """Summary of the coming training, in lines for a person."""
    lines = []
    train_data, model, parts = setup.train_data, setup.bundle.model, setup.bundle.parts()
    if train_data.records:
        lines.append(f"Training on {train_data.records} records, {train_data.hours:.2f} h.")
    if not setup.evals:
        lines.append("Nothing is scored while training: `data.eval: {dev: held_out}` sets 5 % of the speakers aside.")
    lines += [f"Dropped {line}" for line in train_data.dropped.lines()]
    for eval_set in setup.eval_sets:
        if eval_set.dropped.reasons:
            left = round(eval_set.plan.statistics()["items"])
            lines.append(f"{eval_set.name}: {left} of {left + eval_set.dropped.reasons.total()} records are scored.")
            lines += [f"Dropped from {eval_set.name}: {line}" for line in eval_set.dropped.lines()]
        lines += [f"Scored in {eval_set.name}, but not in its loss: {line}" for line in eval_set.without_loss.lines()]
    adapters = adapters_in(model, parts)
    for part, total, trainable in parameter_table(model, parts):
        note = f" ({adapters[part]:,} in adapters)" if adapters[part] else ""
        lines.append(f"Parameters of {part}: {total:,}, trained {trainable:,}{note}.")
    return lines


def eval_size_lines(data: Data, eval_sets: Sequence[EvalSet]) -> list[str]:
    """Lines about evaluation sets with records larger than the limit of a batch, which are scored nevertheless."""
    key = "data.batch_tokens" if data.eval_batch_tokens is None else "data.eval_batch_tokens"
    limit = data.eval_batch_tokens or data.batch_tokens
    return [
        f"{s.name}: its largest record takes {s.plan.limits.budget} positions, more than {key} ({limit}): records to "
        "score are not dropped for it, so its batches hold up to as many."
        for s in eval_sets
        if s.plan.limits.budget > limit
    ]
