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

from stentor.data.fields import channel_of
from stentor.data.storage import as_path, is_remote, name_of, read_whole
from stentor.data.tar import read_member
from stentor.errors import AudioError, MissingData

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut


def is_embedded(cut: Cut) -> bool:
    """Whether the cut's audio is embedded: it came from the `hub` or `shards` source and is not a file of its own."""
    from lhotse.cut.data import DataCut

    if not isinstance(cut, DataCut) or cut.recording is None or cut.recording.transforms:
        return False
    if not (cut.has_custom("hub") or cut.has_custom("tar")):
        return False
    return not cut.recording.sources or cut.recording.sources[0].type == "memory"


def load_embedded(cut: Cut, rate: int) -> np.ndarray:
    """The audio of an embedded cut: float32 [samples] at `rate` Hz, mono. Raises `AudioError`."""
    from stentor.audio.io import read

    if not cut.recording.sources:
        location = cut.custom["tar"] if "tar" in cut.custom else cut.custom["hub"]
        return load_at(location, cut.recording.id, rate, cut.start, cut.duration, channel_of(cut.custom))
    with as_file(cut.recording.sources[0].source, cut.recording.id) as file:
        return read(file, rate=rate, start=cut.start, duration=cut.duration, channel=channel_of(cut.custom))


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
    from stentor.audio.io import read

    if "arrow" in location:
        data = arrow_cell(location["arrow"], location["column"], location["row"])
    else:
        data = read_member(location, name)
    with as_file(data, name) as file:
        return read(file, rate=rate, start=start, duration=duration, channel=channel)


def encoded_duration(data: Any, name: str) -> float:
    """Seconds of encoded audio (bytes, or anything with the buffer protocol), from its header where that says it.
    Raises `AudioError` when it cannot be read."""
    import io

    import pyarrow
    import soundfile

    from stentor.audio.io import probe

    if not len(data):
        raise AudioError(f"{name} is empty (0 bytes).", "empty")
    view = pyarrow.BufferReader(data) if isinstance(data, pyarrow.Buffer) else io.BytesIO(data)
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
    cell = arrow_table(file).column(column)[row]
    data = (cell["bytes"] if hasattr(cell, "keys") else cell).as_buffer()
    if data is None:
        raise AudioError(f"{file}: row {row} has no audio.", "empty")
    return data


@lru_cache(maxsize=256)
def arrow_table(file: str) -> Any:
    """The table in an Arrow file as `datasets` writes it, mapped into memory: columns are read when they are used."""
    import pyarrow

    try:
        return pyarrow.ipc.open_stream(pyarrow.memory_map(file)).read_all()
    except FileNotFoundError:
        raise AudioError(f"{file} does not exist any more: the data set's cache was emptied.", "missing") from None
