"""JSON lines: manifests, read line by line, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stentor.data.storage import NotFound, as_path, is_remote, is_web, name_of, open_read
from stentor.errors import DataError, MissingData, RecordError

if TYPE_CHECKING:
    from stentor.data.layouts.reading import Reading

MAX_PROBLEMS = 20
MAX_LINE = 2**24
"""Bytes of the longest line that is read; of a longer one no more is held in memory at a time."""
Record = TypeVar("Record")
LHOTSE = ("MonoCut", "MultiCut", "MixedCut")


def each_line(
    path: Path,
    make: Callable[[dict[str, Any], int, str], Record],
    unusable: Callable[[str, str, str], Record] | None = None,
    reading: Reading | None = None,
) -> Iterator[Record]:
    """`make(object, line number, "file:line")` for each JSON line, or each row of a `reading`. Those that hold what no
    record can hold (`RecordError`s) become `unusable("file:line", reason, message)`. Other errors of lines
    (`DataError`s of `make` included), and these too without `unusable`, are collected and raised at the end, or after
    `MAX_PROBLEMS`."""
    problems: dict[str, str] = {}
    empty, place = True, name_of(path)
    with open_text(path) if reading is None else reading.rows() as lines:
        parse: Callable[[Any, str], dict[str, Any]] = parse_object if reading is None else reading.parse
        unit = ":" if reading is None else reading.unit
        for number, line in lines.numbered() if reading is None else reading.regroup(lines.numbered()):
            if isinstance(line, str) and not line.strip():
                continue
            empty = False
            try:
                where, name = f"{place}{unit}{number}", f"{path.name}{unit}{number}"
                record = make(parse(line, where), number, where)
            except DataError as error:
                if unusable is not None and isinstance(error, RecordError):
                    yield unusable(name, error.reason, str(error))
                    continue
                problems[name] = str(error)
                if len(problems) == MAX_PROBLEMS and not lines.zipped:  # its end shows whether it is damaged
                    break
            else:
                yield record
    if unusable is not None and lines.damaged:  # these lines are damage, not records
        for name, message in problems.items():
            yield unusable(name, "unreadable", message)
    else:
        raise_problems(place, list(problems.values())[:MAX_PROBLEMS])
    if empty:
        raise DataError(f"{place} holds no records.")


def raise_problems(name: str, problems: list[str]) -> None:
    """Raise `DataError` that lists what is wrong with lines of a file, if anything is."""
    if problems:
        count = "1 line" if len(problems) == 1 else f"{len(problems)} lines"
        more = " (there may be more: reading stopped there)" if len(problems) == MAX_PROBLEMS else ""
        raise DataError(f"{name} has {count} that cannot be used{more}:\n  " + "\n  ".join(problems))


class TextLines:
    """The lines of an open UTF-8 file, from its beginning. `next` raises `RecordError` for a line that cannot be read,
    with its number; the call after it continues with the next line."""

    def __init__(self, path: Path, file: Any):
        self.path, self.file, self.number = name_of(path), file, 0
        self.zipped = isinstance(file, gzip.GzipFile)
        self.damaged = False
        """Whether a gzipped file was found to be damaged: lines may be other than they were written."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number += 1
        line = self._read()
        if not line:
            raise StopIteration
        try:
            return str(line, "utf-8" if self.number > 1 else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise RecordError(
                f"{self.path}:{self.number}: not UTF-8 text (byte {error.start + 1} of the line: {error.reason})."
            ) from None

    def _read(self) -> bytes:
        """The next line; empty at the end."""
        where = f"{self.path}:{self.number}"
        try:
            line = part = self.file.readline(MAX_LINE)
            size = len(line)
            while len(part) == MAX_LINE and part[-1:] != b"\n":
                part = self.file.readline(MAX_LINE)
                size += len(part)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.file, self.damaged = io.BytesIO(), True
            raise RecordError(
                f"{where}: the gzip file is damaged; what comes after line {self.number - 1} is lost ({error})."
            ) from None
        if size > MAX_LINE:
            raise RecordError(f"{where}: the line has {size:,} bytes; the maximum is {MAX_LINE:,}.")
        return line

    def numbered(self) -> Iterator[tuple[int, str | RecordError]]:
        """Each line with its number, or why it cannot be read."""
        while True:
            try:
                line: str | RecordError = next(self)
            except StopIteration:
                return
            except RecordError as error:
                line = error
            yield self.number, line


@contextmanager
def open_text(path: Path) -> Iterator[TextLines]:
    """The lines of a UTF-8 text file, gzipped or not. Raises `DataError` with advice when there is no such file."""
    if not is_remote(path):
        _check_readable(path)
    with open_read(path) as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]  # both kinds are buffered
        yield TextLines(path, gzip.GzipFile(fileobj=file) if zipped else file)


def _check_readable(path: Path) -> None:
    """Raise DataError for a local path that is no file to be read."""
    if not path.exists():
        raise not_found(path)
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
        hint = f"; it holds {', '.join(inside[:5])}" if inside else ""
        raise DataError(f"{path} is a folder, not a manifest{hint}.")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device, which can be read only once: write it to a file first.")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read: check its permissions.")


def not_found(path: Path) -> MissingData:
    """The error for a path that does not exist, with the nearest one that does."""
    import difflib

    if is_remote(path):
        return NotFound(f"{name_of(path)} does not exist: check the bucket and the path.", path)
    asked, parent = path, path.parent
    if not parent.is_dir():
        while not parent.is_dir():
            path, parent = parent, parent.parent
        problem = f"The folder {path} does not exist"
    else:
        problem = f"{path} does not exist"
    matches = difflib.get_close_matches(path.name, os.listdir(parent), 1, 0.5)
    return MissingData(f"{problem}{f' (did you mean {parent / matches[0]}?)' if matches else ''}.", asked)


def parse_object(line: str | RecordError, where: str) -> dict[str, Any]:
    """The JSON object in a line. Raises `DataError` for anything else, and `RecordError` for a line that could not be
    read and for values that no record can hold."""
    if isinstance(line, RecordError):
        raise line
    try:
        record = json.loads(line)
        if "\\ud" in line or "\\uD" in line:
            json.dumps(record, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from None
    except UnicodeEncodeError:
        raise RecordError(f"{where}: it holds half of a surrogate pair (\\ud800 to \\udfff).") from None
    except ValueError:  # Python converts 4,300 digits at most
        raise RecordError(f"{where}: it holds a number of more than 4,300 digits.") from None
    except RecursionError:
        raise RecordError(f"{where}: its lists or objects are nested too deeply.") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: each line must be a JSON object, got {line.strip()[:40]}.")
    return record


class FileIndex:
    """Existing files, by listing each folder once."""

    def __init__(self) -> None:
        self.folders: dict[str, set[str] | None] = {}

    def exist(self, path: str) -> bool:
        folder, name = os.path.split(path)
        if folder not in self.folders:
            self.folders[folder] = _names_in(as_path(folder))
        names = self.folders[folder]
        # The second look is for file systems that do not tell upper from lower case.
        return names is None or name in names or (not is_remote(folder) and os.path.exists(path))


def _names_in(folder: Path) -> set[str] | None:
    """Names in a folder. None for web servers, which list nothing: files count as present until they are read."""
    if is_web(folder):
        return None
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()
