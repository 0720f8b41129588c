"""Training setup: everything that one stage trains with, as `prepare` makes it from the config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.leakage import Overlap
from stentor.dataloading.section import Data
from stentor.dataloading.stream_shards import ShardedStream
from stentor.dataloading.train_dataset import TrainDataset
from stentor.engine.callback import Callback
from stentor.engine.evaluate import EvalSet
from stentor.engine.section import Optim, Schedule, Train
from stentor.losses.base import Loss
from stentor.models.base import Bundle, Family
from stentor.tasks.base import Task
from stentor.text.letters import ChangedLetters


class RunConfig(Protocol):
    """The sections of a run that training and its callbacks read; `stentor.config.schema.Config` has them."""

    name: str
    task: Task
    model: Family
    data: Data
    optim: Optim
    schedule: Schedule
    train: Train
    callbacks: list[Callback]

    def plain(self) -> dict[str, Any]:
        """The whole config as plain data."""


@dataclass
class TrainingSetup:
    """Task, losses, data, model and batches of one stage."""

    task: Task
    losses: Mapping[str, Loss]
    train_data: TrainDataset
    bundle: Bundle
    batch_sampler: BatchSampler | ShardedStream
    evals: list[EvalSet]
    tests: list[EvalSet]
    batches_per_epoch: int | None  # None for a stream
    overlap: Overlap  # what training shares with the evaluation and test sets
    data_warnings: list[str]  # what is unusual in the training data
    changed_letters: ChangedLetters | None  # of the training texts, as the model has them

    @property
    def eval_sets(self) -> list[EvalSet]:
        return [*self.evals, *self.tests]
