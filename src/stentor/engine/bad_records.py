"""Bad records: unusable audio, and losses or gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from stentor.data.batch import Batch
from stentor.dataloading.batch_sampler import PlannedBatch
from stentor.engine.totals import MicroBatchLoss
from stentor.errors import DataError, StentorError, without_secrets

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


def count_unreadable(trainer: Trainer, dropped: Iterable[tuple[str, str, str]]) -> None:
    """Count unreadable records, (id, reason, message) of all ranks, each once. Raises DataError if they exceed the
    share `data.max_bad`."""
    bad = trainer.progress.bad
    for name, reason, message in dropped:
        message = without_secrets(message)
        if name not in bad:
            bad[name] = (reason, message)
            trainer.dropped.add(reason, message)
            trainer.event("bad_audio", id=name, reason=reason, message=message)
    dropped_when_listed = trainer.dropped.reasons.total() - len(bad)
    total = trainer.num_records + dropped_when_listed if trainer.num_records else max(1000, trainer.progress.seen)
    trainer.dropped.check(total, trainer.config.data.max_bad, "data.train")


def dummy_batch(trainer: Trainer) -> Batch:
    """Return a batch to run instead of one without a readable record; its loss does not count."""
    dataset = trainer.batch_dataset(augmented=False)
    for items in islice(trainer.batch_sampler.epoch(0), 100):
        _, batch = dataset[PlannedBatch(items[:1], 0, 0, 0)]
        if batch.ids:
            return batch
    last = f" The last of them: {batch.dropped[-1][2]}" if batch.dropped else ""
    raise DataError(f"data.train: none of the first records can be used; see events.jsonl for them.{last}")


def report_skipped_step(trainer: Trainer, losses: Sequence[MicroBatchLoss]) -> None:
    """Count and report a skipped update, on all ranks. Raises StentorError after `train.max_skipped` in a row."""
    gather = trainer.communicator.gather
    any_nonfinite = trainer.communicator.sum([float(any(not loss.is_finite for loss in losses))])[0]
    if not any_nonfinite and trainer.accelerator.scaler is not None:
        return  # fp16: the losses are fine, only the loss scale was too large
    trainer.progress.skipped += 1
    nonfinite_ids = [name for loss in losses if not loss.is_finite for name in loss.ids]
    ids = sorted({name for part in gather(nonfinite_ids) for name in part})
    if not ids:  # a gradient of any of them
        ids = sorted({name for part in gather([name for loss in losses for name in loss.ids]) for name in part})
    trainer.event("skipped_step", step=trainer.step, ids=ids)
    named = f"{', '.join(ids[:8])}{' ...' if len(ids) > 8 else ''}"  # empty in a loop of the user's own
    trainer.say(
        f"Step {trainer.step}: the loss or a gradient was not finite; the update was skipped."
        + (f" Records: {named}." if named else "")
    )
    if trainer.progress.skipped > trainer.train.max_skipped:
        records = f", records {named}" if named else ""
        raise StentorError(
            f"{trainer.progress.skipped} steps in a row had a loss or gradient that was not finite (the last at step "
            f"{trainer.step}{records}). Lower `optim.lr`, set `train.clip`, or look at "
            "these records; then run the same command again to resume from the last checkpoint."
        )
