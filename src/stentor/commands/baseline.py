"""Scores of a pretrained model before it is trained, so that a run's results show what training changed.

They are kept in the run folder, one pair of files per set: `before/SET.json` (the scores, and what they are of) and
`before/SET.jsonl` (the predictions). A run that was cut off finds them there and scores only what is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import Stopped

if TYPE_CHECKING:
    from stentor.config.schema import Config
    from stentor.data.batch import Prediction
    from stentor.engine.evaluate import EvalSet
    from stentor.engine.trainer import Trainer


@dataclass
class Before:
    """One set as it was scored before training."""

    scores: dict[str, dict[str, Any]]
    """As in results.json."""
    predictions: list[Prediction]
    name: str

    def beside(self, config: Config, after: Sequence[Prediction], say: Callable[[str], None]) -> dict[str, Any]:
        """Entries of results.json for this set, given its predictions after training; one line is said."""
        from stentor.engine.evaluate import breakdown
        from stentor.metrics.format import figure, label, percent

        earlier = {p.id: p for p in self.predictions}
        both = [p for p in after if p.id in earlier]
        changes = config.task.change([earlier[p.id] for p in both], both)
        if changes:
            metric, change = next(iter(changes.items()))
            first, last = self.scores[metric]["value"], config.task.score(after)[metric].value
            say(
                f"{self.name}: {label(metric)} {figure(metric, first)} before training, {figure(metric, last)} after "
                f"({percent(change.value)}, 95 %: {percent(change.low)} to {percent(change.high)})."
            )
        found = {
            "before": self.scores,
            "before_by": breakdown(config.task, self.predictions, config.data.by),
            "change": {metric: score.as_dict() for metric, score in changes.items()},
        }
        return {key: value for key, value in found.items() if value}


def wanted(config: Config) -> bool:
    """Whether a run is to score its sets before step 1: as `train.score_before` says, else when the whole model is
    pretrained. A model of pretrained parts that have yet to learn to work together has nothing to lose."""
    if config.train.score_before is not None:
        return config.train.score_before
    model = config.plain()["model"]
    return bool(model["init"] or model.get("from"))


def score_before(trainer: Trainer, sets: Sequence[EvalSet], place: Path) -> None:
    """Score the sets with the weights as they were loaded, unless that was done already, and log the row of step 0.

    All ranks call, before the first step. Leaves the random streams as they were. Raises Stopped after a signal.
    """
    from stentor.callbacks.console import scores_text
    from stentor.engine.signals import on_signal

    def stop() -> None:
        raise Stopped("Stopped by a signal before training began. Run the same command to go on.")

    of = {"model": _digest([trainer.config.plain()["model"]])}
    row: dict[str, Any] = {}
    with on_signal(stop), _randomness_kept():
        for eval_set in sets:
            facts = of | {"set": _set_digest(trainer.config, eval_set)}
            kept = _read(place, eval_set.name) if trainer.main else None
            known = trainer.control.gather(kept is not None and kept["of"] == facts)[0]
            if not known:
                trainer.say(f"Scoring {eval_set.name} before training ...")
                scores, means, predictions = trainer.score(eval_set)
                kept = {
                    "of": facts,
                    "scores": {k: s.as_dict() for k, s in scores.items()},
                    "row": trainer.row_of(eval_set.name, scores, means),
                }
                if trainer.main:
                    _write(place, eval_set.name, kept, predictions)
                trainer.say(f"{eval_set.name} before training: {scores_text(scores)}")
            if trainer.main and kept is not None and eval_set in trainer.evals:
                row |= kept["row"]
    if trainer.evals:
        trainer.log(trainer.control.gather(row)[0])


def scored_before(config: Config, sets: Sequence[EvalSet], place: Path) -> dict[str, Before]:
    """What `score_before` found of these sets, by name; of sets and tasks that are others by now, nothing."""
    from stentor.data.batch import Prediction

    found = {}
    for eval_set in sets:
        kept = _read(place, eval_set.name)
        if kept is not None and kept["of"]["set"] == _set_digest(config, eval_set):
            lines = (place / f"{eval_set.name}.jsonl").read_text(encoding="utf-8").splitlines()
            found[eval_set.name] = Before(
                kept["scores"], [Prediction(**json.loads(line)) for line in lines], eval_set.name
            )
    return found


def _read(place: Path, name: str) -> dict[str, Any] | None:
    path = place / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _write(place: Path, name: str, kept: dict[str, Any], predictions: Sequence[Prediction]) -> None:
    from stentor.engine.run_logger import finite

    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for p in predictions:
            file.write(json.dumps(vars(p), ensure_ascii=False) + "\n")
    temporary = place / f"{name}.json.tmp"
    temporary.write_text(json.dumps(finite(kept), indent=1, ensure_ascii=False), encoding="utf-8")
    temporary.replace(place / f"{name}.json")  # last, so that where it is there, both are whole


def _set_digest(config: Config, eval_set: EvalSet) -> str:
    """Changes when the set's records or the way they are scored do."""
    task = config.task
    facts: list[Any] = [task.model_dump(mode="json", serialize_as_any=True)]
    facts += sorted(
        [i.cut.id, round(i.cut.duration, 6), json.dumps(task.reference(i.cut), sort_keys=True, ensure_ascii=False)]
        for batch in eval_set.plan.epoch(0)
        for i in batch
    )
    return _digest(facts)


def _digest(facts: Sequence[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for fact in facts:
        digest.update(json.dumps(fact, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


@contextlib.contextmanager
def _randomness_kept() -> Iterator[None]:
    """Leaves the global random generators and a GPU's memory statistics as a run without this would have them."""
    import random

    import numpy as np
    import torch

    plain, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
