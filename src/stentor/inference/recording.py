"""Recordings of any length, read in blocks or parts: files, folders, patterns, URLs, standard input, bytes, arrays."""

from __future__ import annotations

import base64
import glob
import http.client
import itertools
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np

from stentor.audio.channels import frames_first, to_mono
from stentor.audio.ffmpeg import ffmpeg_errors, open_av
from stentor.audio.io import AUDIO_SUFFIXES, UNKNOWN_FRAMES, check_finite, check_length, probe, read
from stentor.audio.resampler import Resampler
from stentor.data.storage import as_path, find_paths, is_remote, is_web, name_of, open_read
from stentor.data.storage_cache import local_copy
from stentor.errors import AudioError, ConfigError, MissingData

BLOCK = 60.0
"""Seconds of audio in memory at a time while looking for pauses."""
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
    channel: int | None
    """The channel of its source, from 0; None: the mean of all."""

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
    """An audio file. Of a long one nothing is held: each window is read again when it is needed.

    Formats that only FFmpeg reads (m4a, webm) cannot be entered in the middle; they are held once, at `rate`.
    """

    def __init__(self, path: str | Path, rate: int, channel: int | None = None):
        self.path, self.name, self.rate, self.channel = Path(path), str(path), rate, channel
        self._blocks: list[np.ndarray] | None = None

    def blocks(self) -> Iterator[np.ndarray]:
        blocks, to_hold = file_blocks(self.path, self.rate, self.channel)
        self._blocks = [] if to_hold else None
        for block in blocks:
            if self._blocks is not None:
                self._blocks.append(block)
            yield block

    def at(self, rate: int) -> FileRecording:
        return self if rate == self.rate else FileRecording(self.path, rate, self.channel)

    def read(self, start: int, end: int) -> np.ndarray:
        if self._blocks is not None:
            return _slice(self._blocks, start, end)
        return file_part(self.path, self.rate, self.channel, start, end)


def file_blocks(path: Path, rate: int, channel: int | None) -> tuple[Iterator[np.ndarray], bool]:
    """All of a file in blocks, and whether these must be held: where they are not, parts of the file are to be read by
    `file_part`. Raises AudioError, as do the blocks."""
    duration = probe(path).duration
    if duration <= BLOCK:
        return iter([read(path, rate, check_silence=False, channel=channel)]), True
    if not _seekable(path):
        return _decoded(path, rate, channel, duration), True
    # The last block takes the milliseconds that are over.
    last = max(1, round(duration / BLOCK)) - 1
    parts = ((i * BLOCK, BLOCK if i < last else duration - last * BLOCK) for i in range(last + 1))
    return (read(path, rate, *part, check_silence=False, channel=channel) for part in parts), False


def file_part(path: Path, rate: int, channel: int | None, start: int, end: int) -> np.ndarray:
    """Samples [start, end) of a file whose blocks need not be held."""
    return read(path, rate, start / rate, (end - start) / rate, check_silence=False, channel=channel)


class ArrayRecording:
    """Audio in memory, [samples], [samples, channels] or [channels, samples], at any rate: the mean of its channels, or
    one of them (from 0)."""

    def __init__(self, audio: np.ndarray, source_rate: int, rate: int, name: str = "array", channel: int | None = None):
        audio = to_mono(frames_first(np.asarray(audio, np.float32)), name, channel)
        check_finite(audio, "The audio array")
        if source_rate != rate:
            import soxr

            audio = soxr.resample(audio, source_rate, rate)
        self.audio, self.name, self.rate, self.channel = audio, name, rate, channel

    def blocks(self) -> Iterator[np.ndarray]:
        step = round(BLOCK * self.rate)
        for at in range(0, len(self.audio), step):
            yield self.audio[at : at + step]

    def at(self, rate: int) -> ArrayRecording:
        if rate == self.rate:
            return self
        recording = ArrayRecording(self.audio, self.rate, rate, self.name)
        recording.channel = self.channel
        return recording

    def read(self, start: int, end: int) -> np.ndarray:
        return self.audio[start:end]


def _slice(blocks: list[np.ndarray], start: int, end: int) -> np.ndarray:
    parts, at = [], 0
    for block in blocks:
        if at < end and at + len(block) > start:
            parts.append(block[max(0, start - at) : end - at])
        at += len(block)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _seekable(path: Path) -> bool:
    import soundfile

    try:
        return 0 < soundfile.info(str(path)).frames < UNKNOWN_FRAMES
    except soundfile.LibsndfileError:
        return False


def _decoded(path: Path, rate: int, channel: int | None, seconds: float) -> Iterator[np.ndarray]:
    """A file of so many seconds through FFmpeg, mono float32 at `rate`, about a minute at a time; see `read`. Raises
    AudioError."""
    import av

    resampler = av.AudioResampler(format="fltp", rate=rate)
    pieces: list[np.ndarray] = []  # [channels, samples]
    samples = total = 0
    with open_av(path) as container, ffmpeg_errors(path):
        frames = container.decode(container.streams.audio[0])
        for frame in itertools.chain(frames, [None]):  # None: what the resampler still holds
            for out in resampler.resample(frame):
                pieces.append(out.to_ndarray())
                samples += out.samples
            if samples >= BLOCK * rate:
                yield _mono(pieces, path, channel)
                total += samples
                pieces, samples = [], 0
    if pieces:
        yield _mono(pieces, path, channel)
    check_length(path, 0.0, seconds, (total + samples) / rate)


def _mono(pieces: list[np.ndarray], path: Path, channel: int | None) -> np.ndarray:
    audio = to_mono(np.concatenate(pieces, axis=1).T, str(path), channel)
    check_finite(audio, str(path))
    return audio


class DecodedRecording:
    """A recording that is decoded once, into a temporary file of samples, for work that reads parts of it many times at
    several rates: seeking is slow or inexact in many formats."""

    def __init__(self, blocks: Iterable[np.ndarray], rate: int, name: str, channel: int | None = None):
        self.rate, self.name, self.channel = rate, name, channel
        self._others: dict[int, DecodedRecording] = {}
        with tempfile.TemporaryFile() as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block, np.float32).data)
            if not file.tell():
                raise AudioError(f"{name} has no samples.", "empty")
            file.flush()
            self._samples = np.memmap(file, np.float32, "r")

    @classmethod
    def of_file(
        cls, path: str, name: str, start: float = 0.0, duration: float | None = None, channel: int | None = None
    ) -> DecodedRecording:
        """A file, or a part of it in seconds, at its own rate. Raises AudioError."""
        path = str(local_copy(as_path(path)))
        info = probe(path)
        if start or (duration is not None and duration < info.duration - 0.001):
            part = read(path, info.sample_rate, start, duration, check_silence=False, channel=channel)
            return cls([part], info.sample_rate, name, channel)
        return cls(file_blocks(Path(path), info.sample_rate, channel)[0], info.sample_rate, name, channel)

    @property
    def seconds(self) -> float:
        return len(self._samples) / self.rate

    def blocks(self) -> Iterator[np.ndarray]:
        step = round(BLOCK * self.rate)
        for at in range(0, len(self._samples), step):
            yield self.read(at, at + step)

    def read(self, start: int, end: int) -> np.ndarray:
        return np.array(self._samples[start:end])

    def at(self, rate: int) -> DecodedRecording:
        if rate == self.rate:
            return self
        if rate not in self._others:
            self._others[rate] = DecodedRecording(self._resampled(rate), rate, self.name, self.channel)
        return self._others[rate]

    def _resampled(self, rate: int) -> Iterator[np.ndarray]:
        resampler = Resampler(self.rate, rate)
        yield from map(resampler.add, self.blocks())
        yield resampler.add(np.zeros(0, np.float32), last=True)


def expand(arguments: Sequence[str]) -> list[str]:
    """Expand command-line arguments to files, URLs and `-`, in order: a folder to the audio files in it and its
    subfolders, a pattern (`talks/*.mp3`, `**` for any folders) to its matches.

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
            files = sorted(str(p) for p in path.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES and p.is_file())
            if not files:
                raise ConfigError(f"The folder {path} contains no audio files ({', '.join(AUDIO_SUFFIXES)}).")
            names += files
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


def open_recording(audio: Any, rate: int, source_rate: int | None = None, channel: int | None = None) -> Recording:
    """Open a recording at `rate` Hz: a path, a URL, `-` (standard input), the bytes of an audio file, an open binary
    file, or an array at `source_rate` Hz. It is the mean of the channels, or one `channel`, counted from 0. Nothing is
    read yet. Raises ConfigError for anything else."""
    match audio:
        case Recording():
            return audio
        case str() if audio == STDIN:
            return StreamRecording(label(audio), rate, lambda file: shutil.copyfileobj(sys.stdin.buffer, file), channel)
        case str() if is_web(audio):
            return StreamRecording(label(audio), rate, lambda file: download(audio, file), channel)
        case _ if is_remote(audio):
            return StreamRecording(name_of(audio), rate, lambda file: _copy(as_path(audio), file), channel)
        case str() | Path():
            return FileRecording(audio, rate, channel)
        case bytes() | bytearray() | memoryview():
            return StreamRecording("bytes", rate, lambda file: file.write(audio), channel)
        case Readable():
            name = audio.name if isinstance(audio, NamedFile) and isinstance(audio.name, str) else "stream"
            return StreamRecording(name, rate, lambda file: shutil.copyfileobj(audio, file), channel)
        case list() | tuple() if not all(isinstance(sample, (int, float)) for sample in audio):
            raise ConfigError("These are several recordings: use `transcribe_many`, or give one at a time.")
    if source_rate is None:
        raise ConfigError("An array needs `rate`, its sample rate in Hz.")
    return ArrayRecording(np.asarray(audio), source_rate, rate, channel=channel)


class StreamRecording(FileRecording):
    """Audio that is not in a file: `copy` writes it to a temporary file, deleted with the recording, on first use."""

    def __init__(self, name: str, rate: int, copy: Callable[[BinaryIO], Any], channel: int | None = None):
        super().__init__("", rate, channel)
        self.name, self._copy = name, copy

    def blocks(self) -> Iterator[np.ndarray]:
        if self.path == Path():
            handle, path = tempfile.mkstemp(prefix="stentor-", suffix=Path(self.name).suffix[:8])
            self.path = Path(path)
            weakref.finalize(self, self.path.unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as file:
                self._copy(file)
        try:
            yield from super().blocks()
        except AudioError as error:
            raise AudioError(str(error).replace(str(self.path), self.name), error.reason) from None


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
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise AudioError(f"{name} cannot be downloaded ({reason}): check the address and the connection.") from None
    if max(size, promised) > LARGEST:
        raise AudioError(f"{name} is larger than {LARGEST / 2**30:.2g} GiB: download it and give the file.")
    if size < promised:
        raise AudioError(f"{name} is incomplete: received {size} of {promised} bytes. Try again.", "truncated")
