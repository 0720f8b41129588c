"""Pages about conversion: the tables that set another program's names beside ours, and the keys of ours in them."""

import re
from pathlib import Path

from stentor.config.document import Mistakes
from stentor.config.load import load

KEY = r"name|output|(model|data|optim|schedule|train|losses|task)\.[\w.]+"


def text_of(name: str) -> str:
    return (Path(__file__).parents[1] / "docs" / name).read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """Both sides of each row of the tables; the first column is titled `heading`."""
    return [line.strip("|").split(" | ", 1) for line in text.splitlines() if re.match(rf"\| (?!{heading})", line)]


def columns(text: str, heading: str) -> tuple[list[str], list[str]]:
    """What is in backquotes in the left and in the right column of the tables."""
    left, right = (re.findall(r"`([^`]+)`", "\n".join(side)) for side in zip(*rows(text, heading), strict=True))
    return left, right


def mistakes(run: Path, override: str) -> str:
    """What is wrong with the run under this override; empty where nothing is."""
    try:
        load(run, [override])
    except Mistakes as error:
        return str(error)
    return ""


def is_unknown(message: str) -> bool:
    return "unknown key" in message or "there is no" in message
