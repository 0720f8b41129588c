"""Training from Python: the trainer of a run file, for Stentor's loop (`trainer.fit()`) or for one of your own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from stentor.commands.train import finish, open_run, trainer_of
from stentor.config.load import load, run_texts, stage_configs
from stentor.data.batch import Batch
from stentor.engine import bad_records, checkpoint, nonfinite, state
from stentor.engine.restore import begin
from stentor.engine.trainer import Trainer
from stentor.errors import ConfigError


@contextlib.contextmanager
def open_trainer(
    config: str | Path, overrides: Sequence[str] = (), resume_from: str | Path | None = None
) -> Iterator[Trainer]:
    """Yield the trainer of a run file, with its model, data, losses and optimizer.

    Call `trainer.fit()`, or loop over `batches(trainer)`. When the block ends without an error, the weights are scored
    and exported into the run folder, as `stentor train` does.

    Args:
        config: the run file; it has no `stages:`.
        overrides: such as `["optim.lr=3e-4"]`.
        resume_from: checkpoint of another run to start from, as `--resume-from` of `stentor train`.

    Raises ConfigError for an invalid file and for a run that is finished, and what `stentor train` raises.
    """
    loaded = load(Path(config), overrides)
    if len(stage_configs(loaded)) > 1:
        raise ConfigError(f"{config} has `stages:`: use `stentor train`, or one file for each stage.")
    settings = loaded.config
    folder = Path(settings.output) / settings.name
    if (folder / "results.json").exists():
        raise ConfigError(f"{folder} is finished: choose another `name`.")
    texts = run_texts(loaded)
    origin = None if resume_from is None else Path(resume_from)
    with (
        open_run([settings], folder, texts, resume_from=origin) as run,
        contextlib.closing(run.logger(folder)) as logger,
    ):
        trainer = trainer_of(settings, folder, run, logger)
        begin(trainer)
        yield trainer
        nonfinite.check_end(trainer)
        if trainer.progress.step and not checkpoint.existing(trainer.checkpoints):
            trainer.save()
            state.wait_for_checkpoint(trainer)
        finish(trainer, folder, run.command)


def batches(trainer: Trainer) -> Iterator[Batch]:
    """Yield training batches in the order of the run, from its newest checkpoint on, until `take_step` has done all
    steps. Unreadable records are counted under `data.max_bad`.

    Raises ConfigError in a group of processes, in which every process must make the same calls.
    """
    if trainer.world > 1:
        raise ConfigError("A loop of your own runs in one process: use `trainer.fit()` in a group.")
    trainer.model.train()
    progress = trainer.progress
    with contextlib.closing(trainer.open_loader()) as loader:
        for planned, batch in loader:
            if trainer.is_done:
                return
            progress.epoch, progress.next_index = planned.epoch, planned.index + 1
            progress.position = {"epoch": planned.epoch, "within": planned.batch_in_epoch, "index": planned.index}
            bad_records.count_unreadable(trainer, batch.dropped)
            if batch.ids:
                trainer.seed_micro_batch(planned.index)
                yield batch


def take_step(trainer: Trainer) -> float:
    """Step the optimizer with the gradients so far; see `Trainer.step_optimizer`. Returns the norm before clipping; if
    it is not finite, the update was skipped. Raises StentorError after `train.max_skipped` skipped updates in a row."""
    norm = trainer.step_optimizer([], {})
    trainer.progress.step += 1
    return norm
