"""Early stopping: end a run whose evaluation metric no longer improves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.engine.callback import Callback
from stentor.errors import ConfigError
from stentor.metrics.format import figure

if TYPE_CHECKING:
    from stentor.data.batch import Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score


class EarlyStop(Callback):
    """Stop when a metric has not improved for some evaluations, and restore the best weights."""

    type: Literal["early_stop"] = "early_stop"
    metric: str | None = None
    """Metric to monitor, `SET/METRIC`, such as `dev/wer`. Null: the task's main metric on the first evaluation set."""
    mode: Literal["min", "max"] | None = None
    """Whether lower or higher is better. Null: as for the task's main metric."""
    patience: int = Field(5, ge=1)
    """Number of consecutive evaluations without improvement after which the run stops."""
    min_delta: float = Field(0.0, ge=0)
    """Minimum improvement, in the unit of the metric (0.001 is 0.1 % of WER)."""
    restore_best: bool = True
    """Restore the weights of the best checkpoint after stopping."""

    _best: float | None = PrivateAttr(None)
    _best_step: int = PrivateAttr(0)
    _bad: int = PrivateAttr(0)
    _stopped: bool = PrivateAttr(False)
    _watched: tuple[str, str, str] = PrivateAttr(("", "", ""))

    def on_start(self, trainer: Trainer) -> None:
        sets = list(trainer.config.data.eval)
        if not sets:
            raise ConfigError("callbacks: early_stop needs an evaluation set; add one under data.eval.")
        main, mode = trainer.config.task.main_metric()
        name, _, metric = (self.metric or f"{sets[0]}/{main}").rpartition("/")
        if name not in sets:
            raise ConfigError(
                f"callbacks: the metric '{self.metric}' of early_stop is not SET/METRIC with a set of data.eval "
                f"({', '.join(sets)}); write for example metric: {sets[0]}/{main}."
            )
        self._watched = (name, metric, self.mode or mode)
        if self._bad >= self.patience:  # it had already stopped when it was killed before the results were written
            self._stop(trainer)

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        watched, metric, mode = self._watched
        if name != watched or self._stopped:
            return
        if metric not in scores:
            raise ConfigError(
                f"callbacks: the metric '{name}/{metric}' of early_stop does not exist, only {', '.join(scores)}; "
                f"write for example metric: {name}/{next(iter(scores))}."
            )
        value = scores[metric].value
        if self._improves(value, mode):
            self._best, self._best_step, self._bad = value, trainer.step, 0
            return
        self._bad += 1
        if self._bad >= self.patience:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        self._stopped = True
        name, metric, _ = self._watched
        best = (
            "never a finite value" if self._best is None else f"{figure(metric, self._best)} at step {self._best_step}"
        )
        trainer.stop(f"{name}/{metric} has not improved in {self._bad} evaluations (best: {best})")

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        if self._stopped and self.restore_best and error is None and self._best is not None:
            trainer.restore_best()

    def _improves(self, value: float, mode: str) -> bool:
        if not math.isfinite(value):
            return False
        if self._best is None:
            return True
        gain = self._best - value if mode == "min" else value - self._best
        return gain > self.min_delta

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "best_step": self._best_step, "bad": self._bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_step, self._bad = state["best"], state["best_step"], state["bad"]
