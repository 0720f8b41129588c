"""Lists of the Open ASR Leaderboard: the sets of each board and where they lie on the Hub (`open_asr.yaml`)."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class BoardSet:
    """One test set of a board."""

    board: str
    name: str
    hub: str
    """Its data set on the Hub."""
    config: str
    split: str
    language: str
    column: str
    """Name in the board's tables."""
    group: str
    """Entry of the average, of which it is the only set or one of several."""
    sessions: str | None = None
    """For a set in chunks: the data set with one transcript for all chunks of a recording, which are scored
    together."""


@cache
def boards() -> dict[str, dict[str, BoardSet]]:
    """The sets of each board by name, in the order of the board's tables."""
    import yaml

    facts = yaml.safe_load(resources.files(__package__).joinpath("open_asr.yaml").read_text("utf-8"))
    return {
        board: {name: _set(board, name, **common | own) for name, own in common.pop("sets").items()}
        for board, common in facts.items()
    }


def _set(board: str, name: str, **facts: Any) -> BoardSet:
    usual = {"config": name, "split": "test", "column": name, "group": facts.get("column", name)}
    return BoardSet(board, name, **usual | facts)
