"""Boards of speech synthesis: their lists, judges and the conditions of published figures (`speech_boards.yaml`)."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Judge:
    """A judge of a board and where it lies."""

    name: str
    hub: str
    """Its repository on the Hub."""
    path: str
    """File or folder in it; `.` is the whole repository."""
    files: tuple[str, ...]
    """Patterns of the files that it consists of."""
    section: dict[str, Any]
    """Keys of the evaluator besides `from`."""


@dataclass(frozen=True)
class SpeechBoard:
    """A list of texts to speak with the judges of its published figures."""

    name: str
    title: str
    hub: str
    """Data set on the Hub with the list and its audio."""
    lists: list[str]
    archive: str
    normalizer: str
    recognizers: dict[str, Judge]
    """By language code, and `other`."""
    judges: list[Judge]
    reports: dict[str, str]
    """By metric, the published figure."""
    transcripts: str | None = None
    items: int | None = None
    """Number of lines of the published list."""
    language: str | None = None
    differs: str = ""


@cache
def speech_boards() -> dict[str, SpeechBoard]:
    """The boards by name."""
    import yaml

    table = yaml.safe_load(resources.files(__package__).joinpath("speech_boards.yaml").read_text("utf-8"))
    judges = {name: _judge(**facts) for name, facts in table["judges"].items()}
    return {name: _board(name, table["data"], judges, facts) for name, facts in table["boards"].items()}


def _judge(name: str, hub: str, files: list[str] | None = None, **section: Any) -> Judge:
    path = section.pop("from")
    return Judge(name, hub, path, tuple(files or (path, f"{path}/*")), section)


def _board(name: str, hub: str, judges: dict[str, Judge], facts: dict[str, Any]) -> SpeechBoard:
    chosen = facts.pop("recognizer")
    by_language = {"other": chosen} if isinstance(chosen, str) else chosen
    recognizers = {code: judges[judge] for code, judge in by_language.items()}
    return SpeechBoard(name, hub=hub, recognizers=recognizers, judges=[judges[j] for j in facts.pop("judges")], **facts)
