"""Transcript files that come with uploaded audio: pasted lines, txt, csv, jsonl, srt, TextGrid.

Each becomes a list of `TranscriptEntry`. Mistakes are reported with the file's name and the line. A stranger may have
written them: names in them are only compared with the names of the uploaded files.
"""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stentor.errors import ConfigError, DataError
from stentor.studio.dataset.subtitle_import import subtitles, textgrid
from stentor.studio.dataset.transcript_entry import ParsedEntries, TranscriptEntry, key, lines_of, stem
from stentor.studio.files import clean_text
from stentor.studio.phrases import checked_language

MOST_BYTES = 20 * 2**20
"""Bytes of the largest transcript file."""
MOST_LINES = 1_000_000
"""Lines of the longest transcript file."""
MOST_PROBLEMS = 20
_KEYS = {
    "text": ("text", "transcript", "transcription", "sentence", "normalized_text"),
    "file": ("audio_path", "audio", "file", "filename", "file_name", "path", "wav", "id"),
    "language": ("language", "language_id", "locale", "lang"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "start": ("start", "start_time", "begin"),
    "end": ("end", "end_time", "stop"),
    "duration": ("duration",),
}
"""Names of columns and JSON keys, the first that is there counts, by what they hold."""
TRANSCRIPTS = ("txt", "lab", "csv", "tsv", "jsonl", "json", "srt", "vtt", "textgrid")
"""Endings of the transcripts that are read."""


def parse(name: str, data: bytes, audio: Sequence[str] = ()) -> list[TranscriptEntry]:
    """The entries of a transcript file, by its name's ending; a name without an ending means lines of text.

    `audio`: names of the recordings; lines that begin with them (Kaldi, LibriSpeech) are those recordings' lines.
    Raises DataError that lists what is wrong, each with its line, and for a format that is not taken, ConfigError for a
    file that is too large.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{name} is larger than {MOST_BYTES // 2**20} MB: split it.")
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if ending and ending not in TRANSCRIPTS:
        raise DataError(
            f"{name} is no transcript that is taken: save it as txt, csv, tsv, jsonl, srt, vtt or TextGrid."
        )
    text = decoded(name, data)
    if text.count("\n") + text.count("\r") > MOST_LINES:
        raise ConfigError(f"{name} has more than {MOST_LINES} lines: split it.")
    readers = {
        "srt": subtitles,
        "vtt": subtitles,
        "textgrid": textgrid,
        "csv": _csv,
        "tsv": _csv,
        "jsonl": _jsonl,
        "json": _json,
    }
    problems: list[str] = []
    entries = []
    stems = {key(a) for a in audio}
    for entry in readers[ending](name, text) if ending in readers else _lines(name, text, stems):
        if isinstance(entry, TranscriptEntry):
            entry = _checked(entry)
        if isinstance(entry, str):
            problems.append(entry)
            if len(problems) == MOST_PROBLEMS:
                break
        elif entry.text:
            entries.append(entry)
    if problems:
        raise DataError("\n".join(problems))
    if not entries:
        raise DataError(f"{name} holds no transcript.")
    if ending in ("srt", "vtt", "textgrid"):
        entries = [replace(e, file=stem(name)) for e in entries]
    return entries


def table_texts(name: str, text: str) -> list[tuple[int, str]] | None:
    """(line, text) of the rows of a csv, tsv or jsonl file; None for another ending. Raises DataError."""
    reader = {"csv": _csv, "tsv": _csv, "jsonl": _jsonl}.get(name.rpartition(".")[2].lower())
    if reader is None:
        return None
    rows = list(reader(name, text))
    if problems := [m for m in rows if isinstance(m, str)]:
        raise DataError("\n".join(problems[:MOST_PROBLEMS]))
    return [(int(e.where.rpartition(":")[2]), e.text) for e in rows if isinstance(e, TranscriptEntry)]


def _checked(entry: TranscriptEntry) -> TranscriptEntry | str:
    """The entry with its text and language as they are kept, or what is wrong with it."""
    try:
        entry = replace(entry, text=clean_text(entry.text), language=checked_language(entry.language))
    except ConfigError as error:
        return f"{entry.where}: {error}"
    if entry.start is None and entry.end is not None:
        entry = replace(entry, start=0.0)
    times = [t for t in (entry.start, entry.end) if t is not None]
    try:
        fine = all(math.isfinite(t) and t >= 0 for t in times)
    except OverflowError:
        fine = False
    if not fine:
        return f"{entry.where}: start and end must be seconds from the beginning."
    if entry.start is not None and entry.end is not None and entry.end <= entry.start:
        return f"{entry.where}: the end ({entry.end:g} s) is not after the start ({entry.start:g} s)."
    return entry


@dataclass(frozen=True)
class Matched:
    """What belongs together, and what is left over."""

    clips: list[tuple[int, TranscriptEntry]]
    """(index of the recording, its transcript)."""
    bare: list[int]
    """Recordings without a transcript."""
    left: list[TranscriptEntry]
    """Transcripts without a recording."""


def match(audio: Sequence[str], entries: Sequence[TranscriptEntry]) -> Matched:
    """Give each transcript to its recording: by name where the entries have one, else in order.

    Raises DataError when entries without names are not as many as recordings, and for names that two recordings share.
    """
    named = [e for e in entries if e.file is not None]
    places = {key(name): i for i, name in enumerate(audio)}
    if named and len(places) < len(audio):
        counts = Counter(key(a) for a in audio)
        doubled = sorted({stem(a) for a in audio if counts[key(a)] > 1})
        raise DataError(
            f"Several recordings are named {', '.join(doubled[:5])}: rename them, for each to get its text."
        )
    clips = [(places[key(e.file)], e) for e in named if key(e.file) in places]  # type: ignore[arg-type]
    # Subtitles of the only recording need not have its name.
    if named and not clips and len(audio) == 1 and all(e.start is not None for e in named):
        clips = [(0, e) for e in named]
    taken = {i for i, _ in clips}
    plain = [e for e in entries if e.file is None]
    free = [i for i in range(len(audio)) if i not in taken]
    if plain:
        if len(plain) != len(free):
            raise DataError(
                f"There are {len(plain)} lines of text for {len(free)} recordings: give one line for each, in the same "
                "order, or put the file's name in front (name, tab, text)."
            )
        clips += list(zip(free, plain, strict=True))
        free = []
    used = {id(e) for _, e in clips}
    left = [e for e in entries if id(e) not in used]
    return Matched(sorted(clips, key=lambda c: (c[0], c[1].start or 0.0)), free, left)


def decoded(name: str, data: bytes) -> str:
    """The text of a file in UTF-8, or UTF-16 with its mark, which Praat and spreadsheets write. Raises DataError with
    the line that is neither."""
    code = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(code).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{name}:{line}: this is not UTF-8 text; save the file as UTF-8.") from None
    if "\0" in text:
        raise DataError(f"{name}:{text[: text.index(chr(0))].count(chr(10)) + 1}: this is not a text file.")
    return text


def _lines(name: str, text: str, stems: set[str]) -> ParsedEntries:
    """A line for each recording; `name<tab>text`, `name|text` (LJSpeech) or `name text` (Kaldi) where every line has
    it, with a name that ends like an audio file or holds no space, or, before a space, that is a recording's."""
    lines = [(n, line.strip()) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    for mark in ("\t", "|", " "):
        parts = [line.partition(mark) for _, line in lines]
        firsts = [first.strip() for first, _, _ in parts]
        if mark == " ":
            named = all(key(first) in stems for first in firsts)
        else:
            named = all(
                separator and first and " " not in stem(first) for first, (_, separator, _) in zip(firsts, parts)
            )
        if lines and named:
            for (n, _), first, (_, _, after) in zip(lines, firsts, parts, strict=True):
                # LJSpeech has the normalised text in a third column.
                sentence = after if mark == " " else after.rpartition(mark)[2] or after
                yield TranscriptEntry(sentence, stem(first), where=f"{name}:{n}")
            return
    for n, line in lines:
        yield TranscriptEntry(line, where=f"{name}:{n}")


def _csv(name: str, text: str) -> ParsedEntries:
    first, _, rest = text.partition("\n")
    before = 0
    if re.fullmatch(r"sep=.\r?", first.lower()):  # what Excel puts in front
        text, before, first = rest, 1, rest.partition("\n")[0]
    mark = max(",;\t|", key=first.count)
    # Between tabs, quotation marks mostly mean themselves (Common Voice); spreadsheets still quote whole cells.
    tabs = mark == "\t"
    rows = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=mark,
        strict=not tabs,
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
    )
    try:
        table = [(rows.line_num + before, row) for row in rows if any(cell.strip() for cell in row)]
    except csv.Error as error:
        yield f"{name}:{rows.line_num + before}: {error}: is a quotation mark missing, or one too many?"
        return
    if not table:
        return
    if tabs:
        table = [(number, [_unquoted(cell) for cell in row]) for number, row in table]
    head = [cell.strip().lower() for cell in table[0][1]]
    column = {field: next((head.index(n) for n in names if n in head), None) for field, names in _KEYS.items()}
    if column["text"] is None:
        widths = {len(row) for _, row in table}
        if widths not in ({1}, {2}):
            yield f"{name}:1: no column is named text: name them in the first line, such as `file,text`."
            return
        column |= {"text": max(widths) - 1, "file": 0 if widths == {2} else None}
    else:
        table = table[1:]
    for number, row in table:
        where = f"{name}:{number}"
        cells = {field: row[i].strip() if i < len(row) else "" for field, i in column.items() if i is not None}
        if len(row) <= column["text"]:
            yield f"{where}: this line has {len(row)} columns and none for the text."
            continue
        if any(cell.strip() for cell in row[len(head) :]):
            yield (
                f"{where}: this line has {len(row)} columns, the first has {len(head)}: put texts that hold {mark!r} "
                "in quotes."
            )
            continue
        try:
            times = {k: float(cells[k].replace(",", ".")) if cells.get(k) else None for k in ("start", "end")}
        except ValueError:
            yield f"{where}: start and end must be seconds."
            continue
        file = stem(cells["file"]) if cells.get("file") else None
        language, speaker = cells.get("language") or None, cells.get("speaker") or None
        yield TranscriptEntry(cells["text"], file, times["start"], times["end"], language, speaker, where)


def _unquoted(cell: str) -> str:
    inner = cell.strip()[1:-1]
    quoted = len(cell.strip()) > 1 and cell.strip()[0] == cell.strip()[-1] == '"'
    return inner.replace('""', '"') if quoted and '"' not in inner.replace('""', "") else cell


def _jsonl(name: str, text: str) -> ParsedEntries:
    for number, line in enumerate(lines_of(text), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield _entry(row, f"{name}:{number}")


def _json(name: str, text: str) -> ParsedEntries:
    """A list of records, or an object with `segments` (Whisper, and our own JSON): those of the file's own name."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield f"{name}:{getattr(error, 'lineno', 1)}: this is not JSON."
        return
    if isinstance(document, dict) and isinstance(document.get("segments"), list):
        for number, row in enumerate(document["segments"], 1):
            entry = _entry(row, f"{name}, segment {number}")
            yield entry if isinstance(entry, str) else replace(entry, file=stem(name))
        return
    for number, row in enumerate(document if isinstance(document, list) else [document], 1):
        yield _entry(row, f"{name}, record {number}")


def _entry(row: Any, where: str) -> TranscriptEntry | str:
    """A JSON record as an entry, or what is wrong with it."""
    if not isinstance(row, dict):
        return f'{where}: this is not a JSON object such as {{"audio_path": "a.wav", "text": "..."}}.'
    text, file = _pick(row, "text"), _pick(row, "file")
    if not isinstance(text, str):
        return f"{where}: it has no `text`."
    start, end, length = (
        v if isinstance(v := _pick(row, field), int | float) and not isinstance(v, bool) else None
        for field in ("start", "end", "duration")
    )
    if start is not None and end is None and length is not None:
        end = start + length
    language, speaker = (
        str(v) if isinstance(v := _pick(row, field), str | int) else None for field in ("language", "speaker")
    )
    return TranscriptEntry(text, stem(file) if isinstance(file, str) else None, start, end, language, speaker, where)


def _pick(row: dict[str, Any], field: str) -> Any:
    return next((row[name] for name in _KEYS[field] if row.get(name) is not None), None)
