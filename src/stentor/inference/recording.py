"""Audio to transcribe, that can be read in blocks and by the stretch: a file of any length, or an array."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stentor.errors import AudioError

if TYPE_CHECKING:
    import numpy as np

BLOCK = 60.0
"""Seconds that are held at a time while looking for pauses."""


class Recording(Protocol):
    """Mono audio at `rate` Hz; positions are samples at that rate."""

    name: str
    rate: int

    def blocks(self) -> Iterator[np.ndarray]:
        """All of it, float32 [samples] at a time. Raises AudioError."""

    def read(self, start: int, end: int) -> np.ndarray:
        """Samples [start, end), float32. Raises AudioError."""


class FileRecording:
    """An audio file. Nothing of it is held: a window is read again when it is needed."""

    def __init__(self, path: str | Path, rate: int):
        self.path, self.name, self.rate = Path(path), str(path), rate

    def blocks(self) -> Iterator[np.ndarray]:
        from stentor.audio.io import probe, read

        duration = probe(self.path).duration
        at = 0.0
        while at < duration:
            block = read(self.path, rate=self.rate, start=at, duration=min(BLOCK, duration - at))
            yield block
            at += BLOCK

    def read(self, start: int, end: int) -> np.ndarray:
        from stentor.audio.io import read

        return read(self.path, rate=self.rate, start=start / self.rate, duration=(end - start) / self.rate)


class ArrayRecording:
    """Audio in memory, mono or [channels, samples], at any rate."""

    def __init__(self, audio: np.ndarray, source_rate: int, rate: int, name: str = "array"):
        import numpy as np

        audio = np.asarray(audio, np.float32)
        if audio.ndim == 2:
            audio = audio.mean(0)
        if audio.ndim != 1 or not len(audio):
            raise AudioError(f"Audio must be [samples] or [channels, samples], not {list(audio.shape)}.", "empty")
        if not np.isfinite(audio).all():
            raise AudioError("The audio array holds NaN or infinite values.", "not_finite")
        if source_rate != rate:
            import soxr

            audio = soxr.resample(audio, source_rate, rate)
        self.audio, self.name, self.rate = audio, name, rate

    def blocks(self) -> Iterator[np.ndarray]:
        step = round(BLOCK * self.rate)
        for at in range(0, len(self.audio), step):
            yield self.audio[at : at + step]

    def read(self, start: int, end: int) -> np.ndarray:
        return self.audio[start:end]
