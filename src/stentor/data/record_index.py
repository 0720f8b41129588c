"""Record index: where each line of a manifest lies, so that records are read one at a time and none is held in memory.

The folder MANIFEST.index holds `records.npy` (16 bytes a record) and `index.json`: counts, seconds and languages, and
what tells whether the manifest is still the one that was indexed. Records stand in the order of the manifest, but for
those of each language together. A source that selects some of the records has an index of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.cut import UnusableRecord, check_text_fields, cut_from_record
from stentor.data.fields import seconds_field
from stentor.data.jsonl import LHOTSE, MAX_LINE, MAX_PROBLEMS, TextLines, open_text, raise_problems
from stentor.data.layouts.reading import Columns, Reading
from stentor.data.layouts.recognise import recognise
from stentor.data.storage import is_remote, upload
from stentor.data.storage_cache import local_copy
from stentor.data.system import open_to_read, read_at
from stentor.errors import DataError, RecordError
from stentor.text.languages import known_code

if TYPE_CHECKING:
    from lhotse.cut import Cut

RECORD = np.dtype([("offset", "<u8"), ("size", "<u4"), ("seconds", "<f4")])
"""A line of the manifest, in bytes, and its length; 0 seconds for what cannot be used."""
VERSION = 1
BLOCK = 500_000
"""Records that are held in memory while an index is made."""
SAMPLED = 16
"""Blocks of 64 KiB, evenly spread, by which a manifest is known again."""


@dataclass(frozen=True)
class Part:
    """The records of one language in an index."""

    first: int
    count: int
    seconds: float


@dataclass(frozen=True)
class RecordFilter:
    """Records of a manifest that are indexed: of those that are wanted all but the first `skip`, at most `limit`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that decide this, for JSON; empty: all are."""
    wanted: Callable[[Cut | UnusableRecord], bool] | None = None
    skip: int = 0
    limit: int | None = None
    audio_folder: Path | None = None
    """Folder that relative paths start from. None: the manifest's."""
    columns: Columns = field(default_factory=dict)
    """Columns or keys that are named otherwise, see `recognise`."""


UNFILTERED = RecordFilter()


def index_folder(manifest: Path, record_filter: RecordFilter = UNFILTERED) -> Path:
    """Where the index of a manifest lies."""
    if not record_filter.settings:
        return manifest.with_name(f"{manifest.name}.index")
    content = json.dumps(record_filter.settings, sort_keys=True).encode()
    return manifest.with_name(f"{manifest.name}.{hashlib.blake2b(content, digest_size=4).hexdigest()}.index")


class RecordIndex:
    """An index that was made by `build_index`. Raises `DataError` when it is damaged, or of another manifest."""

    def __init__(self, manifest: Path, record_filter: RecordFilter = UNFILTERED):
        self.manifest, self.folder = manifest, index_folder(manifest, record_filter)
        self.reading = _by_line(manifest, record_filter)
        keys = "".join(f",{key}={json.dumps(value)}" for key, value in record_filter.settings.items())
        command = f"stentor prepare index {shlex.quote(f'{manifest}{keys}')}"
        fix = f"run `{command}` again, or delete that folder to list the records in memory"
        try:
            header = json.loads((self.folder / "index.json").read_bytes())
            self._places = local_copy(manifest), local_copy(self.folder / "records.npy")
            self.records: np.ndarray = np.load(self._places[1], mmap_mode="r")
            self.content = str(header["content"])
            self.parts = {language: Part(**part) for language, part in header["languages"].items()}
            if header["version"] != VERSION or len(self.records) != header["records"] or self.records.dtype != RECORD:
                raise ValueError("it is incomplete or of another version")
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"The index {self.folder} cannot be read ({error}): {fix}.") from None
        if header["manifest"] != identity(self._places[0]):
            raise DataError(f"{manifest} has changed since its index {self.folder} was made: {fix}.")
        self._files: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def seconds(self) -> np.ndarray:
        """Length of each record, float32 [records]."""
        return self.records["seconds"]

    def cuts(self, numbers: np.ndarray) -> Iterator[Cut | UnusableRecord]:
        """The records of these numbers. A line that breaks the contract is an `UnusableRecord`."""
        lines, rows_file = self._open()
        width, start = RECORD.itemsize, int(self.records.offset)  # type: ignore[attr-defined]
        # Not through the map: what is touched there brings megabytes around it into the process's memory.
        read = b"".join(read_at(rows_file, width, start + width * number) for number in numbers.tolist())
        rows = np.frombuffer(read, RECORD)
        places = list(zip(rows["offset"].tolist(), rows["size"].tolist()))
        for offset, size in places if sys.platform == "linux" else ():
            os.posix_fadvise(lines, offset, size, os.POSIX_FADV_WILLNEED)  # read by the disk side by side
        for offset, size in places:
            yield self._cut(read_at(lines, min(size, MAX_LINE), offset), offset, size)

    def _open(self) -> tuple[int, int]:
        """Descriptors of the manifest and of the rows, which are read here and there."""
        if self._files is None:
            lines, rows = self._places
            self._files = open_to_read(lines), open_to_read(rows)
            for file in self._files if sys.platform == "linux" else ():
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return self._files

    def _cut(self, data: bytes, offset: int, size: int) -> Cut | UnusableRecord:
        where = f"{self.manifest} at byte {offset}"
        try:
            if size > MAX_LINE:
                raise RecordError(f"{where}: the line has {size:,} bytes; {MAX_LINE:,} are the most.")
            return cut_from_record(self.reading.parse(str(data, "utf-8-sig"), where), self.reading.folder, where)
        except UnicodeDecodeError:
            return UnusableRecord(f"{self.manifest.name}@{offset}", "unreadable", f"{where}: not UTF-8 text.")
        except DataError as error:
            reason = error.reason if isinstance(error, RecordError) else "unreadable"
            return UnusableRecord(f"{self.manifest.name}@{offset}", reason, str(error))


def build_index(
    manifest: Path,
    record_filter: RecordFilter = UNFILTERED,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> RecordIndex:
    """Make the index of a manifest, in the place of an older one; `report` takes the bytes that are done, of how many.
    What a killed command leaves is not an index: the next one starts again. Raises `DataError` for manifests without
    random access and for lines that break the contract."""
    local, folder = local_copy(manifest), index_folder(manifest, record_filter)
    remote = is_remote(manifest)
    draft = Path(tempfile.mkdtemp()) / "index" if remote else folder.with_name(folder.name + ".tmp")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with open_text(local) as lines:
            if lines.zipped:
                raise DataError(f"{manifest} is gzipped, and has no places to jump to: unpack it and index that file.")
            reading = _by_line(manifest, record_filter)
            draft.mkdir()
            before = identity(local)
            parts = _Parts(draft)
            rows = _rows(lines, reading, record_filter, report)
            end = None if record_filter.limit is None else record_filter.skip + record_filter.limit
            for row in islice(rows, record_filter.skip, end):
                parts.add(*row)
        parts.flush()
        if not parts.parts:
            raise DataError(f"{manifest} holds no records{' that its source wants' if record_filter.settings else ''}.")
        write_header(draft, before, parts.join(), parts.parts, record_filter)
        if remote:
            for name in ("records.npy", "index.json"):
                upload(draft / name, folder / name)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return RecordIndex(manifest, record_filter)


def _by_line(manifest: Path, record_filter: RecordFilter) -> Reading:
    """The manifest's reading, whose lines can be read alone. Raises DataError."""
    reading = recognise(manifest, record_filter.columns, record_filter.audio_folder)
    if not reading.by_line:
        raise DataError(
            f"{manifest} ({reading.layout}) has no records that are single lines of UTF-8 text, which an index needs: "
            "write it as JSON lines first, such as with `stentor prepare check --write`."
        )
    return reading


def write_header(
    folder: Path,
    manifest: dict[str, Any],
    content: str,
    parts: Mapping[str, Part],
    record_filter: RecordFilter = UNFILTERED,
) -> None:
    """Write index.json beside records.npy."""
    header = {
        "version": VERSION,
        "manifest": manifest,
        "filter": dict(record_filter.settings),
        "records": sum(part.count for part in parts.values()),
        "seconds": sum(part.seconds for part in parts.values()),
        "content": content,
        "languages": {language: asdict(part) for language, part in parts.items()},
    }
    (folder / "index.json").write_text(json.dumps(header, indent=1, ensure_ascii=False), encoding="utf-8")


def _rows(
    lines: TextLines, reading: Reading, record_filter: RecordFilter, report: Callable[[int, int], None]
) -> Iterator[tuple[str, int, int, float]]:
    """(language, offset, size, seconds) of each record that is wanted; of one that cannot be used 0 seconds."""
    problems: list[str] = []
    end, total = 0, os.fstat(lines.file.fileno()).st_size
    wanted, folder, manifest = record_filter.wanted, reading.folder, reading.path
    for number, line in lines.numbered():
        start, end = end, lines.file.tell()
        if number < reading.first_line or (isinstance(line, str) and not line.strip()):
            continue
        if number % BLOCK == 0:
            report(end, total)
        where = f"{manifest}:{number}"
        try:
            record = reading.parse(line, where)
            language, seconds = _facts(record, folder, where)
            if wanted is None or wanted(cut_from_record(record, folder, where)):
                yield language, start, end - start, seconds
        except RecordError:  # counted where it is read
            yield "", start, end - start, 0.0
        except DataError as error:
            problems.append(str(error))
            if len(problems) == MAX_PROBLEMS:
                break
    raise_problems(str(manifest), problems)
    report(total, total)


def _facts(record: dict[str, Any], folder: Path, where: str) -> tuple[str, float]:
    """Language and seconds of a record."""
    if record.get("type") in LHOTSE:
        raise DataError(f"{where}: this is a lhotse cut; only manifests of plain records can be indexed.")
    path, seconds = record.get("audio_path"), seconds_field(record, "duration", where)
    if seconds is None or not isinstance(path, str) or not path:
        cut = cut_from_record(record, folder, where)  # it looks into the audio file, or says what is wrong
        seconds = 0.0 if isinstance(cut, UnusableRecord) else cut.duration
    check_text_fields(record, where)
    language = record.get("language") or record.get("language_id")
    return known_code(language) if language else "", seconds


class _Parts:
    """Rows of each language in a file of its own, and then all of them in one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[str, list[tuple[int, int, float]]] = {}
        self.parts: dict[str, Part] = {}
        self.files: dict[str, Path] = {}
        self.num_held = 0

    def add(self, language: str, offset: int, size: int, seconds: float) -> None:
        self.rows.setdefault(language, []).append((offset, size, seconds))
        self.num_held += 1
        if self.num_held == BLOCK:
            self.flush()

    def flush(self) -> None:
        for language, rows in self.rows.items():
            file = self.files.setdefault(language, self.folder / f"{len(self.files)}.part")
            with file.open("ab") as out:
                np.array(rows, RECORD).tofile(out)
            known = self.parts.get(language, Part(0, 0, 0.0))
            self.parts[language] = Part(0, known.count + len(rows), known.seconds + sum(row[2] for row in rows))
        self.rows, self.num_held = {}, 0

    def join(self) -> str:
        """Write records.npy, languages in alphabetical order. Returns a hash of it."""
        count, first, digest = sum(part.count for part in self.parts.values()), 0, hashlib.blake2b(digest_size=16)
        records = np.lib.format.open_memmap(self.folder / "records.npy", "w+", RECORD, (count,))
        for language in sorted(self.parts):
            part = self.parts.pop(language)
            self.parts[language] = replace(part, first=first)
            rows = np.memmap(self.files[language], RECORD, "r")
            records[first : first + part.count] = rows
            digest.update(rows)  # type: ignore[arg-type]
            first += part.count
            self.files[language].unlink()
        records.flush()
        return digest.hexdigest()


def identity(manifest: Path) -> dict[str, Any]:
    """Size of a file and a hash of parts of it: the same for a copy of it."""
    digest = hashlib.blake2b(digest_size=16)
    with manifest.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number in range(SAMPLED):
            file.seek((size - 65536) * number // (SAMPLED - 1) if size > 65536 else 0)
            digest.update(file.read(65536))
    return {"size": size, "sample": digest.hexdigest()}
