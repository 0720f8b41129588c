"""Audio files of any length in blocks: in one pass, or part by part where a format has cheap seeks."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.channels import to_mono
from stentor.audio.ffmpeg import Track, cut_short, open_av
from stentor.audio.io import check_finite, check_length, existing, opened, read, reason
from stentor.audio.resampler import Resampler
from stentor.audio.selection import WHOLE, Selection
from stentor.errors import AudioError

BLOCK = 60.0
"""Seconds of audio in memory at a time while looking for pauses."""


class FileBlocks:
    """All of a file, float32 [samples] at `rate`, about a minute at a time. Raises AudioError, also while it is read.

    `to_hold`: it must be kept to read a part of it later: it is short, or cannot be entered in the middle at little
    cost (MP3, GSM, everything that FFmpeg reads). `notes`: see `AudioInfo`; complete when it was read.
    """

    def __init__(self, path: str | Path, rate: int, selection: Selection = WHOLE):
        self.path, self.rate, self.selection = existing(path), rate, selection
        with opened(self.path, selection) as (files, self.notes, _):
            self._seconds = sum(file.frames / file.samplerate for file in files)
            self.to_hold = len(files) != 1 or not files[0].seekable() or self._seconds <= BLOCK

    def __iter__(self) -> Iterator[np.ndarray]:
        return filter(len, self._forward()) if self.to_hold else self._parts()

    def _parts(self) -> Iterator[np.ndarray]:
        last = max(1, round(self._seconds / BLOCK)) - 1  # takes the milliseconds that are over
        for i in range(last + 1):
            duration = BLOCK if i < last else self._seconds - last * BLOCK
            yield read(self.path, self.rate, i * BLOCK, duration, False, self.selection)

    def _forward(self) -> Iterator[np.ndarray]:
        seconds, expected = 0.0, self._seconds
        with opened(self.path, self.selection) as (files, notes, known):
            for file in files:
                seconds += yield from self._mono(self._frames(file), file.samplerate)
        if not files:
            with open_av(self.path) as container:
                track = Track(container, self.path, self.selection.track, self.selection.partial, known)
                seconds = yield from self._mono(track.pieces(), track.rate)
                self.notes, expected = (*notes, *track.notes), seconds if track.declared is None else track.declared
        if known and not self.selection.partial:
            check_length(self.path, 0.0, expected, seconds)
        if not seconds:
            raise AudioError(f"{self.path} has no samples.", "empty")

    def _frames(self, file: Any) -> Iterator[np.ndarray]:
        import soundfile

        try:
            while len(frames := file.read(round(BLOCK * file.samplerate), dtype="float32", always_2d=True)):
                yield frames
        except soundfile.LibsndfileError as error:
            if not self.selection.partial:
                raise cut_short(self.path, reason(error)) from None

    def _mono(self, pieces: Iterator[np.ndarray], rate: int) -> Generator[np.ndarray, None, float]:
        """Pieces [samples, channels] at a rate, joined to blocks of one channel at ours. Returns their seconds."""
        resampler, held, count, total, more = Resampler(rate, self.rate), list[np.ndarray](), 0, 0, True
        while more:
            more = (piece := next(pieces, None)) is not None
            if piece is not None:
                held.append(piece)
                count += len(piece)
            if held and (count >= BLOCK * rate or not more):
                mono = to_mono(np.concatenate(held), str(self.path), self.selection.channel)
                check_finite(mono, str(self.path))
                held, count, total = [], 0, total + len(mono)
                yield resampler.add(mono)
        yield resampler.add(np.zeros(0, np.float32), last=True)
        return total / rate


def file_part(path: Path, rate: int, selection: Selection, start: int, end: int) -> np.ndarray:
    """Samples [start, end) of a file that need not be held."""
    return read(path, rate, start / rate, (end - start) / rate, False, selection)
