"""JSON lines: manifests, read line by line, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from stentor.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord

MAX_PROBLEMS = 20
Record = TypeVar("Record")
LHOTSE = ("MonoCut", "MultiCut", "MixedCut")


def read_cuts(path: Path) -> Iterator[Cut | UnusableRecord]:
    """The records of a manifest as lhotse cuts. Raises `DataError` for lines that break the contract."""
    from stentor.data.cut import UnusableRecord, cut_from_record

    files = FileIndex()
    lines_of: dict[str, int] = {}  # id -> the line that gave it

    def make(record: dict[str, Any], number: int, where: str) -> Cut | UnusableRecord:
        if record.get("type") in LHOTSE:
            raise DataError(f"{where}: this is a lhotse cut; load the file with `type: manifest`.")
        cut = cut_from_record(record, path.parent, where)
        if cut.id in lines_of:
            if "id" in record:
                raise DataError(f"{where}: the id '{cut.id}' was already given in line {lines_of[cut.id]}.")
            cut.id = next(name for i in range(2, number + 2) if (name := f"{cut.id}#{i}") not in lines_of)
        lines_of[cut.id] = number
        if not isinstance(cut, UnusableRecord) and not files.exist(file := cut.recording.sources[0].source):
            return UnusableRecord(cut.id, "missing", f"{where}: the audio file {file} does not exist.")
        return cut

    yield from each_line(path, make)


def each_line(path: Path, make: Callable[[dict[str, Any], int, str], Record]) -> Iterator[Record]:
    """`make(object, line number, "file:line")` for each JSON line. Errors of lines (`DataError`s of `make` included)
    are collected and raised at the end, or after `MAX_PROBLEMS`."""
    problems: list[str] = []
    empty = True
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            empty = False
            try:
                where = f"{path}:{number}"
                record = make(_parse(line, where), number, where)
            except DataError as error:
                problems.append(str(error))
                if len(problems) == MAX_PROBLEMS:
                    break
            else:
                yield record
    raise_problems(str(path), problems)
    if empty:
        raise DataError(f"{path} holds no records.")


def raise_problems(name: str, problems: list[str]) -> None:
    """Raise `DataError` that lists what is wrong with lines of a file, if anything is."""
    if problems:
        count = "1 line" if len(problems) == 1 else f"{len(problems)} lines"
        more = " (perhaps more: reading stopped there)" if len(problems) == MAX_PROBLEMS else ""
        raise DataError(f"{name} has {count} that cannot be used{more}:\n  " + "\n  ".join(problems))


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The lines of a UTF-8 text file, gzipped or not. Raises `DataError` with the mend when there is none."""
    if not path.exists():
        raise not_found(path)
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
        hint = f"; it holds {', '.join(inside[:5])}" if inside else ""
        raise DataError(f"{path} is a folder, not a manifest{hint}.")
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if zipped else open(path, encoding="utf-8-sig") as lines:
            yield lines
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}: {error.reason}).") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a damaged gzip file: {error}.") from None


def not_found(path: Path) -> DataError:
    """The error for a path that does not exist, with the nearest one that does."""
    import difflib

    parent = path.parent
    if not parent.is_dir():
        while not parent.is_dir():
            path, parent = parent, parent.parent
        problem = f"The folder {path} does not exist"
    else:
        problem = f"{path} does not exist"
    matches = difflib.get_close_matches(path.name, os.listdir(parent), 1, 0.5)
    return DataError(f"{problem}{f' (did you mean {parent / matches[0]}?)' if matches else ''}.")


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: each line must be a JSON object, got {line.strip()[:40]}.")
    return record


class FileIndex:
    """Existing files, by listing each folder once."""

    def __init__(self) -> None:
        self.folders: dict[str, set[str]] = {}

    def exist(self, path: str) -> bool:
        folder, name = os.path.split(path)
        if folder not in self.folders:
            try:
                self.folders[folder] = set(os.listdir(folder or "."))
            except OSError:
                self.folders[folder] = set()
        # The second look is for file systems that do not tell upper from lower case.
        return name in self.folders[folder] or os.path.exists(path)
