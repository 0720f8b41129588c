"""Recordings of any length, read in blocks or parts: files, folders, patterns, URLs, standard input, bytes, arrays."""

from __future__ import annotations

import base64
import contextlib
import errno
import glob
import http.client
import logging
import os
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np

from stentor.audio.blocks import BLOCK, FileBlocks, file_part
from stentor.audio.channels import frames_first, to_mono
from stentor.audio.io import check_finite, probe, read
from stentor.audio.resampler import Resampler
from stentor.audio.selection import WHOLE, Selection
from stentor.audio.suffixes import find_audio
from stentor.data.storage import as_path, find_paths, is_remote, is_web, name_of, open_read
from stentor.data.storage_cache import local_copy
from stentor.errors import FULL, AudioError, ConfigError, MissingData

log = logging.getLogger(__name__)

STDIN = "-"
LARGEST = 4 * 2**30
"""Maximum bytes of a download."""
PATIENCE = 60.0
"""Timeout of a server in seconds."""


@runtime_checkable
class Recording(Protocol):
    """Mono audio at `rate` Hz; positions are samples at that rate."""

    name: str
    rate: int
    selection: Selection
    """Its part of the source."""
    notes: tuple[str, ...]
    """Findings when it was read (see `AudioInfo.notes`); complete after `blocks`."""

    def blocks(self) -> Iterator[np.ndarray]:
        """All of it, float32 [samples] at a time. Raises AudioError."""

    def read(self, start: int, end: int) -> np.ndarray:
        """Samples [start, end), float32. Raises AudioError."""

    def at(self, rate: int) -> Recording:
        """The same audio at another rate."""


@runtime_checkable
class Readable(Protocol):
    """An open file."""

    def read(self, size: int = -1) -> bytes: ...


@runtime_checkable
class NamedFile(Readable, Protocol):
    """One that may say where it lies."""

    name: Any


class FileRecording:
    """An audio file. Of a long one nothing is held in memory: each window is read again when it is needed, from the
    file, or where that has no cheap seeks from the samples that `blocks` has spooled at `rate`."""

    def __init__(self, path: str | Path, rate: int, selection: Selection = WHOLE):
        self.path, self.name, self.rate, self.selection = Path(path), str(path), rate, selection
        self.notes: tuple[str, ...] = ()
        self._spool: Spool | None = None

    def blocks(self) -> Iterator[np.ndarray]:
        if self._spool is not None:
            yield from self._spool.blocks()
            return
        with self._named():
            blocks = FileBlocks(self.path, self.rate, self.selection)
            spool = Spool(self.rate, self.name) if blocks.to_hold else None
            for block in blocks:
                if spool is not None:
                    spool.write(block)
                yield block
        self._spool = spool
        for note in blocks.notes if blocks.notes != self.notes else ():
            log.warning("%s: %s.", self.name, note)
        self.notes = blocks.notes

    def at(self, rate: int) -> FileRecording:
        if rate == self.rate:
            return self
        other = FileRecording(self.path, rate, self.selection)
        other.name, other.notes, other._source = self.name, self.notes, self
        return other

    _source: FileRecording | None = None
    """Keeps the file that it removes at its end."""

    def read(self, start: int, end: int) -> np.ndarray:
        if self._spool is not None:
            return self._spool.read(start, end)
        with self._named():
            return file_part(self.path, self.rate, self.selection, start, end)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except AudioError as error:
            raise AudioError(str(error).replace(str(self.path), self.name), error.reason) from None


class ArrayRecording:
    """Audio in memory, [samples], [samples, channels] or [channels, samples], at any rate: the mean of its channels, or
    one of them (from 0)."""

    notes: tuple[str, ...] = ()

    def __init__(
        self, audio: np.ndarray, source_rate: int, rate: int, name: str = "array", selection: Selection = WHOLE
    ):
        audio = to_mono(frames_first(np.asarray(audio, np.float32)), name, selection.channel)
        check_finite(audio, "The audio array")
        if source_rate != rate:
            import soxr

            audio = soxr.resample(audio, source_rate, rate)
        self.audio, self.name, self.rate, self.selection = audio, name, rate, selection

    def blocks(self) -> Iterator[np.ndarray]:
        step = round(BLOCK * self.rate)
        for at in range(0, len(self.audio), step):
            yield self.audio[at : at + step]

    def at(self, rate: int) -> ArrayRecording:
        if rate == self.rate:
            return self
        recording = ArrayRecording(self.audio, self.rate, rate, self.name)
        recording.selection = self.selection
        return recording

    def read(self, start: int, end: int) -> np.ndarray:
        return self.audio[start:end]


class Spool:
    """Samples that are written once and read in parts: a minute in memory, more in an unnamed temporary file, which the
    system removes with the process at the latest. The environment variable TMPDIR names its folder."""

    def __init__(self, rate: int, name: str):
        self.samples, self._step, self._name, self._lock = 0, round(BLOCK * rate), name, threading.Lock()
        self._file = tempfile.SpooledTemporaryFile(4 * self._step)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def write(self, block: np.ndarray) -> None:
        with temporary_space(self._name):
            self._file.write(np.ascontiguousarray(block, np.float32).data)
            self._file.flush()
        self.samples += len(block)

    def read(self, start: int, end: int) -> np.ndarray:
        with self._lock:
            self._file.seek(4 * start)
            return np.frombuffer(bytearray(self._file.read(4 * max(0, end - start))), np.float32)

    def blocks(self) -> Iterator[np.ndarray]:
        for at in range(0, self.samples, self._step):
            yield self.read(at, at + self._step)


@contextlib.contextmanager
def temporary_space(name: str) -> Iterator[None]:
    """Raises AudioError (`no_space`) where temporary files find no space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*FULL, errno.ENOENT):
            raise
        folder = tempfile.tempdir or "of this system (none can be written to)"
        raise AudioError(
            f"There is no space for the audio of {name} in the temporary folder {folder}: free some, or name another "
            "folder with the environment variable TMPDIR.",
            "no_space",
        ) from None


class DecodedRecording:
    """A recording that is decoded once, into a temporary file of samples, for work that reads parts of it many times at
    several rates: seeking is slow or inexact in many formats."""

    def __init__(self, blocks: Iterable[np.ndarray], rate: int, name: str, selection: Selection = WHOLE):
        self.rate, self.name, self.selection = rate, name, selection
        self.notes: tuple[str, ...] = ()
        self._others: dict[int, DecodedRecording] = {}
        self._spool = Spool(rate, name)
        for block in blocks:
            self._spool.write(block)
        if not self._spool.samples:
            raise AudioError(f"{name} has no samples.", "empty")

    @classmethod
    def of_file(
        cls, path: str, name: str, start: float = 0.0, duration: float | None = None, selection: Selection = WHOLE
    ) -> DecodedRecording:
        """A file, or a part of it in seconds, at its own rate. Raises AudioError."""
        path = str(local_copy(as_path(path)))
        info = probe(path, selection)
        if start or (duration is not None and duration < info.duration - 0.001):
            part = read(path, info.sample_rate, start, duration, check_silence=False, selection=selection)
            return cls([part], info.sample_rate, name, selection)
        return cls(FileBlocks(path, info.sample_rate, selection), info.sample_rate, name, selection)

    @property
    def seconds(self) -> float:
        return self._spool.samples / self.rate

    def blocks(self) -> Iterator[np.ndarray]:
        return self._spool.blocks()

    def read(self, start: int, end: int) -> np.ndarray:
        return self._spool.read(start, end)

    def at(self, rate: int) -> DecodedRecording:
        if rate == self.rate:
            return self
        if rate not in self._others:
            self._others[rate] = DecodedRecording(self._resampled(rate), rate, self.name, self.selection)
        return self._others[rate]

    def _resampled(self, rate: int) -> Iterator[np.ndarray]:
        resampler = Resampler(self.rate, rate)
        yield from map(resampler.add, self.blocks())
        yield resampler.add(np.zeros(0, np.float32), last=True)


def expand(arguments: Sequence[str], report: Callable[[str], None] | None = None) -> list[str]:
    """Expand command-line arguments to files, URLs and `-`, in order: a folder to the audio files in it and its
    subfolders, a pattern (`talks/*.mp3`, `**` for any folders) to its matches. `report` as in `find_audio`.

    Raises ConfigError for a folder without audio, a pattern that matches nothing, and `-` given twice.
    """
    if arguments.count(STDIN) > 1:
        raise ConfigError("Standard input (-) can only be given once.")
    names: list[str] = []
    for argument in arguments:
        path = as_path(argument)
        if argument == STDIN or is_web(argument):
            names.append(argument)
        elif path.is_dir():
            files = find_audio(path, report)
            if not files:
                raise ConfigError(f"The folder {path} contains no audio files (by their suffixes).")
            names += map(str, files)
        elif glob.has_magic(argument) and not path.exists():
            matches = [str(m) for m in find_paths(argument) if is_remote(m) or m.is_file()]
            if not matches:
                raise ConfigError(f"The pattern {argument} matches no file.")
            names += matches
        else:
            names.append(argument)
    return names


def label(name: str) -> str:
    """Return the name of a file, a URL or `-` in transcripts, outputs and messages; for a URL the part before the
    query, without user and password."""
    if name == STDIN:
        return "stdin"
    if not is_web(name):
        return name_of(name) if is_remote(name) else name
    parts = urllib.parse.urlsplit(name)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_recording(audio: Any, rate: int, source_rate: int | None = None, selection: Selection = WHOLE) -> Recording:
    """Open a recording at `rate` Hz: a path, a URL, `-` (standard input), the bytes of an audio file, an open binary
    file, or an array at `source_rate` Hz. Nothing is read yet. Raises ConfigError for anything else."""
    copy = shutil.copyfileobj
    match audio:
        case Recording():
            return audio
        case str() if audio == STDIN:
            return StreamRecording(label(audio), rate, lambda file: copy(sys.stdin.buffer, file), selection)
        case str() if is_web(audio):
            return StreamRecording(label(audio), rate, lambda file: download(audio, file), selection)
        case _ if is_remote(audio):
            return StreamRecording(name_of(audio), rate, lambda file: _copy(as_path(audio), file), selection)
        case str() | Path():
            return FileRecording(audio, rate, selection)
        case bytes() | bytearray() | memoryview():
            return StreamRecording("bytes", rate, lambda file: file.write(audio), selection)
        case Readable():
            name = audio.name if isinstance(audio, NamedFile) and isinstance(audio.name, str) else "stream"
            return StreamRecording(name, rate, lambda file: copy(audio, file), selection)
        case list() | tuple() if not all(isinstance(sample, (int, float)) for sample in audio):
            raise ConfigError("These are several recordings: use `transcribe_many`, or give one at a time.")
    if source_rate is None:
        raise ConfigError("An array needs `rate`, its sample rate in Hz.")
    return ArrayRecording(np.asarray(audio), source_rate, rate, selection=selection)


class StreamRecording(FileRecording):
    """Audio that is not in a file: `copy` writes it to a temporary file, deleted with the recording, on first use."""

    def __init__(self, name: str, rate: int, copy: Callable[[BinaryIO], Any], selection: Selection = WHOLE):
        super().__init__("", rate, selection)
        self.name, self._copy = name, copy

    def blocks(self) -> Iterator[np.ndarray]:
        self._fetch()
        yield from super().blocks()

    def at(self, rate: int) -> FileRecording:
        self._fetch()
        return super().at(rate)

    def _fetch(self) -> None:
        if self.path != Path():
            return
        with temporary_space(self.name):
            handle, path = tempfile.mkstemp(prefix="stentor-", suffix=Path(self.name).suffix[:8])
            weakref.finalize(self, Path(path).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                self._copy(file)
        self.path = Path(path)


def _copy(path: Path, file: BinaryIO) -> None:
    try:
        with open_read(path) as source:
            shutil.copyfileobj(source, file, 2**20)
    except MissingData as error:
        raise AudioError(str(error), "missing") from None


def download(url: str, file: BinaryIO) -> None:
    """The contents of an address, at most `LARGEST` bytes. Raises AudioError."""
    name = label(url)
    size = 0
    try:
        parts = urllib.parse.urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers={"User-Agent": "stentor"})
        if login:  # not for the server that this one may send us on to
            token = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            promised = int(response.headers.get("Content-Length") or 0)
            while size <= max(LARGEST, promised) and promised <= LARGEST and (piece := response.read(2**20)):
                size += file.write(piece)
    except urllib.error.HTTPError as error:
        raise AudioError(f"{name} cannot be downloaded: the server answers {error.code} {error.reason}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise AudioError(f"{name} cannot be downloaded ({reason}): check the address and the connection.") from None
    if max(size, promised) > LARGEST:
        raise AudioError(f"{name} is larger than {LARGEST / 2**30:.2g} GiB: download it and give the file.")
    if size < promised:
        raise AudioError(f"{name} is incomplete: received {size} of {promised} bytes. Try again.", "truncated")
