"""Callbacks: hooks around the training loop, with state that is saved with checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stentor.section import Choice

if TYPE_CHECKING:
    from stentor.data.batch import Batch, Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score


class Callback(Choice):
    """One entry of `callbacks:`. Called on every rank, in order of `priority` (lower first), then of the list.

    A callback reads from the trainer: `step`, `epoch`, `total_steps`, `config`, `bundle` (model and processor),
    `model` (as wrapped), `optimizer`, `main` (true on the process that writes), `folder` (the run folder, a Path),
    `world`. It may call `trainer.log(metrics)`, `trainer.event(name, **fields)`, `trainer.say(line)` and
    `trainer.stop(reason)` (on all ranks alike). What it puts into the dict `trainer.extra` joins the next row of
    training metrics.
    """

    package: ClassVar[str] = "stentor.callbacks"
    priority: ClassVar[int] = 0
    """Lower runs earlier."""
    hooks: ClassVar[tuple[str, ...]] = ("on_", "before_", "after_")

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step, after a resume has been loaded."""

    def on_epoch(self, trainer: Trainer, epoch: int) -> None:
        """When the data of a new epoch begins."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: dict[str, Any]) -> None:
        """When an epoch was trained on: after its last step, and what is scored and saved there. Also for the epoch
        that training ends in, before `on_end`. `metrics` is the newest value of each metric, as in metrics.jsonl."""

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Before each micro-batch's forward."""

    def before_optimizer(self, trainer: Trainer) -> None:
        """When gradients are complete, before they are checked, clipped and given to the optimizer."""

    def on_step(self, trainer: Trainer) -> None:
        """After each optimizer step (also after a skipped one)."""

    def on_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        """When a row of metrics was written: every `train.log_every` steps and after each evaluation."""

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        """After one evaluation set was scored; called once per set. `predictions` is complete on the main process."""

    def on_save(self, trainer: Trainer, folder: Any) -> None:
        """When the checkpoint `folder` is complete. It is written beside the training, which may be some steps on."""

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        """When training ends, however it ends."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state, saved with each checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
