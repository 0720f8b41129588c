"""Lines of `stentor speak --from`: texts of a JSONL file, each with what it wants."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.data.jsonl import open_text, parse_object
from stentor.data.storage import as_path
from stentor.errors import ConfigError, DataError
from stentor.inference.declarations import declarations
from stentor.inference.options import SpeechOptions
from stentor.sources.speech_list import REFERENCE_ALIASES


@dataclass
class TextLine:
    """One text of a file."""

    number: int
    record: dict[str, Any]
    problem: str | None = None  # why it cannot be spoken

    @property
    def id(self) -> str:
        return str(self.record.get("id", f"line{self.number:05d}"))


KINDS: dict[Any, tuple[type, ...]] = {str | None: (str,), int | None: (int,), float | None: (int, float)}
TYPES: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "text": (str,),
    **{field.name: KINDS[declared.read_as or field.type] for field, declared in declarations(SpeechOptions)},
}
"""Keys of a line that mean something here; null is as if the key were not there."""
ALIASES = REFERENCE_ALIASES | {"language_id": "language"}
"""OmniVoice's names."""
LONGEST_ID = 200
"""Bytes of an `id`: names of files have 255."""
IGNORED = ("speaker", "audio_path", "start", "words", "segments", "uem", "text_pinyin", "language_name")
"""Other keys of manifests and of OmniVoice's lists, which may stand there."""


def read_lines(path: str) -> list[TextLine]:
    """The lines of a JSONL file, each with its problem where it has one; empty lines are skipped.

    Raises ConfigError when the file cannot be read, DataError when it holds no line.
    """
    lines: list[TextLine] = []
    seen: dict[str, int] = {}
    try:
        with open_text(as_path(path)) as texts:
            written = [(number, line) for number, line in texts.numbered() if not isinstance(line, str) or line.strip()]
    except DataError as error:
        raise ConfigError(f"--from {error}") from None
    for number, text in written:
        where = f"{path}:{number}"
        try:
            record = parse_object(text, where)
        except DataError as error:
            lines.append(TextLine(number, {}, str(error).removeprefix(f"{where}: ")))
            continue
        line = TextLine(number, {key: value for key, value in record.items() if value is not None})
        problem = _rename(line.record) or _problem(line, seen)
        line.problem = problem and f"the line {problem}{'' if problem.endswith('?') else '.'}"
        lines.append(line)
    if not lines:
        raise DataError(f"--from {path} is empty: it holds one JSON object a line.")
    return lines


def _rename(record: dict[str, Any]) -> str | None:
    """Give `ALIASES` our names; what is wrong with the keys."""
    for alias, key in ALIASES.items():
        if alias in record and key in record:
            return f"has both `{key}` and `{alias}`, which mean the same"
        if alias in record:
            record[key] = record.pop(alias)
    for key in record:
        if key not in TYPES and key not in IGNORED:
            matches = difflib.get_close_matches(key, [*TYPES, *ALIASES], 1)
            hint = f"did you mean `{matches[0]}`?" if matches else f"known are {', '.join(TYPES)}"
            return f"has the key `{key}`, which means nothing here; {hint}"
    return None


def _problem(line: TextLine, seen: dict[str, int]) -> str | None:
    if "text" not in line.record:
        return "has no `text`"
    for key, kinds in TYPES.items():
        value = line.record.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            return f"has {json.dumps(value, ensure_ascii=False)[:40]} as `{key}`, which must be {_named(kinds)}"
    named = Path(line.id).name == line.id and line.id.isprintable() and len(line.id.encode()) <= LONGEST_ID
    if not line.id or not named or line.id.startswith("."):
        return f"has the id {line.id!r}, which is no name for a file"
    first = seen.setdefault(line.id.lower(), line.number)
    return None if first == line.number else f"has the id {line.id!r} of line {first}"


def _named(kinds: tuple[type, ...]) -> str:
    return {str: "text", int: "a whole number", float: "a number"}[kinds[-1] if kinds != (str, int) else str]
