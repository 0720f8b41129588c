"""Transcripts in files of all formats for recordings that come with them: no file is looked for, names are compared."""

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.jsonl import TextLines
from stentor.data.layouts.names import GivenNames
from stentor.data.layouts.reading import NATIVE, Reading
from stentor.data.layouts.recognise import UnknownLayout, with_layout
from stentor.data.layouts.records import Converter
from stentor.data.layouts.tables import Table
from stentor.errors import DataError
from stentor.text.field_names import fields_of
from stentor.text.subtitles import clock_seconds, subtitles
from stentor.text.transcript_formats import (
    MOST_PROBLEMS,
    ParsedEntries,
    Remark,
    TranscriptEntry,
    decoded,
    lines_of,
    stem,
    text_of,
    textgrid,
)

TIMED: dict[str, Callable[[str, str], ParsedEntries]] = {"srt": subtitles, "vtt": subtitles, "textgrid": textgrid}
"""Readers of (name, text) by the ending of a name."""
TABLES = ("csv", "tsv", "psv", "jsonl", "json")
"""Endings of files that are nothing else than tables."""
ENDINGS = ("txt", "lab", "list", *TABLES, *TIMED)
"""Endings of transcripts."""
_MOST_WORDS = 6
"""Words of a name of a recording that is not there."""
_PART = re.compile(r"(\S.{0,60}?)[ \t]+\(?((?:\d{1,2}:)?\d{1,2}:\d{2})\)?:?[ \t]*\n(.+)", re.DOTALL)
"""A part of a conversation, as Otter and Rev write it."""
_OF_SEGMENTS = ("text", "start", "end", "duration", "speaker", "language")
_ENDLESS = 1e9
"""Seconds that no recording has."""


@dataclass(frozen=True)
class Transcripts:
    """The transcripts of a file."""

    entries: list[TranscriptEntry]
    remarks: tuple[str, ...]
    """Sentences about what was recognised, assumed and taken out."""


def read_transcripts(name: str, data: bytes, recordings: Sequence[str] = ()) -> Transcripts:
    """The transcripts of a file. `recordings`: the names of those that they may belong to; an entry has the name of its
    recording as it is written, and none only in lists of texts. Raises DataError for what is wrong, each with its line,
    and where it is not clear which column names the recordings."""
    text, remarks = text_of(name, data)
    entries: list[TranscriptEntry] = []
    problems: list[str] = []
    names = GivenNames(recordings)
    for entry in _parsed(name, re.sub(r"\r\n?", "\n", text), names, names.has(stem(name))):
        if len(problems) == MOST_PROBLEMS:
            break
        if isinstance(entry, str):
            problems.append(entry)
        elif isinstance(entry, Remark):
            remarks.append(entry)
        elif wrong := _wrong_times(entry):
            problems.append(wrong)
        else:
            entries.append(entry)
    if problems:
        raise DataError("\n".join(problems))
    return Transcripts(entries, tuple(remark.text for remark in remarks))


def _wrong_times(entry: TranscriptEntry) -> str | None:
    start, end = 0.0 if entry.start is None else entry.start, entry.end
    if not 0 <= start < _ENDLESS or not 0 <= (end or 0) < _ENDLESS:
        return f"{entry.where}: start and end must be seconds from the beginning."
    if end is not None and end <= start:
        return f"{entry.where}: the end ({end:g} s) is not after the start ({start:g} s)."
    return None


def _parsed(name: str, text: str, names: GivenNames, own: bool) -> ParsedEntries:
    """All of a file. `own`: it has the name of a recording."""
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if not text.strip():
        return
    if read := TIMED.get(ending):
        yield from (replace(e, file=name) if isinstance(e, TranscriptEntry) else e for e in read(name, text))
    elif ending in ("txt", "lab") and (parts := _parts(name, text)):
        yield from parts
    elif ending in ("txt", "lab") and own and not _names_files(text, names):  # of one recording, on any number of lines
        yield TranscriptEntry(" ".join(text.split()), name, where=f"{name}:1")
    elif ending == "json" and (segments := _segments(text)):
        yield from _records(name, json.dumps(segments), names, name if own or "start" in segments[0] else None)
    else:
        try:
            yield from _records(name, text, names, name if own else None)
        except UnknownLayout as error:
            if ending not in TABLES:
                yield from _lines(name, text, names)
            elif (texts := _column(name, text, ending, names)) is not None:
                yield from texts
            else:
                yield _unclear(name, error.begins)


def _unclear(name: str, begins: str) -> str:
    return (
        f"{name}: it is not clear which column has the names of the recordings and which the texts; no text may get "
        f'to another one. It begins with: {begins}. Write "file" and "text" above these columns, in the first line.'
    )


def _segments(text: str) -> list[dict[str, Any]]:
    """The segments of one recording, as Whisper and we write them, or all of its text."""
    with suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict) and "audio_path" not in fields_of(document):
            segments = document.get("segments") or [document]
            if all(isinstance(s, dict) and isinstance(s.get("text"), str) for s in segments):
                return [{key: s[key] for key in fields_of(s, _OF_SEGMENTS).values()} for s in segments]
    return []


def _records(name: str, text: str, names: GivenNames, own: str | None) -> ParsedEntries:
    """The records of a table or JSON; those without a file are of the recording `own`."""
    path, data = Path(name), io.BytesIO
    reading = Reading(NATIVE, path, path.parent, lambda: nullcontext(TextLines(path, data(text.encode()))), Converter())
    for record, where in with_layout(reading, names, {}).records():
        if isinstance(record, DataError):
            yield str(record)
        elif not isinstance(said := record.get("text") or "", str):
            yield f"{where}: it has no text."
        else:
            times = [record.get(key) for key in ("start", "duration")]
            start, length = (v if isinstance(v, int | float) and not isinstance(v, bool) else None for v in times)
            end = None if start is None or length is None else start + length
            named = (record.get(key) for key in ("language", "speaker"))
            language, speaker = (v if isinstance(v, str) else None for v in named)
            file = next((f for f in (record.get("audio_path"), record.get("id")) if isinstance(f, str)), own)
            yield TranscriptEntry(said, file, start, end, language, speaker, where)
    yield from map(Remark, reading.notes)


def _column(name: str, text: str, ending: str, names: GivenNames) -> list[TranscriptEntry] | None:
    """The texts of a table of one column, with its name above it or not; None for another table, and for one whose
    lines may begin with names."""
    table = Table("", {"tsv": "\t", "psv": "|"}.get(ending, ","), ["text"])
    lines = [*table.rows(enumerate(io.StringIO(text), 1))] if ending in ("csv", "tsv", "psv") else []
    named = bool(lines) and "text" in fields_of([str(lines[0][1]).strip()])
    if (not named and _marked([str(line) for _, line in lines], table.mark)) or any(
        said and sure for _, line in lines for _, said, sure in [_name_of(str(line), names)]
    ):
        return None
    rows = ((n, line, f"{name}:{n}") for n, line in lines[named:])
    with nullcontext() if named else suppress(DataError):
        return [TranscriptEntry(table.record(line, where)["text"], where=where) for _, line, where in rows] or None
    return None


def _parts(name: str, text: str) -> list[TranscriptEntry]:
    """The parts of a conversation, each after a line with its speaker and its time, until the next one begins; none
    where a part has no such line."""
    blocks = [b for b in re.split(r"\n\s*\n", text.strip()) if not b.startswith("Transcribed by https://otter.ai")]
    parts = [match for block in blocks if (match := _PART.fullmatch(block))]
    if len(parts) < len(blocks):
        return []
    starts = [clock_seconds(part[2]) for part in parts]
    ends = dict(pairwise(sorted({*starts})))
    return [
        TranscriptEntry(
            " ".join(part[3].split()), name, start, ends.get(start), None, part[1], f"{name}, part {number}"
        )
        for number, (part, start) in enumerate(zip(parts, starts), 1)
    ]


def _lines(name: str, text: str, names: GivenNames) -> ParsedEntries:
    """Lines of text, in the order of the recordings. Where at least half of them begin with the name of a recording,
    all do: `name<tab>text`, `name|text`, `"name" text` or, with the longest name that fits, `name text` (Kaldi). A name
    that is a word counts only where all lines begin with different ones."""
    lines = [(f"{name}:{n}", line.strip()) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    found = [_name_of(line, names) for _, line in lines]
    hits = [first for first, said, _ in found if said]
    sure = sum(bool(said) and certain for _, said, certain in found)
    if sure * 2 >= min(len(lines), len(names.given) or len(lines)) > 0 or 1 < len(lines) == len(hits) == len(set(hits)):
        for (where, line), (first, said, _) in zip(lines, found):
            first, space, said = (first, " ", said) if first else line.partition(" ")
            problem = f"{where}: this line has no name of a recording before its text, as others have."
            yield TranscriptEntry(said, first, where=where) if space else problem
    elif _marked([line for _, line in lines]):
        yield _unclear(name, lines[0][1][:200])
    else:
        yield from (TranscriptEntry(line, where=where) for where, line in lines)


def _names_files(text: str, names: GivenNames) -> bool:
    """Whether a line begins with the name of a file."""
    found = (_name_of(re.sub(r"[\t|;,]", " ", line).strip(), names) for line in lines_of(text))
    return any(said and first.lower().endswith(AUDIO_SUFFIXES) for first, said, _ in found)


def _marked(lines: Sequence[str], but: str = "") -> bool:
    """Whether all lines have what stands between columns."""
    return bool(lines) and any(all(mark in line for line in lines) for mark in "\t|;" if mark != but)


def _name_of(line: str, names: GivenNames) -> tuple[str, str, bool]:
    """The name at the beginning of a line and the text after it, empty where there is none, and whether it is sure."""
    for mark in "\t|":
        first, _, said = (part.strip() for part in line.partition(mark))
        if mark in line and (names.has(first) or not (names.given or " " in stem(first))):
            return first, said if mark == "\t" else said.rpartition(mark)[2].strip() or said, True
    if (quoted := re.match(r'"([^"]+)"[\s,;:]*(.*)', line)) and names.has(quoted[1]):
        return quoted[1], quoted[2], True
    words, lengths = line.split(), names.lengths
    for count in (*lengths, *range(min(_MOST_WORDS, len(words)), 0, -1)):
        first = " ".join(words[:count]).rstrip(",;:")
        if first.lower().endswith(AUDIO_SUFFIXES) or (count in lengths and names.has(first)):
            return first, re.sub(r"^[-–—:=]\s", "", " ".join(words[count:])), not first.isalpha()
    return "", "", False


def text_lines(name: str, data: bytes) -> list[str]:
    """The lines of a text file that are not empty, or the texts of subtitles and of a TextGrid. Raises DataError."""
    if name.rpartition(".")[2].lower() in TIMED:
        lines = [entry.text for entry in read_transcripts(name, data).entries]
    else:
        lines = lines_of(decoded(name, data))
    return [line for line in (" ".join(line.split()) for line in lines) if line]


def table_texts(name: str, data: bytes) -> list[tuple[int, str]] | None:
    """(line, text) of the rows of a csv, tsv or jsonl file; None for another ending. Raises DataError."""
    if name.rpartition(".")[2].lower() not in ("csv", "tsv", "jsonl"):
        return None
    return [(int(e.where.rpartition(":")[2]), e.text) for e in read_transcripts(name, data).entries]
