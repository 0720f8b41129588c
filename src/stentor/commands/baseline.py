"""Baseline: scores of a pretrained model before it is trained, so that a run's results show what training changed.

They lie in the run folder, one pair of files per set: `before/SET.json` (the scores, and what they are of) and
`before/SET.jsonl` (the predictions). A run that was cut off reads them there and scores only what is missing.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stentor.callbacks.console import scores_text
from stentor.data.batch import Prediction
from stentor.engine.evaluate import EvalSet, breakdown, metrics_row
from stentor.engine.interpolate import starts_pretrained
from stentor.engine.run_logger import finite
from stentor.engine.setup import RunConfig
from stentor.engine.signals import on_signal
from stentor.engine.trainer import Trainer
from stentor.errors import Stopped, without_secrets
from stentor.metrics.format import figure, label, percent
from stentor.pipeline.journal import write_json, write_lines
from stentor.pipeline.outputs import digest


@dataclass
class Baseline:
    """One set as it was scored before training."""

    name: str
    scores: dict[str, dict[str, Any]]  # as in results.json
    predictions: list[Prediction]

    def compare(
        self, config: RunConfig, trained: Sequence[Prediction], say: Callable[[str], None]
    ) -> dict[str, dict[str, Any]]:
        """Entries of results.json for this set, from its predictions after training; says one line."""
        before = {p.id: p for p in self.predictions}
        after = [p for p in trained if p.id in before]
        changes = config.task.change([before[p.id] for p in after], after)
        if changes:
            metric, change = next(iter(changes.items()))
            first, last = self.scores[metric]["value"], config.task.score(trained)[metric].value
            say(
                f"{self.name}: {label(metric)} {figure(metric, first)} before training, {figure(metric, last)} after "
                f"({percent(change.value)}, 95 %: {percent(change.low)} to {percent(change.high)})."
            )
        entries = {
            "before": self.scores,
            "before_by": breakdown(config.task, self.predictions, config.data.by),
            "change": {metric: score.as_dict() for metric, score in changes.items()},
        }
        return {key: entry for key, entry in entries.items() if entry}


def wants_baseline(config: RunConfig) -> bool:
    """Whether a run is to score its sets before step 1: as `train.score_before` says, else when the whole model is
    pretrained. A model of pretrained parts that have yet to learn to work together has nothing to lose."""
    if config.train.score_before is not None:
        return config.train.score_before
    return starts_pretrained(config)


def score_baseline(trainer: Trainer, eval_sets: Sequence[EvalSet], folder: Path) -> None:
    """Score the sets with the weights as they were loaded, unless that was done already, and log the row of step 0.

    All ranks call, before the first step. Leaves the random streams as they were. Raises Stopped after a signal.
    """

    def stop() -> None:
        raise Stopped("Stopped by a signal before training began. Run the same command to resume.")

    model_digest = digest(trainer.config.plain()["model"])
    row: dict[str, Any] = {}
    with on_signal(stop), _random_state_restored():
        for eval_set in eval_sets:
            scored = {"model": model_digest, "set": _set_digest(trainer.config, eval_set)}
            cached = _read(folder, eval_set.name) if trainer.main else None
            if not trainer.communicator.gather(cached is not None and cached["of"] == scored)[0]:
                trainer.say(f"Scoring {eval_set.name} before training ...")
                scores, means, predictions = trainer.score(eval_set)
                cached = {
                    "of": scored,
                    "scores": {k: s.as_dict() for k, s in scores.items()},
                    "row": metrics_row(trainer.losses, eval_set.name, scores, means),
                }
                if trainer.main:
                    _write(folder, eval_set.name, cached, predictions)
                trainer.say(f"{eval_set.name} before training: {scores_text(scores)}")
            if trainer.main and cached is not None and eval_set in trainer.evals:
                row |= cached["row"]
    if trainer.evals:
        trainer.log(trainer.communicator.gather(row)[0])


def load_baselines(config: RunConfig, eval_sets: Sequence[EvalSet], folder: Path) -> dict[str, Baseline]:
    """The baselines of these sets by name; without those of sets and tasks that have changed since."""
    baselines = {}
    for eval_set in eval_sets:
        name, cached = eval_set.name, _read(folder, eval_set.name)
        if cached is not None and cached["of"]["set"] == _set_digest(config, eval_set):
            lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            predictions = [Prediction(**json.loads(line)) for line in lines]
            baselines[name] = Baseline(name, cached["scores"], predictions)
    return baselines


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write(folder: Path, name: str, content: dict[str, Any], predictions: Sequence[Prediction]) -> None:
    lines = without_secrets("".join(json.dumps(vars(p), ensure_ascii=False) + "\n" for p in predictions))
    write_lines(folder / f"{name}.jsonl", [lines])
    write_json(folder / f"{name}.json", finite(content))  # last: where it is there, both are complete


def _set_digest(config: RunConfig, eval_set: EvalSet) -> str:
    """Changes when the set's records or the way they are scored do."""
    task = config.task
    facts: list[Any] = [task.model_dump(mode="json", serialize_as_any=True)]
    facts += sorted(
        [i.cut.id, round(i.cut.duration, 6), json.dumps(task.reference(i.cut), sort_keys=True, ensure_ascii=False)]
        for batch in eval_set.plan.epoch(0)
        for i in batch
    )
    return digest(facts)


@contextlib.contextmanager
def _random_state_restored() -> Iterator[None]:
    """Leaves the global random generators and a GPU's memory statistics as a run without this would have them."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
