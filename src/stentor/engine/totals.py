"""Step totals: the counts of an optimizer step, over all micro-batches and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from stentor.data.batch import Batch
from stentor.engine.device import Communicator
from stentor.losses.base import Loss
from stentor.tasks.base import Task


@dataclass
class StepTotals:
    """Counts of one optimizer step, of one rank's micro-batches or (`reduced`) of all."""

    targets: dict[str, float]  # targets of each loss term: its summed loss is divided by them
    epoch: float = 0.0  # epoch of the step's first batch
    signalled: float = 0.0  # ranks that a signal asked to stop
    saved: float = 0.0  # ranks that have finished writing the checkpoint in the background
    num_dropped: float = 0.0  # records that turned out unreadable, those known before left out
    num_read: float = 0.0  # records that were read or tried
    tokens: float = 0.0  # sequence positions that hold something
    positions: float = 0.0  # sequence positions in all, padding included
    seconds: float = 0.0  # seconds of audio

    @classmethod
    def of(cls, batches: Sequence[Batch], task: Task, losses: Mapping[str, Loss]) -> StepTotals:
        """The counts of one rank's micro-batches."""
        targets: Counter[str] = Counter()
        for batch in batches:
            if batch.ids:
                targets.update(task.counts(batch))
        return cls(
            {term: targets[term] for term in losses},
            num_read=float(sum(len(b.ids) + len(b.dropped) for b in batches)),
            tokens=sum(b.tokens for b in batches),
            positions=sum(b.num_positions for b in batches),
            seconds=sum(b.seconds for b in batches),
        )

    def reduced(self, communicator: Communicator) -> StepTotals:
        """The sums over all ranks, in one message."""
        counts = [v for k, v in vars(self).items() if k != "targets"]
        sums = communicator.sum([*self.targets.values(), *counts])
        return StepTotals(dict(zip(self.targets, sums)), *sums[len(self.targets) :])


class MicroBatchLoss(NamedTuple):
    """The summed loss of each term over one micro-batch, detached, and the ids of its records."""

    ids: list[str]
    sums: dict[str, torch.Tensor]

    @property
    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(s).all()) for s in self.sums.values())
