"""Cuts of a reading: its records, checked, with ids of their own and audio files that exist."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.cut import UnusableRecord, cut_from_record, record_name
from stentor.data.jsonl import LHOTSE, MAX_PROBLEMS, FileIndex, each_line
from stentor.data.layouts.reading import NATIVE, Reading
from stentor.data.storage import is_remote, join
from stentor.errors import AudioError, DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

LONG = 60.0
"""Seconds from which on a duration is compared with its file."""


def read_cuts(reading: Reading) -> Iterator[Cut | UnusableRecord]:
    """The records of a reading as lhotse cuts. Raises `DataError` for rows that break the contract, and as
    `check_audio_folder`."""
    check_audio_folder(reading)
    reading.repaired.clear()  # of the first records, which are read again
    files = FileIndex()
    lines_of: dict[str, int] = {}  # id -> the line that gave it

    def make(record: dict[str, Any], number: int, where: str) -> Cut | UnusableRecord:
        if record.get("type") in LHOTSE:
            raise DataError(f"{where}: this is a lhotse cut; load the file with `type: manifest`.")
        cut = cut_from_record(record, reading.folder, where)
        if "id" in record and cut.id in lines_of:
            raise DataError(f"{where}: the id '{cut.id}' was already given in line {lines_of[cut.id]}.")
        cut.id = own_name(cut.id, lines_of)
        lines_of[cut.id] = number
        if not isinstance(cut, UnusableRecord) and not files.exist(file := cut.recording.sources[0].source):
            return UnusableRecord(cut.id, "missing", f"{where}: the audio file {file} does not exist.")
        return cut

    yield from each_line(reading.path, make, UnusableRecord, reading)


def own_name(name: str, taken: Container[str]) -> str:
    """The id of a record without one: its name, with a number where an earlier record has it."""
    return next(i for n in count(1) if (i := f"{name}#{n}" if n > 1 else name) not in taken)


def places_of(reading: Reading, ids: Container[str]) -> dict[str, str]:
    """The place of each record of these ids."""
    places: dict[str, str] = {}
    for record, where in reading.records():
        if isinstance(record, dict):
            places[own_name(record_name(record), places)] = where
    return {name: where for name, where in places.items() if name in ids}


def check_audio_folder(reading: Reading) -> None:
    """Raise DataError if the audio files of the first records all lie elsewhere: not where relative paths start from,
    but in the working directory, or beside the manifest."""
    path, base = reading.path, reading.folder
    if is_remote(path) or not path.is_file():
        return
    first = [record for record, _ in islice(reading.records(), MAX_PROBLEMS) if isinstance(record, dict)]
    if reading.layout != NATIVE:
        _check_unit(first, base)
    written = [record.get("audio_path") for record in first]
    paths = [text for text in written if isinstance(text, str) and not is_remote(text) and not os.path.isabs(text)]
    other = Path() if base == path.parent else path.parent
    if is_remote(base) or any((base / text).exists() for text in paths):
        return
    if found := sum((other / text).exists() for text in paths):
        place, fix = (
            ("its own folder", "leave `audio_folder` out")
            if base != path.parent
            else ("the working directory", f"set `audio_folder: .` (on the command line: {path},audio_folder=.)")
        )
        raise DataError(
            f"{path}: none of the first {len(paths)} relative audio paths exists from {base}, but "
            f"{found} from {place}: {fix}."
        )


def _check_unit(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Raise DataError if the first long record is said to be many times as long as its file: in another unit."""
    from stentor.audio.io import probe

    for record in records:
        seconds, file = record.get("duration"), join(folder, str(record.get("audio_path")))
        if isinstance(seconds, int | float) and seconds > LONG and not is_remote(file) and file.is_file():
            with suppress(AudioError):
                if seconds > 50 * (length := probe(file).duration):
                    raise DataError(
                        f"A duration is {seconds:g} seconds, and {file} has {length:.2f}: if it counts milliseconds, "
                        "say so with `columns: {duration_ms: duration}`; otherwise correct it, or leave it out."
                    )
            return
