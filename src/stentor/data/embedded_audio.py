"""Embedded audio: recordings inside of other files, that is encoded audio in memory, in a row of an Arrow file of the
`datasets` package, or in a tar file.

They are decoded by `stentor.audio.io` like any file, with all its checks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.storage import as_path, is_remote, name_of, read_whole
from stentor.data.tar import read_member
from stentor.errors import AudioError, DataError, MissingData

if TYPE_CHECKING:
    import numpy as np


def load_at(
    location: Mapping[str, Any],
    name: str,
    rate: int,
    start: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> np.ndarray:
    """The audio in a row of an Arrow file, `{"arrow": path, "column": name, "row": number}`, or in a tar
    file, `{"path": tar, "offset", "size"}` in bytes: float32 [samples] at `rate` Hz, mono (see
    `stentor.audio.io.read`). `name` stands in errors. Raises `AudioError`."""
    if "arrow" in location:
        data = arrow_cell(location["arrow"], location["column"], location["row"])
    else:
        data = read_member(location, name)
    return load_encoded(data, name, rate, start, duration, channel)


def load_encoded(
    data: Any, name: str, rate: int, start: float, duration: float | None, channel: int | None
) -> np.ndarray:
    """As `load_at`, of encoded audio in memory."""
    from stentor.audio.io import read
    from stentor.audio.selection import Selection

    with as_file(data, name) as file:
        return read(file, rate=rate, start=start, duration=duration, selection=Selection(channel))


def encoded_duration(data: Any, name: str) -> float:
    """Seconds of encoded audio (bytes, or anything with the buffer protocol), from its header where that says it.
    Raises `AudioError` when it cannot be read."""
    import io

    import soundfile

    from stentor.audio.io import probe

    if not len(data):
        raise AudioError(f"{name} is empty (0 bytes).", "empty")
    if isinstance(data, bytes | bytearray | memoryview):
        view: Any = io.BytesIO(data)
    else:  # a buffer of a mapped Arrow file, of which nothing is copied
        import pyarrow

        view = pyarrow.BufferReader(data)
    try:
        with soundfile.SoundFile(view) as sound:
            if sound.format in ("WAV", "WAVEX", "FLAC", "AIFF"):  # the header is enough, and is all that is touched
                return sound.frames / sound.samplerate
    except (soundfile.LibsndfileError, RuntimeError):
        pass  # perhaps a format that FFmpeg knows; otherwise `probe` says what is wrong
    with as_file(data, name) as file:
        return probe(file).duration


@contextmanager
def audio_file(path: Path | str) -> Iterator[Path]:
    """An audio file under a local path; one at an address is read whole in one request and lies in memory. Raises
    AudioError (`missing`), DataError."""
    path = as_path(path)
    if not is_remote(path):
        yield path
        return
    try:
        data = read_whole(path)
    except MissingData as error:
        raise AudioError(str(error), "missing") from None
    with as_file(data, name_of(path)) as file:
        yield file


@contextmanager
def as_file(data: Any, name: str) -> Iterator[Path]:
    """Encoded audio under a path: a file in memory where the system has such (Linux), or a temporary one. An
    `AudioError` raised inside names `name` in place of the path."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("audio"), "wb") as memory:
            memory.write(data)
            memory.flush()
            with _named(Path(f"/proc/self/fd/{memory.fileno()}"), name) as path:
                yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audio"
        file.write_bytes(data)
        with _named(file, name) as path:
            yield path


@contextmanager
def _named(path: Path, name: str) -> Iterator[Path]:
    try:
        yield path
    except AudioError as error:
        raise AudioError(str(error).replace(str(path), name), error.reason) from None


def arrow_cell(file: str, column: str, row: int) -> Any:
    """The encoded audio in one row of an Arrow file, as a buffer that lies in the mapped file. Raises `AudioError`."""
    _, data = path_and_data(arrow_table(file).column(column)[row], file)
    if data is None:
        raise AudioError(f"{file}: row {row} has no audio.", "empty")
    return data


def path_and_data(cell: Any, where: str) -> tuple[str | None, Any]:
    """Path and encoded bytes, a buffer that lies in the mapped file, of an Arrow scalar with a recording. Raises
    `DataError` for anything else."""
    import pyarrow

    if pyarrow.types.is_binary(cell.type) or pyarrow.types.is_large_binary(cell.type):
        return None, cell.as_buffer() if cell.is_valid else None
    if pyarrow.types.is_struct(cell.type) and cell.is_valid:
        path, data = cell["path"].as_py(), cell["bytes"]
        return path, data.as_buffer() if data.is_valid else None
    if isinstance(value := cell.as_py(), str | None):
        return value, None
    raise DataError(f"{where}: audio must be encoded bytes or a path, got {type(value).__name__}.")


@lru_cache(maxsize=256)
def arrow_table(file: str) -> Any:
    """The table in an Arrow file as `datasets` writes it, mapped into memory: columns are read when they are used."""
    import pyarrow

    try:
        return pyarrow.ipc.open_stream(pyarrow.memory_map(file)).read_all()
    except FileNotFoundError:
        raise AudioError(f"{file} does not exist any more: the data set's cache was emptied.", "missing") from None
