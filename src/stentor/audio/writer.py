"""Audio written piece by piece, while it is made: to a file or to a pipe."""

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from stentor.audio.io import WRITTEN, check_finite, pcm16

PIPED = ("wav", "pcm")
"""Formats that can be written to a pipe; `pcm` is the bare samples, 16 bits, little-endian."""
MOST = 0xFFFFFFFF
"""Size in a WAV header that cannot know it: readers continue to the end."""


@contextmanager
def open_writer(path: str | Path, rate: int, kind: str) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that writes float [samples] and hands them on at once; those beyond -1..1 are clipped.

    `path` `-` is standard output, for a `kind` of `PIPED`; files are of a kind of `WRITTEN`. A WAV file can be read
    while it grows. The function raises AudioError (`not_finite`), and BrokenPipeError when the reader is gone.
    """
    if str(path) == "-":
        yield _piped(rate, kind)
    elif kind == "wav":
        with open(path, "w+b") as file:
            file.write(wav_header(rate))
            try:
                yield lambda audio: _write(file, audio)
            finally:
                size = min(file.tell() - 44, MOST - 36)
                file.seek(0)
                file.write(wav_header(rate, size))
    else:
        import soundfile

        with soundfile.SoundFile(str(path), "w", rate, 1, WRITTEN[kind], format=kind.upper()) as coded:

            def write(audio: np.ndarray) -> None:
                coded.write(quantised(audio))
                coded.flush()

            yield write


def _piped(rate: int, kind: str) -> Callable[[np.ndarray], None]:
    begun = kind == "pcm"

    def write(audio: np.ndarray) -> None:
        nonlocal begun
        try:
            if not begun:
                sys.stdout.buffer.write(wav_header(rate))
                begun = True
            _write(sys.stdout.buffer, audio)
        except BrokenPipeError:
            # What is left in the buffer cannot be written at the end of the process either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise

    return write


def _write(file: IO[bytes], audio: np.ndarray) -> None:
    file.write(quantised(audio).astype("<i2").tobytes())
    file.flush()


def quantised(audio: np.ndarray) -> np.ndarray:
    check_finite(audio, "The speech")
    return pcm16(np.asarray(audio, np.float32))


def wav_header(rate: int, size: int = MOST - 36) -> bytes:
    """Header of a WAV file with this many bytes of 16-bit mono audio."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    data = MOST if size == MOST - 36 else size
    return struct.pack("<4sI4s", b"RIFF", size + 36, b"WAVE") + form + struct.pack("<4sI", b"data", data)
