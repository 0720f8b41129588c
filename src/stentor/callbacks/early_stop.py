"""Early stopping: end a run whose evaluation metric no longer improves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.engine.callback import Callback
from stentor.engine.steering import Watched
from stentor.metrics.format import figure
from stentor.metrics.score import Direction

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


class EarlyStop(Callback):
    """Stop when a metric has not improved for some evaluations, and restore the best weights."""

    type: Literal["early_stop"] = "early_stop"
    metric: str | None = None
    """Metric to monitor, `SET/METRIC`: any that is logged for a set of `data.eval`, such as `dev/wer` or `dev/loss`.
    Null: the one that ranks checkpoints (`train.best_metric`), by default the task's main metric on the first
    evaluation set."""
    mode: Direction | None = None
    """Whether a lower (`min`) or higher (`max`) metric is better; only for metrics that declare no direction, such as
    those of plug-ins. Null: as the metric declares."""
    patience: int = Field(5, ge=1)
    """Number of consecutive evaluations without improvement after which the run stops."""
    min_delta: float = Field(0.0, ge=0)
    """Minimum improvement, in the unit of the metric (0.001 is 0.1 % of WER)."""
    restore_best: bool = True
    """Restore the weights of the best checkpoint (see `train.best_metric`) after stopping."""

    _best: float | None = PrivateAttr(None)
    _best_step: int = PrivateAttr(0)
    _bad: int = PrivateAttr(0)
    _stopped: bool = PrivateAttr(False)
    _watched: Watched | None = PrivateAttr(None)
    _counted: str | None = PrivateAttr(None)  # name of the metric that a checkpoint's counts are of

    def watches(self) -> tuple[str | None, Direction | None]:
        return self.metric, self.mode

    def on_start(self, trainer: Trainer) -> None:
        self._watched = trainer.steering.resolve("callbacks: early_stop", self.metric, self.mode)
        if self._counted not in (None, self._watched.name):
            trainer.say(f"early_stop: {self._watched.name} is monitored from now on, not {self._counted}.")
            self._best, self._best_step, self._bad = None, 0, 0
        if self._bad >= self.patience:  # it had already stopped when it was killed before the results were written
            self._stop(trainer)

    def on_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        watched = self._watched
        # Step 0 are the scores before training, of which there is no checkpoint.
        if watched is None or self._stopped or not trainer.step or not watched.is_scored(metrics):
            return
        value = watched.value(metrics)
        if watched.improves(value, self._best, self.min_delta):
            self._best, self._best_step, self._bad = value, trainer.step, 0
            return
        self._bad += 1
        if self._bad >= self.patience:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        assert self._watched is not None
        self._stopped = True
        name, metric = self._watched.name, self._watched.metric
        value, step = self._best, self._best_step
        if trainer.steering.best == self._watched and (ranked := trainer.progress.best):  # by any improvement
            value, step = ranked[0]["value"], ranked[0]["step"]
        best = "never a finite value" if value is None else f"{figure(metric, value)} at step {step}"
        trainer.stop(f"{name} has not improved in {self._bad} evaluations (best: {best})")

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        if self._stopped and self.restore_best and error is None and self._best is not None:
            trainer.restore_best()

    def state_dict(self) -> dict[str, Any]:
        name = self._watched.name if self._watched else None
        return {"best": self._best, "best_step": self._best_step, "bad": self._bad, "metric": name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_step, self._bad = state["best"], state["best_step"], state["bad"]
        self._counted = state.get("metric")
