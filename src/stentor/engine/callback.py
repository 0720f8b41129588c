"""Callbacks: hooks around the training loop, with state that is saved with checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stentor.section import Choice

if TYPE_CHECKING:
    from stentor.data.batch import Batch, Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Direction, Score


class Callback(Choice):
    """An entry of `callbacks:`. Called on every rank, in order of `priority` (lower first), then in list order.

    A callback reads from the trainer: `step`, `epoch`, `total_steps`, `config`, `bundle` (model and processor), `model`
    (as wrapped), `optimizer`, `main` (true on the process that writes), `folder` (the run folder, a Path), `world`. It
    may call `trainer.log(metrics)`, `trainer.event(name, **fields)`, `trainer.say(line)` and `trainer.stop(reason)` (on
    all ranks). Entries of the dict `trainer.extra` are added to the next row of training metrics.
    """

    package: ClassVar[str] = "stentor.callbacks"
    priority: ClassVar[int] = 0
    """Order of the calls: a lower value runs earlier."""
    hooks: ClassVar[tuple[str, ...]] = ("on_", "before_", "after_")

    def watches(self) -> tuple[str | None, Direction | None] | None:
        """Return the metric that the callback decides by, as `SET/METRIC` (None: the one that ranks checkpoints), and
        its mode. None: it decides by no metric. The metric is checked before training (`trainer.steering`)."""
        return None

    def on_start(self, trainer: Trainer) -> None:
        """Called before the first step, after a checkpoint was loaded."""

    def on_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Called when the data of a new epoch begins."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: dict[str, Any]) -> None:
        """Called after the last step of an epoch, its evaluation and its checkpoint; for the last epoch, before
        `on_end`. `metrics` has the newest value of each metric, as in metrics.jsonl."""

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Called before the forward pass of each micro-batch."""

    def before_optimizer(self, trainer: Trainer) -> None:
        """Called when gradients are complete, before they are checked, clipped and passed to the optimizer."""

    def on_step(self, trainer: Trainer) -> None:
        """Called after each optimizer step, including skipped ones."""

    def on_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """Called after a row of metrics was written: every `train.log_every` steps and after each evaluation."""

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        """Called after each evaluation set was scored. `predictions` is complete on the main process."""

    def on_save(self, trainer: Trainer, folder: Any) -> None:
        """Called when the checkpoint `folder` is complete. Training may have done some more steps in the meantime."""

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        """Called when training ends, with the error if it failed."""

    def state_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable state, saved with each checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
