"""Boards of speech synthesis: their lists, judges and the conditions of published figures (`speech_boards.yaml`)."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Judge:
    """A judge of a board; the table says what the fields are."""

    name: str
    section: dict[str, Any]
    hub: str = "k2-fsa/TTS_eval_models"
    path: str = "."
    files: list[str] | None = None


@dataclass(frozen=True)
class SpeechBoard:
    """A list of texts to speak with the judges of its published figures; the table says what the fields are."""

    name: str
    title: str
    lists: list[str]
    archive: str
    normalizer: str
    recognizers: dict[str, Judge]
    judges: list[Judge]
    reports: dict[str, str]
    hub: str = "k2-fsa/TTS_eval_datasets"
    transcripts: str | None = None
    items: int | None = None
    language: str | None = None
    differs: str = ""


@cache
def speech_boards() -> dict[str, SpeechBoard]:
    """The boards by name."""
    import yaml

    table = yaml.safe_load(resources.files(__package__).joinpath("speech_boards.yaml").read_text("utf-8"))
    judges = {name: Judge(**facts) for name, facts in table["judges"].items()}
    for facts in table["boards"].values():
        facts["recognizers"] = {code: judges[name] for code, name in facts["recognizers"].items()}
        facts["judges"] = [judges[name] for name in facts["judges"]]
    return {name: SpeechBoard(name, **facts) for name, facts in table["boards"].items()}
