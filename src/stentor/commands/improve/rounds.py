"""Rounds: which comes next, which one is the best, and the file that says that a round is done."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stentor.pipeline.journal import write_json

FILE = "round.json"
"""Written last in the folder of a round: where it is there, the round is done."""


@dataclass
class Round:
    """Ingredients and results of a round, as in its `round.json` and in results.json."""

    number: int
    kept: bool
    """Whether it is better than the best one before; round 0 always is."""
    eval: dict[str, dict[str, Any]]
    """Scores of its model by set, as in results.json of a run."""
    change: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Relative change from the best round before, by metric, with a paired interval, on the set that decides."""
    entered: dict[str, dict[str, float]] = field(default_factory=dict)
    """Records and hours by kind: human, pseudo, synthetic."""
    left: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Records and hours that were left out, by kind and reason."""
    mix: dict[str, float] | None = None
    """The ratio of the kinds in its training."""
    sweep: list[dict[str, Any]] = field(default_factory=list)
    """Ratios that were tried, with their scores on the set that decides."""
    seconds: float = 0.0
    """Duration, including labelling and speech; for a round that was stopped, since it resumed."""
    settings: str = ""
    """Digest of the settings that it was made with."""


def round_folder(folder: Path, number: int) -> Path:
    return folder / f"round-{number}"


def finished_rounds(folder: Path) -> list[Round]:
    """The rounds that are done, from round 0 on."""
    rounds: list[Round] = []
    while (path := round_folder(folder, len(rounds)) / FILE).is_file():
        rounds.append(Round(**json.loads(path.read_text(encoding="utf-8"))))
    return rounds


def best_round(rounds: Sequence[Round]) -> Round | None:
    """The last one that was kept; None before round 0."""
    return next((r for r in reversed(rounds) if r.kept), None)


def why_ended(rounds: Sequence[Round], most: int, patience: int | None) -> str | None:
    """Reason why there is no further round, in a sentence; None where there is one. `patience` None: it does not
    count."""
    if not rounds:
        return None
    without_gain = rounds[-1].number - (best_round(rounds) or rounds[0]).number
    if patience is not None and without_gain >= patience:
        count = "The last round" if without_gain == 1 else f"The last {without_gain} rounds"
        return f"{count} gained nothing (`improve.patience`)."
    if rounds[-1].number >= most:
        return "All rounds are done (`improve.rounds`)."
    return None


def run_rounds(
    folder: Path,
    do: Callable[[int, Round | None], Round],
    most: int,
    patience: int | None,
    after: Callable[[list[Round]], None],
) -> tuple[list[Round], str]:
    """Do the rounds that are not done yet, one that was begun in any case; answers all and why they ended.

    `do(number, best)` does one, and resumes where it was stopped; `after(rounds)` is called after each, and once for
    those that were done before.
    """
    rounds = finished_rounds(folder)
    if rounds:
        after(rounds)
    while (why := why_ended(rounds, most, patience)) is None or round_folder(folder, len(rounds)).exists():
        number = len(rounds)
        done = do(number, best_round(rounds))
        write_json(round_folder(folder, number) / FILE, asdict(done))
        rounds.append(done)
        after(rounds)
    return rounds, why
