"""Schema of the whole config, which is composed of sections defined next to the code that they configure."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from stentor.config.improve import Improve
from stentor.config.prepare.base import Preparation
from stentor.dataloading.section import Data
from stentor.engine.callback import Callback
from stentor.engine.section import Optim, Schedule, Train
from stentor.losses.base import Loss
from stentor.losses.sequence import sequence_terms
from stentor.models.base import Family
from stentor.section import ConfigConflict, Effect, Section
from stentor.tasks.base import Task


class Config(Section):
    """Config of one run: task, model, data and training."""

    name: str = "run"
    """Name of the run. Its folder is `output`/`name`."""
    output: str = "runs"
    """Folder of the run folders."""
    task: Task
    """Task of the model, such as `transcribe`."""
    model: Family
    """Model family and architecture."""
    data: Data
    """Training, evaluation and test data, with batching and augmentation."""
    losses: dict[str, Loss] | None = None
    """Loss terms by name. Null: the task's own."""
    optim: Optim = Optim()
    """Optimizer and parameter groups."""
    schedule: Schedule = Schedule()
    """Learning rate schedule."""
    train: Train = Train()
    """Training loop: length, precision, evaluation, checkpoints."""
    callbacks: list[Callback] = []
    """Callbacks of the training loop."""
    prepare: list[Preparation] = []
    """Preparation steps before training. Steps that are already done are skipped."""
    improve: Improve | None = None
    """Rounds of `stentor improve` with pseudo-labels and synthetic speech. Null: none."""
    stages: list[dict[str, Any]] | None = None
    """Training stages: overrides of the run file. Each stage starts from the export of the previous one."""
    effects: ClassVar[Mapping[str, Effect]] = dict.fromkeys(("name", "output", "prepare", "improve", "stages"), "none")
    # What is prepared is compared as data, and each stage as a config of its own.

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        family = self.model
        if family.tasks and not self.task.is_a(family.tasks):
            known = ", ".join(family.tasks)
            raise ConfigConflict("model.type", f"{family.type} supports {known}, not {self.task.type}")
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
            raise ConfigConflict(f"losses.{sequence[1]}.type", "only one sequence loss can be used")
        if sequence and self.train.shard:
            why = f"`losses.{sequence[0]}` generates in each step, for which each process needs the whole model"
            raise ConfigConflict("train.shard", f"{why}: leave it out")

    def plain(self) -> dict[str, Any]:
        """Return the whole config as plain data, with the keys of each chosen type; it loads to the same config."""
        return self.model_dump(mode="json", by_alias=True, serialize_as_any=True)
