"""Recognition of layouts: what a file of records is, by its content."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from stentor.audio.suffixes import is_audio
from stentor.data.jsonl import LHOTSE, MAX_PROBLEMS, TextLines, open_text, parse_object
from stentor.data.layouts.documents import DOCUMENTS, read_document
from stentor.data.layouts.kaldi import read_kaldi
from stentor.data.layouts.names import AudioNames, GivenNames
from stentor.data.layouts.reading import NATIVE, Columns, Reading
from stentor.data.layouts.records import FUNASR, QWEN, Converter, is_native
from stentor.data.layouts.tables import HEADERLESS, HEADERS, columns_of, recognise_table
from stentor.data.storage import name_of
from stentor.errors import DataError
from stentor.text.field_names import TIMES, fields_of
from stentor.text.transcript_formats import ENCODINGS, encoding_of

HEAD = 2**20
"""Bytes of a file by which its encoding is recognised."""
OBJECTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "Qwen3-ASR JSON lines": lambda row: bool(QWEN.match(str(row.get("text")))),
    NATIVE: is_native,
    "NeMo manifest": lambda row: "audio_filepath" in row,
    "chats of ms-swift, LLaMA-Factory or Qwen2-Audio": lambda row: bool({"messages", "conversations"} & row.keys()),
    "FunASR JSON lines": lambda row: FUNASR.keys() <= row.keys(),
    "JSON lines with other keys": lambda row: "audio_path" in fields_of(row),
}
"""Layouts of JSON lines, the first that fits counts."""
TABLES = (".csv", ".tsv", ".psv", ".jsonl", ".json", ".list", ".txt")
"""Endings of files that may be tables."""
LAYOUTS = (*OBJECTS, *DOCUMENTS, *HEADERS, *HEADERLESS, "table with a line of names")
"""Names of the layouts of files."""


def recognise(path: Path, columns: Columns | None = None, folder: Path | None = None) -> Reading:
    """The reading of a file, or of a folder, of records. `columns` names keys or columns that are called otherwise;
    names of audio files start from `folder`, or from the file's own. Raises `DataError` that lists the layouts and what
    was found for what is none of them."""
    if path.is_dir():
        return _recognise_folder(path, columns or {}, folder)
    base, head = path.parent if folder is None else folder, b""
    with open_text(path) as lines, suppress(EOFError, gzip.BadGzipFile, zlib.error):  # told when lines are read
        zipped = lines.zipped
        head = lines.file.read(HEAD)
    encoding = encoding_of(head)
    reading = Reading(
        NATIVE, path, base, partial(_lines, path, encoding), Converter(), by_line=not zipped and not encoding
    )
    reading.remarks = (f"Its text is {ENCODINGS[encoding]}, by what it holds.",) if encoding else ()
    return with_layout(reading, AudioNames(base, Counter()), columns or {})


def with_layout(reading: Reading, audio: AudioNames, columns: Columns) -> Reading:
    """The reading with the layout that its rows have. Raises as `recognise`."""
    with reading.rows() as opened:
        sample = [line for _, line in islice(opened.numbered(), audio.sample) if isinstance(line, str) and line.strip()]
    convert = Converter(columns, foreign=audio, repaired=audio.repaired)

    def parse(line: Any, where: str) -> dict[str, Any]:
        return convert(line if isinstance(line, dict) else parse_object(line, where), where)

    reading.parse, reading.repaired = parse, audio.repaired
    first = sample[0].lstrip("\ufeff \t") if sample else ""
    if not first or first.startswith(("{", "[")) or (reading.path.suffix == ".jsonl" and not columns):
        return _json(reading, sample, convert, audio)  # says what is no JSON
    if (table := recognise_table(sample, audio, columns)) is None:
        raise unknown(reading.path, first)
    by_number = dict(enumerate(table.names, 1))
    convert.columns = {k: by_number.get(v, str(v)) if isinstance(v, int) else v for k, v in columns.items()}
    convert.columns = convert.columns or table.columns
    if missing := [str(name) for name in convert.columns.values() if name not in table.names]:
        raise unknown(reading.path, ", ".join(table.names), missing)
    convert.find, convert.written = audio, True
    reading.layout, reading.first_line, reading.regroup = table.layout, table.first, table.rows
    reading.remarks += _held(table.columns)
    reading.parse = lambda row, where: convert(table.record(row, where), where)
    return reading


def _held(columns: Columns) -> tuple[str, ...]:
    names = " and the texts in ".join(f'"{name}"' for name in columns.values())
    return (f"The names of the recordings are in the column {names}, by what it holds.",) if columns else ()


@contextmanager
def _lines(path: Path, encoding: str | None) -> Iterator[TextLines]:
    """The lines of a text file in any encoding."""
    with open_text(path) as lines:
        if encoding is not None:
            try:
                lines.file = io.BytesIO(lines.file.read().decode(encoding).encode())
            except UnicodeError as error:
                problem = f"{name_of(path)}: its text is no {ENCODINGS[encoding]} ({error})"
                raise DataError(f"{problem}: save it as UTF-8.") from None
        yield lines


def _json(reading: Reading, sample: list[str], convert: Converter, audio: AudioNames) -> Reading:
    """The reading with the layout of JSON lines or of a JSON document."""
    rows: list[dict[str, Any]] = []
    for line in sample:
        with suppress(DataError):
            rows.append(parse_object(line, ""))
    document = None
    if not rows or (len(rows) == 1 and not any(fits(rows[0]) for fits in OBJECTS.values())):
        with reading.rows() as lines, suppress(UnicodeDecodeError):
            document = read_document(lines.file.read().decode("utf-8-sig"), name_of(reading.path))
    if document is not None:
        rows = [row for row in document.records if isinstance(row, dict)]
        reading.layout, reading.remarks = document.layout, (*reading.remarks, *document.remarks)
        reading.rows, reading.by_line, reading.unit = lambda: nullcontext(document), False, ": record "
    if not rows and isinstance(audio, GivenNames) and reading.path.suffix not in (".json", ".jsonl"):
        raise unknown(reading.path, sample[0] if sample else "")
    if not rows or any(row.get("type") in LHOTSE for row in rows):
        return reading
    keys = dict.fromkeys(key for row in rows[:MAX_PROBLEMS] for key in row)
    missing = [str(name) for name in convert.columns.values() if str(name) not in keys]
    cells = [[str(row.get(key) or "") for key in keys] for row in rows[: audio.sample]]
    kind = next((name for name, fits in OBJECTS.items() if any(map(fits, rows[:MAX_PROBLEMS]))), None)
    held = columns_of(list(keys), cells, audio) if kind is None and not convert.columns else {}
    if missing or (kind is None and "audio_path" not in convert.columns and held is None):
        raise unknown(reading.path, ", ".join(keys), missing)
    if document is None:
        reading.layout = kind or "JSON lines with other keys"
    convert.columns, reading.remarks = convert.columns or held or {}, reading.remarks + _held(held or {})
    if kind != NATIVE or convert.columns or document is not None or isinstance(audio, GivenNames):
        convert.find = audio
    elif ignored := [f"`{key}`" for key in fields_of(keys, TIMES).values() if key not in TIMES[:2]]:
        text = f"Not read beside `audio_path`: {', '.join(ignored)}; say what they are with `columns`."
        reading.remarks = (*reading.remarks, text)
    return reading


def _recognise_folder(path: Path, columns: Columns, folder: Path | None) -> Reading:
    """The reading of a Kaldi folder, or of the one table of a folder."""
    if (path / "wav.scp").is_file():
        return read_kaldi(path, folder)
    tables = tables_in(path, columns)
    if len(tables) != 1:
        found = ", ".join(table.name for table in tables)
        audio = f"for its audio alone `type=audio_folder,path={path}`"
        several = f"several tables of recordings: give one of {found}, or {audio}"
        raise DataError(f"{path}: the folder has {several if tables else f'no table of recordings; {audio}'}.")
    return replace(recognise(tables[0], columns, folder), by_line=False)


def tables_in(folder: Path, columns: Columns | None = None) -> list[Path]:
    """The files of records in a folder, but for those that belong to one recording beside them; only that with the name
    `metadata`, where there is one."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    stems = {file.stem for file in files if is_audio(file)}
    tables = [f for f in files if f.suffix.lower() in TABLES and f.stem not in stems and first_record(f, columns)]
    return [table for table in tables if table.stem == "metadata"] or tables


def first_lines(path: Path) -> list[str]:
    """The first lines with text of a file in any encoding."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    lines = head.decode(encoding_of(head) or "utf-8-sig", "replace").splitlines()
    return [line for line in lines if line.strip()][:MAX_PROBLEMS]


def is_table(path: Path) -> bool:
    """Whether a file that is no JSON is a table of recordings that is understood by itself."""
    try:
        return path.is_file() and not recognise(path).layout.startswith("JSON")
    except DataError:
        return False


def first_record(path: Path, columns: Columns | None = None) -> dict[str, Any] | None:
    """The first record of a file that can be read; None where its layout is not known."""
    try:
        records = recognise(path, columns).records()
        return next((record for record, _ in islice(records, MAX_PROBLEMS) if isinstance(record, dict)), None)
    except DataError:
        return None


class UnknownLayout(DataError):
    """A file of no known layout."""

    def __init__(self, message: str, begins: str):
        super().__init__(message)
        self.begins = begins


def unknown(path: Path, keys: str, missing: list[str] | None = None) -> UnknownLayout:
    """The error for a file of no known layout."""
    names = " or ".join(f"`{name}`" for name in missing or ())
    problem = (
        f"it has no {names}, which `columns` names" if names else "it has no `audio_path`, and no layout that is known"
    )
    return UnknownLayout(
        f"{name_of(path)}: {problem}. It begins with: {keys.strip()[:200]}. "
        "Say which is which with `columns`, such as `columns: {audio_path: file, text: words}`, or with numbers "
        f"from 1; on the command line `type=jsonl,path={name_of(path)},columns.audio_path=file,columns.text=words`. "
        f"Known layouts: {', '.join(LAYOUTS)}.",
        keys.strip()[:200],
    )
