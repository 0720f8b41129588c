"""Transcripts in tables and JSON for recordings that come with them: no file is looked for, only names are compared."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stentor.data.jsonl import parse_object
from stentor.data.layouts.records import Converter
from stentor.data.layouts.tables import SEPARATOR, TABLE, Table
from stentor.errors import DataError, RecordError
from stentor.text.field_names import fields_of
from stentor.text.transcript_formats import TIMED, ParsedEntries, TranscriptEntry, lines_of, read_entries, stem


def table_rows(name: str, text: str) -> ParsedEntries:
    """The rows of a table; without a line of names, it has a column for the text, or one for the file before it."""
    lines = [*enumerate(io.StringIO(text, newline=None), 1)]
    first = 2 if lines and re.fullmatch(SEPARATOR, lines[0][1].lower()) else 1
    head = lines[first - 1][1] if len(lines) >= first else ""
    table = Table("", max(TABLE, key=head.count), first=first)
    for number, line in table.rows(lines):
        where = f"{name}:{number}"
        try:
            if isinstance(line, RecordError):
                raise line
            cells = table.cells(line, where)
            if not table.names:
                named = "text" in fields_of(cells)
                if not named and len(cells) > 2:
                    yield f"{where}: no column is named text: name them in the first line, such as `file,text`."
                    return
                table.names = cells if named else ["file", "text"][-len(cells) :]
                if named:
                    continue
            if any(cell.strip() for cell in cells):
                yield _entry(Converter(written=True), table.record(line, where), where)
        except DataError as error:
            yield str(error)


def json_lines(name: str, text: str) -> ParsedEntries:
    for number, line in enumerate(lines_of(text), 1):
        if line.strip():
            try:
                yield _entry(Converter(), parse_object(line, where := f"{name}:{number}"), where)
            except DataError as error:
                yield str(error)


def json_document(name: str, text: str) -> ParsedEntries:
    """A list of records, or an object with `segments` (Whisper, and our own JSON): those of the file's own name."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield f"{name}:{error.lineno if isinstance(error, json.JSONDecodeError) else 1}: this is not JSON."
        return
    segments = document.get("segments") if isinstance(document, dict) else None
    for number, row in enumerate(segments or (document if isinstance(document, list) else [document]), 1):
        try:
            entry = _entry(Converter(), row, f"{name}, {'segment' if segments else 'record'} {number}")
            yield replace(entry, file=stem(name)) if segments else entry
        except DataError as error:
            yield str(error)


def _entry(convert: Converter, row: Any, where: str) -> TranscriptEntry:
    """The transcript of a row by the names of a manifest or known others. Raises DataError."""
    if not isinstance(row, dict):
        raise DataError(f'{where}: this is not a JSON object such as {{"audio_path": "a.wav", "text": "..."}}.')
    convert.find = str  # a name stays as it is
    record = convert(row, where)
    timed = fields_of((key for key, value in row.items() if value not in (None, "")), ("start", "end"))
    if not isinstance(text := record.get("text"), str) and not (convert.written and text is None):
        raise DataError(f"{where}: it has no `text`.")
    file, start, length = (record.get(key) for key in ("audio_path", "start", "duration"))
    times = [v if isinstance(v, int | float) and not isinstance(v, bool) else None for v in (start, length)]
    begin, end = times[0] or 0.0, None if times[1] is None or not timed else (times[0] or 0.0) + times[1]
    file = record.get("id") if file is None else file
    language, speaker = record.get("language"), record.get("speaker")
    return TranscriptEntry(
        text or "",
        stem(file) if isinstance(file, str) else None,
        begin if "start" in timed or end is not None else None,
        end,
        language if isinstance(language, str) else None,
        speaker if isinstance(speaker, str) else None,
        where,
    )


READERS: dict[str, Callable[[str, str], ParsedEntries]] = {
    "csv": table_rows,
    "tsv": table_rows,
    "jsonl": json_lines,
    "json": json_document,
    **TIMED,
}
"""Readers of (name, text) by the ending of a name; all other text is `plain_lines`."""


def table_texts(name: str, text: str) -> list[tuple[int, str]] | None:
    """(line, text) of the rows of a csv, tsv or jsonl file; None for another ending. Raises DataError."""
    ending = name.rpartition(".")[2].lower()
    if ending not in ("csv", "tsv", "jsonl"):
        return None
    return [(int(e.where.rpartition(":")[2]), e.text) for e in read_entries(READERS[ending](name, text))]
