"""Records in a manifest's form: from objects and rows whose keys are named otherwise."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stentor.data.layouts.reading import Columns
from stentor.errors import DataError, RecordError
from stentor.text.field_names import FIELD_NAMES, TIMES, fields_of

QWEN = re.compile(r"language ([^<]*)<asr_text>")
"""Beginning of a transcript in Qwen3-ASR's own layout."""
FUNASR = {"source": "audio_path", "target": "text"}
SOVITS = {"jp": "ja", "all_zh": "zh", "all_ja": "ja", "all_yue": "yue", "all_ko": "ko", "auto": "auto"}
"""GPT-SoVITS' names of languages that are no codes."""
_ANSWERS = ("assistant", "gpt", "model")


@dataclass
class Converter:
    """Makes records of rows. The same row always becomes the same record, whichever rows came before it."""

    columns: Columns = field(default_factory=dict)
    find: Callable[[str], str] | None = None
    """Gives the path of an audio file by its name in the table; None: names are paths."""
    foreign: Callable[[str], str] | None = None
    """As `find`, for paths of Windows in manifests."""
    written: bool = False
    """Whether values are written as text: cells of a table."""
    repaired: Counter[str] = field(default_factory=Counter)

    def __call__(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        if self.find is None and not self.columns and is_native(row):
            record = row
            if self.foreign is not None and "\\" in row["audio_path"]:
                record = {**row, "audio_path": self.foreign(row["audio_path"])}
        else:
            record = _from_chat(row) if isinstance(row.get("messages", row.get("conversations")), list) else dict(row)
            if FUNASR.keys() <= record.keys():
                record |= {name: record.pop(source) for source, name in FUNASR.items()}
            record = self._renamed(self._named(record), where)
            _set_duration(record, where)
            if self.find is not None and isinstance(record.get("audio_path"), str):
                record["audio_path"] = self.find(record["audio_path"])
        text = record.get("text")
        return self._without_prefix(record, text) if isinstance(text, str) and "<asr_text>" in text else record

    def _named(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with the keys that `columns` names under the names of their fields."""
        record = {key: value for key, value in record.items() if not self.written or value != ""}
        named = {}
        for name, source in self.columns.items():
            if (value := record.pop(str(source), None)) is not None:
                named[f"{name}_ms" if name in TIMES and str(source).lower().endswith("_ms") else name] = value
        return {**{key: value for key, value in record.items() if key not in self.columns}, **named}

    def _renamed(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        """The record with known other names replaced by a manifest's."""
        for name, source in fields_of(key for key, value in record.items() if value is not None).items():
            value = _chosen(record.pop(source))
            if name in TIMES:
                value = _seconds(value, source, where)
            elif name == "audio_path":
                value = _audio(value, source, where)
            elif name == "text" and isinstance(value, list) and all(isinstance(part, str) for part in value):
                if len(value) > 1:
                    self.repaired["several texts of one recording were joined"] += 1
                value = " ".join(value)
            elif name == "text" and isinstance(value, str):
                value = value.strip()
            elif name == "language" and isinstance(value, str):
                value = SOVITS.get(value.lower(), value)
            elif name in ("id", "speaker") and type(value) is int:
                value = str(value)
            elif name == "channel" and self.written and value.isdecimal():
                value = int(value)
            record[name] = value
        if isinstance(words := record.get("words"), str | int):  # a text in SpeechBrain, a number elsewhere
            del record["words"]
            if isinstance(words, str) and "text" not in record:
                record["text"] = words
            else:
                self.repaired["`words` holds no word times and is not read"] += 1
        return record

    def _without_prefix(self, record: dict[str, Any], text: str) -> dict[str, Any]:
        if (found := QWEN.match(text)) is None:
            return record
        self.repaired["`language ...<asr_text>` before the text, of Qwen3-ASR, is the record's language"] += 1
        language = "" if found[1].strip() == "None" else found[1].strip()
        more = {"language": language} if language and not record.get("language") else {}
        return {**record, **more, "text": text[found.end() :]}


def _chosen(value: Any) -> Any:
    """The value in what Label Studio writes: `{"choices": [...]}`, and in its tables a JSON list as text."""
    if isinstance(value, str) and value.startswith(('["', '{"choices":')):
        with suppress(ValueError):
            value = json.loads(value)
    choices = value.get("choices") if isinstance(value, dict) else None
    return choices[0] if isinstance(choices, list) and len(choices) == 1 else value


def _seconds(value: Any, name: str, where: str) -> Any:
    """A time in seconds; what is no number is left to the checks of records."""
    milliseconds = name.lower().endswith("_ms")
    if isinstance(value, str):
        try:
            value = float(value.strip().replace(",", "."))
        except ValueError:
            unit = "milliseconds" if milliseconds else "seconds"
            raise DataError(f"{where}: `{name}` must be a number of {unit}, got {value!r}.") from None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value / 1000, 6) if number and milliseconds else value


def _set_duration(record: dict[str, Any], where: str) -> None:
    """Put the duration in the place of the end of a record."""
    start, end = record.get("start", 0.0), record.pop("end", None)
    if record.get("duration") is not None or end is None:
        return
    if not isinstance(end, int | float) or not isinstance(start, int | float):
        raise DataError(f"{where}: start and end must be numbers of seconds, got {start!r} and {end!r}.")
    record |= {"start": start, "duration": round(end - start, 6)}
    if end < start:
        raise RecordError(f"{where}: it ends at {end:g} s, before its start at {start:g} s.", "wrong_range")


def is_native(row: dict[str, Any]) -> bool:
    """Whether an object is a record of a manifest already: it has an `audio_path`, and a text under its own name, or
    none at all."""
    if not isinstance(row.get("audio_path"), str):
        return False
    return "text" in row or "segments" in row or not any(row.get(name) for name in FIELD_NAMES["text"])


def _audio(value: Any, name: str, where: str) -> Any:
    """The path in a value that says which audio a record has."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and isinstance(inner := value.get("path") or value.get("url"), str):
        value = inner
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: `{name}` must be the path of one audio file, got {str(value)[:60]}.")
    parts = urlsplit(value := value.strip())
    if parts.path.startswith("/data/") and not parts.scheme and "d=" in parts.query:  # Label Studio's local files
        return parse_qs(parts.query)["d"][0]
    return unquote(value) if value.startswith("/data/upload/") else value.removeprefix("file://")


def _from_chat(row: dict[str, Any]) -> dict[str, Any]:
    """The record of a chat (ms-swift, LLaMA-Factory, Qwen2-Audio): the answer is the text, the question's audio the
    audio."""
    turns = row.get("messages", row.get("conversations"))
    record = {key: value for key, value in row.items() if key not in ("messages", "conversations")}
    for turn in turns if isinstance(turns, list) else ():
        turn = turn if isinstance(turn, dict) else {}
        content = turn.get("content", turn.get("value"))
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        parts = [part for part in parts if isinstance(part, dict)]
        if turn.get("role", turn.get("from")) in _ANSWERS:
            record["text"] = next((part["text"] for part in parts if part.get("type") == "text"), None)
        for part in parts:
            if part.get("type") == "audio":
                record["audio_path"] = part.get("audio_url") or part.get("audio") or part.get("path")
    return record
