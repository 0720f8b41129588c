"""Steering: the metrics by which a run ranks checkpoints, lowers its learning rate and stops.

Everything that an evaluation set logs can steer a run: `SET/METRIC`, logged as `eval/SET/METRIC`. Tasks declare the
directions of their metrics (`Task.metrics`); losses and perplexities are better when lower.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.engine.setup import RunConfig
    from stentor.engine.trainer import Trainer
    from stentor.losses.base import Loss
    from stentor.metrics.score import Direction
    from stentor.tasks.base import Task


def logged_metrics(task: Task, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
    """Metrics that each evaluation set logs, the main one first, and whether lower (`min`) or higher (`max`) is better;
    None: neither is. `losses`: those of the run, see `stentor.losses.base.expanded`."""
    declared = {**dict([task.main_metric()]), **task.metrics(losses)}
    measured = [term for term, loss in losses.items() if loss.evaluated]
    of_tokens = [term for term in measured if losses[term].per_token]
    perplexities = ["perplexity"] if len(of_tokens) == 1 else [f"perplexity_{term}" for term in of_tokens]
    names = [*perplexities, *(["loss"] if measured else []), *(f"loss_{term}" for term in measured)]
    return declared | dict.fromkeys(names, "min")


@dataclass(frozen=True)
class Watched:
    """A metric of an evaluation set that decides."""

    set: str
    metric: str
    mode: Direction

    @property
    def name(self) -> str:
        return f"{self.set}/{self.metric}"

    def is_scored(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of metrics is of an evaluation of the set."""
        return any(key.startswith(f"eval/{self.set}/") for key in row)

    def value(self, row: Mapping[str, float]) -> float:
        """Return the metric's value in a row of metrics; NaN if the loss of the set is not finite, because the weights
        are then unsound whatever they answer. Raises ConfigError for a name that is not logged."""
        prefix = f"eval/{self.set}/"
        if not math.isfinite(row.get(f"{prefix}loss", 0.0)):
            return math.nan
        if (value := row.get(prefix + self.metric)) is None:
            names = [key.removeprefix(prefix) for key in row if key.startswith(prefix)]
            raise ConfigError(_unknown("The metric to steer by", self.set, self.metric, names))
        return value

    def improves(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        """Return whether a value is finite and better than the best one (None: none) by more than `min_delta`."""
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        return (best - value if self.mode == "min" else value - best) > min_delta


class Steering:
    """Metrics that a run is steered by. Raises ConfigError for names that are not logged and wrong directions."""

    def __init__(self, config: RunConfig, losses: Mapping[str, Loss]):
        self.task, self.losses, self.sets = config.task, losses, list(config.data.eval)
        self.metrics = logged_metrics(config.task, losses)
        train, schedule = config.train, config.schedule
        asked = ((f"callbacks.{i}.metric", c.watches()) for i, c in enumerate(config.callbacks))
        watching = [(where, *watch) for where, watch in asked if watch is not None]
        self.best = Watched(self.sets[0], *config.task.main_metric()) if self.sets else None
        """Metric that ranks checkpoints; None without an evaluation set."""
        if train.best_metric is not None or train.best_mode is not None:
            self.best = self.resolve("train.best_metric", train.best_metric, train.best_mode)
        elif chosen := next((watch for watch in watching if watch[1] is not None), None):
            self.best = self.resolve(*chosen)
        self.plateau: Watched | None = None
        """Metric of the schedule `plateau`."""
        if schedule.type == "plateau":
            self.plateau = self.resolve("schedule.metric", schedule.metric, schedule.mode)
        for watch in watching:
            self.resolve(*watch)

    def resolve(self, where: str, metric: str | None, mode: Direction | None) -> Watched:
        """Return the metric `SET/METRIC` (None: `best`, or the task's main metric of the first set) with its direction.
        `where`: the key of the metric, for messages."""
        if self.best is None:
            raise ConfigError(f"{where}: there is no evaluation set to measure it on; add one under data.eval.")
        if metric is None:
            _check_mode(where, self.best.name, self.best.mode, mode)
            return self.best
        name, _, measure = metric.rpartition("/")
        if name not in self.sets:
            near = _nearest(name, self.sets) if name else self.sets[0]
            raise ConfigError(
                f"{where}: '{metric}' is not SET/METRIC with a set of data.eval ({', '.join(self.sets)}), each of "
                f"which logs {', '.join(self.metrics)}; did you mean {near}/{_nearest(measure, self.metrics)}?"
            )
        direction = self._direction(where, name, measure)
        if direction is None and mode is None:
            key = _mode_key(where).rpartition(".")[2]
            raise ConfigError(
                f"{_mode_key(where)}: '{measure}' declares no direction; add `{key}: min` (lower is better) or `{key}: "
                f"max`. Metrics of {name} with a direction: {', '.join(m for m, d in self.metrics.items() if d)}."
            )
        _check_mode(where, metric, direction, mode)
        return Watched(name, measure, mode or direction or "min")

    def _direction(self, where: str, name: str, metric: str) -> Direction | None:
        """Return the direction of a metric; None for one without, or one that the `score` of a plug-in may give."""
        if metric in self.metrics:
            return self.metrics[metric]
        # Terms may be divided when the model is known: loss_codes_0.
        if metric.startswith(tuple(f"{kind}_{term}_" for kind in ("loss", "perplexity") for term in self.losses)):
            return "min"
        if type(self.task).score.__module__.startswith("stentor."):
            raise ConfigError(_unknown(where, name, metric, self.metrics))
        return None


def steer(trainer: Trainer, row: Mapping[str, float]) -> None:
    """Rank the checkpoint of this step by the row of its evaluation, and show the row to the schedule `plateau`."""
    best, plateau, progress = trainer.steering.best, trainer.steering.plateau, trainer.progress
    assert best is not None
    watched = {"best": best.name, "plateau": plateau.name if plateau else None}
    before, progress.watched = progress.watched or watched, watched
    if before["best"] != best.name:
        trainer.say(f"Checkpoints are ranked by {best.name} from now on, no longer by {before['best']}.")
        progress.best = []
    if before["plateau"] != watched["plateau"]:
        trainer.plateau.best, trainer.plateau.bad = None, 0
    if plateau is not None:
        trainer.plateau.see(value := plateau.value(row), plateau.improves(value, trainer.plateau.best))
    ranked = [b for b in progress.best if b["step"] != trainer.step]
    if math.isfinite(value := best.value(row)):
        ranked.append({"step": trainer.step, "value": value})
    else:
        trainer.say(f"step {trainer.step}  {best.name} or the loss of {best.set} is not finite: it cannot be the best.")
    sign = 1 if best.mode == "min" else -1
    ranked.sort(key=lambda b: (sign * b["value"], -b["step"]))  # of equal values the later one
    progress.best = ranked[: max(trainer.train.keep_best, 1)]


def _check_mode(where: str, name: str, direction: Direction | None, mode: Direction | None) -> None:
    if mode is not None and direction is not None and mode != direction:
        better = "lower" if direction == "min" else "higher"
        raise ConfigError(f"{_mode_key(where)}: {better} is better for {name}: {direction}, not {mode}. Leave it out.")


def _mode_key(where: str) -> str:
    return f"{where.removesuffix('metric')}mode"


def _unknown(where: str, name: str, metric: str, known: Iterable[str]) -> str:
    near = _nearest(metric, known)
    return f"{where}: {name} logs no metric '{metric}', only {', '.join(known)}; did you mean {name}/{near}?"


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), 1, 0.0)[0]
