"""Schema of the whole config, which only composes sections that live beside the code they configure."""

from typing import Any

from pydantic import model_validator

from stentor.config.improve import Improve
from stentor.config.prepare.base import Preparation
from stentor.dataloading.section import Data
from stentor.engine.callback import Callback
from stentor.engine.section import Optim, Schedule, Train
from stentor.losses.base import Loss
from stentor.losses.sequence import sequence_terms
from stentor.models.base import Family
from stentor.section import ConfigConflict, Section
from stentor.tasks.base import Task


class Config(Section):
    """One run: what is trained, on what, and how."""

    name: str = "run"
    """Name of the run; its folder is `output`/`name`."""
    output: str = "runs"
    """Folder that holds run folders."""
    task: Task
    """Task of the model."""
    model: Family
    """Model to train."""
    data: Data
    """Training and evaluation data."""
    losses: dict[str, Loss] | None = None
    """Loss terms by name. Null: the task's own."""
    optim: Optim = Optim()
    """Optimizer and parameter groups."""
    schedule: Schedule = Schedule()
    """Learning rate over the steps."""
    train: Train = Train()
    """The loop: length, precision, evaluation, checkpoints."""
    callbacks: list[Callback] = []
    """Callbacks around the training loop."""
    prepare: list[Preparation] = []
    """Data preparation before the run, once: each step is skipped where it is done. `[]`: nothing."""
    improve: Improve | None = None
    """Rounds of `stentor improve`, on labels that recognisers made and on synthetic speech. Null: none."""
    stages: list[dict[str, Any]] | None = None
    """Sets of overrides that run in order; each stage starts from the export of the one before."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        family = self.model
        if family.tasks and not self.task.is_a(family.tasks):
            raise ConfigConflict("model.type", f"{family.type} serves {', '.join(family.tasks)}, not {self.task.type}")
        if conflict := family.incompatible_with(self.task):
            raise ConfigConflict(f"model.{conflict[0]}", conflict[1])
        if conflict := self.task.incompatible_with(family):
            raise ConfigConflict(f"task.{conflict[0]}", conflict[1])
        self._check_losses()
        if self.data.layout is None:
            self.data.layout = family.layout()
        if self.data.layout not in family.layouts:
            known = " or ".join(family.layouts)
            raise ConfigConflict("data.layout", f"a model of type {family.type} needs the layout {known}")
        if self.improve is not None:
            self.improve.check(self.task, self.data, self.stages)
        return self

    def _check_losses(self) -> None:
        losses = self.losses or {}
        for name, loss in losses.items():
            if conflict := loss.incompatible_with(self.task, self.model):
                raise ConfigConflict(f"losses.{name}.{conflict[0]}", conflict[1])
        sequence = list(sequence_terms(losses))
        if len(sequence) > 1:
            raise ConfigConflict(f"losses.{sequence[1]}.type", "one loss of texts that the model writes is enough")
        if sequence and self.train.shard:
            why = f"`losses.{sequence[0]}` has the model write in each step, for which each process needs all of it"
            raise ConfigConflict("train.shard", f"{why}: leave it out")

    def plain(self) -> dict[str, Any]:
        """The whole config as plain data, with the keys of each chosen kind; loads to the same config."""
        return self.model_dump(mode="json", by_alias=True, serialize_as_any=True)
