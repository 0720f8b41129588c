"""Inputs: what people call audio (folders, patterns, web addresses, standard input, bytes) as recordings."""

from __future__ import annotations

import base64
import glob
import http.client
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stentor.audio.io import AUDIO_SUFFIXES
from stentor.data.storage import as_path, find_paths, is_remote, is_web, name_of, open_read
from stentor.errors import AudioError, ConfigError, MissingData
from stentor.inference.recording import ArrayRecording, FileRecording, Recording

STDIN = "-"
LARGEST = 4 * 2**30
"""Bytes that are downloaded at most."""
PATIENCE = 60.0
"""Seconds that a server may be silent."""


def expand(arguments: Sequence[str]) -> list[str]:
    """The files, addresses and `-` that arguments of the command line stand for, in their order: a folder for the
    audio files in it and in its folders, a pattern (`talks/*.mp3`, `**` for any folders) for what it matches.

    Raises ConfigError for a folder without audio, a pattern that matches nothing, and `-` given twice.
    """
    if arguments.count(STDIN) > 1:
        raise ConfigError("Standard input (-) can be read once only.")
    names: list[str] = []
    for argument in arguments:
        path = as_path(argument)
        if argument == STDIN or is_web(argument):
            names.append(argument)
        elif path.is_dir():
            files = sorted(str(p) for p in path.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES and p.is_file())
            if not files:
                raise ConfigError(f"The folder {path} holds no audio file ({', '.join(AUDIO_SUFFIXES)}).")
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
    """What a file, an address or `-` is called in transcripts, outputs and messages: of an address what stands before
    the query, without user and password."""
    if name == STDIN:
        return "stdin"
    if not is_web(name):
        return name_of(name) if is_remote(name) else name
    parts = urllib.parse.urlsplit(name)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_recording(audio: Any, rate: int, source_rate: int | None = None, channel: int | None = None) -> Recording:
    """A recording at `rate` Hz of a path, an address, `-` (standard input), the bytes of an audio file, an open binary
    file, or an array at `source_rate` Hz: the mean of its channels, or the `channel` of this number (from 0).
    Nothing is read yet. Raises ConfigError for anything else."""
    if hasattr(audio, "blocks"):
        return audio  # type: ignore[no-any-return]  # a recording already
    if isinstance(audio, str) and audio == STDIN:
        return StreamRecording(label(audio), rate, lambda file: shutil.copyfileobj(sys.stdin.buffer, file), channel)
    if isinstance(audio, str) and is_web(audio):
        return StreamRecording(label(audio), rate, lambda file: download(audio, file), channel)
    if is_remote(audio):
        return StreamRecording(name_of(audio), rate, lambda file: _copy(as_path(audio), file), channel)
    if isinstance(audio, (str, Path)):
        return FileRecording(audio, rate, channel)
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return StreamRecording("bytes", rate, lambda file: file.write(audio), channel)
    if hasattr(audio, "read"):
        name = audio.name if isinstance(getattr(audio, "name", None), str) else "stream"
        return StreamRecording(name, rate, lambda file: shutil.copyfileobj(audio, file), channel)
    if isinstance(audio, (list, tuple)) and not all(isinstance(sample, (int, float)) for sample in audio):
        raise ConfigError("These are several recordings: give them to `transcribe_many`, or one at a time.")
    if source_rate is None:
        raise ConfigError("An array needs `rate`, its samples per second.")
    return ArrayRecording(np.asarray(audio), source_rate, rate, channel=channel)


class StreamRecording(FileRecording):
    """Audio that does not lie in a file: `copy` writes it into a temporary one when it is first read. The file goes
    with the recording."""

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
        reason = getattr(error, "reason", None) or error
        raise AudioError(f"{name} cannot be downloaded ({reason}): check the address and the connection.") from None
    if max(size, promised) > LARGEST:
        raise AudioError(f"{name} is larger than {LARGEST / 2**30:.2g} GiB: download it and give the file.")
    if size < promised:
        raise AudioError(f"{name} is cut short: {size} of {promised} bytes came. Try again.", "truncated")
