"""Tables of text: comma, semicolon, tab and pipe between columns, with a line of names or without."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.layouts.names import AudioNames, GivenNames
from stentor.data.layouts.reading import Columns
from stentor.data.layouts.records import SOVITS
from stentor.errors import DataError, RecordError
from stentor.text.field_names import fields_of, plain_name
from stentor.text.languages import find

TABLE = {mark: f"table with {name} between columns" for mark, name in zip(",;\t|", ("`,`", "`;`", "tabs", "`|`"))}
HEADERS: dict[str, set[str]] = {
    "Common Voice": {"client_id", "path", "sentence"},
    "Coqui": {"audio_file", "text"},
    "SpeechBrain CSV": {"wav", "wrd"},
    "DeepSpeech CSV": {"wav_filename", "transcript"},
}
"""Tables that are known by names in their first line."""
HEADERLESS: dict[str, tuple[str, tuple[str, ...]]] = {
    "LJSpeech": ("|", ("audio_path", "raw_text", "text")),
    "Piper with speakers": ("|", ("audio_path", "speaker", "text")),
    "GPT-SoVITS list": ("|", ("audio_path", "speaker", "language", "text")),
    "ZipVoice": ("\t", ("id", "text", "audio_path")),
    "ZipVoice with times": ("\t", ("id", "text", "audio_path", "start", "end")),
}
"""Tables without a line of names: what stands between the columns, and the columns. Two columns, a file and its text,
are understood between all marks (Piper)."""
SEPARATOR = r"sep=.\r?\n?"
"""The line that Excel puts in front."""


@dataclass
class Table:
    """The marks and names by which the lines of a table are read."""

    layout: str
    mark: str
    names: Sequence[str] = ()
    """Name of each column."""
    first: int = 1
    """Number of the line of the first record."""
    columns: Columns = field(default_factory=dict)
    """Columns that were known by what they hold, not by their names."""

    def rows(self, lines: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, str | RecordError]]:
        """Each row with the number of its first line; cells in quotation marks may have several lines."""
        numbered = iter(lines)
        for number, line in numbered:
            quoted = isinstance(line, str) and self.mark in ",;" and line.count('"') % 2 == 1
            odd = quoted and re.search(rf'(?:^|{self.mark})\s*"(?:[^"]|"")*$', line) is not None  # not inches
            parts = [line]
            while odd and isinstance(more := next(numbered, (0, None))[1], str):
                parts.append(more)
                odd = more.count('"') % 2 == 0
            if not isinstance(line, str) or (number >= self.first and (line := "".join(parts)).strip()):
                yield number, line

    def cells(self, line: str, where: str = "") -> list[str]:
        """The cells of a row. Quotation marks enclose cells, but between tabs only whole ones, between pipes none."""
        line = line.rstrip("\r\n")
        if self.mark in "\t|":
            return [unquoted(cell) if self.mark == "\t" else cell for cell in line.split(self.mark)]
        try:
            return next(csv.reader([line], delimiter=self.mark, strict=True), [])
        except csv.Error as error:
            raise RecordError(f"{where}: {error}: is a quotation mark missing, or one too many?") from None

    def record(self, row: str | RecordError, where: str) -> dict[str, str]:
        """The cells of a row by the names of their columns. Raises DataError for a row that has others."""
        if isinstance(row, RecordError):
            raise row
        cells = self.cells(row, where)
        if any(cell.strip() for cell in cells[len(self.names) :]) or len(cells) < min(2, len(self.names)):
            hint = f" Put texts that hold {self.mark!r} in quotes." if self.mark in ",;" else ""
            raise DataError(f"{where}: {len(cells)} columns where the table has {len(self.names)}.{hint}")
        return {name: cell.strip() for name, cell in zip(self.names, cells)}


def recognise_table(lines: Sequence[str], audio: AudioNames, columns: Columns) -> Table | None:
    """The table that the first lines of a file belong to; None for a text that is no table of recordings, such as a
    list of texts to speak."""
    start = 1 if lines and re.fullmatch(SEPARATOR, lines[0].lower()) else 0
    for mark in TABLE:
        table, rows = Table(TABLE[mark], mark, first=start + 1), []
        for _, line in table.rows(enumerate(lines[start:], start + 1)):
            try:
                rows.append([cell.strip() for cell in table.cells(str(line))])
            except RecordError:  # told when it is read
                continue
        if not rows or len(rows[0]) < 2:
            continue
        head = rows[0]
        named = any(isinstance(value, str) and value in head for value in columns.values())
        if (held := {} if named else columns_of(head, rows[1:], audio)) is not None:
            names = {plain_name(name) for name in head}
            table.layout = next((name for name, needed in HEADERS.items() if needed <= names), table.layout)
            table.names, table.columns, table.first = head, held, start + 2
            return table
        if columns and all(isinstance(value, int) for value in columns.values()):
            table.names = [str(number) for number in range(1, max(map(len, rows)) + 1)]
            files = [row[at] for row in rows if (at := int(columns.get("audio_path", 1)) - 1) < len(row)]
            table.first += not _are_files(files, audio) and _are_files(files[1:], audio)
            return table
        if found := _headerless(rows, mark, audio):
            table.layout, table.names = found
            return table
    return None


def columns_of(head: Sequence[str], rows: Sequence[Sequence[str]], audio: AudioNames) -> Columns | None:
    """Columns that hold the files and texts; empty where their names say so, None where neither does. A column that
    holds names of recordings comes before one that is only called so. What is called otherwise is taken for the text
    where it alone is left and the recordings are known by name: people see then which text belongs to which."""
    known, given = fields_of(head), isinstance(audio, GivenNames)
    cells = [[row[i] for row in rows if i < len(row) and row[i]] for i in range(len(head))]
    files = [name for name, column in zip(head, cells) if column and _are_files(column, audio)]
    file = known.get("audio_path") if not files or known.get("audio_path") in files else None
    if file is not None and ("text" in known or len(known) == len(head)):
        return {}
    if file is None and len(files) == 1 and not (_are_files(head, audio) or re.search(r"\d", files[0])):
        file = files[0]
    left = [name for name in head if name != file and (name not in known.values() or name == known.get("text"))]
    text = known.get("text", left[0] if given and len(left) == 1 else None)
    if file is not None and text is not None:
        return {"audio_path": file, "text": text}
    alone = isinstance(audio, GivenNames) and (not audio.given or len(known) == len(head))
    return {} if alone and not files and "text" in known else None


def _headerless(rows: Sequence[Sequence[str]], mark: str, audio: AudioNames) -> tuple[str, tuple[str, ...]] | None:
    """Layout and columns of a table without a line of names, by what its first rows hold."""
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        return None
    cells = list(zip(*rows))
    files = [i for i in range(width) if _are_files(cells[i], audio)]
    ended = [i for i in files if all(cell.lower().endswith(AUDIO_SUFFIXES) for cell in cells[i])]
    files = ended or files
    if len(files) != 1:  # none, or also a reference of the voice
        return None
    if width == 2 and files == [0]:
        return f"{'Piper or LJSpeech' if mark == '|' else 'file and text'}, {TABLE[mark]}", ("audio_path", "text")
    fits = [name for name, (m, names) in HEADERLESS.items() if m == mark and len(names) == width]
    fits = [name for name in fits if HEADERLESS[name][1][files[0]] == "audio_path"]
    if len(fits) == 2:  # a text and its normalised form share words, or have no other; a speaker is one word
        pairs = [(set(a.lower().split()), set(b.lower().split())) for a, b in zip(cells[1], cells[2])]
        alike = sum(not b or bool(a & b) for a, b in pairs) * 2 >= len(pairs)
        fits = fits[:1] if alike else fits[1:] if all(len(a) < 2 for a, _ in pairs) else []
    if "GPT-SoVITS list" in fits and not all(find(c) or c.lower() in SOVITS for c in cells[2]):
        return None
    return (fits[0], HEADERLESS[fits[0]][1]) if fits else None


def _are_files(cells: Sequence[str], audio: AudioNames) -> bool:
    """Whether cells name audio files: by their endings, or without, half of them, by files that are there. A first one
    that alone names none is the name of the column."""
    named = [cell.lower().endswith(AUDIO_SUFFIXES) or audio.has(cell) for cell in cells]
    return sum(named) * 2 >= min(len(named), len(audio.given) or len(named)) and (named[0] or not all(named[1:]))


def unquoted(cell: str) -> str:
    """A cell without the quotation marks that enclose it as a whole."""
    inner = cell.strip()[1:-1]
    quoted = len(cell.strip()) > 1 and cell.strip()[0] == cell.strip()[-1] == '"'
    return inner.replace('""', '"') if quoted and '"' not in inner.replace('""', "") else cell
