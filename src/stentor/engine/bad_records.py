"""Bad records: unusable audio."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from stentor.data.batch import Batch
from stentor.dataloading.batch_sampler import PlannedBatch
from stentor.errors import DataError, without_secrets

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


def count_unreadable(trainer: Trainer, dropped: Iterable[tuple[str, str, str]]) -> None:
    """Count unreadable records, (id, reason, message) of all ranks, each once, and name the first. Raises
    DataError if they exceed the share `data.max_bad`."""
    bad = trainer.progress.bad
    for name, reason, message in dropped:
        message = without_secrets(message)
        if name not in bad:
            if not bad:
                trainer.say(f"The first record dropped while training ({reason}): {message}")
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
