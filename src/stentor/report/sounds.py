"""Sounds of the report: recordings read again, as WAV files in data: URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from stentor.data.load_audio import load_record
from stentor.errors import StentorError

PAGE = 8_000_000
"""Bytes of sounds and pictures in one page."""
RATE = 16000
LONGEST = 30.0
"""Seconds; longer recordings get no player."""


def samples_of(record: Mapping[str, Any]) -> np.ndarray | None:
    """The audio of a manifest record, float32 [samples] at `RATE` Hz; None for records of codec tokens alone, and when
    it cannot be read any more."""
    try:
        samples = load_record(record, RATE)
    except (StentorError, OSError):  # deleted or moved since: the report is written without this player
        return None
    return None if samples is None or not len(samples) else samples


def wav(samples: np.ndarray) -> bytes:
    """A 16 bit mono WAV file of [samples] at `RATE` Hz."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def audio_of(record: Mapping[str, Any]) -> bytes | None:
    """The sound of a manifest record as a WAV file; None when it cannot be read any more."""
    samples = samples_of(record)
    return None if samples is None else wav(samples)


class SoundBudget:
    """Bytes that the sounds and pictures of a page may still take."""

    def __init__(self, left: int = PAGE, whole: SoundBudget | None = None):
        self.left, self.whole = left, whole

    def share(self, most: int) -> SoundBudget:
        """At most so many of these bytes, so that the first sounds of a page do not silence the others."""
        return SoundBudget(min(most, self.left), self)

    def take(self, *parts: str | bytes) -> bool:
        """Whether the parts still fit; if so, they are counted."""
        size = sum(map(len, parts))
        if size > self.left:
            return False
        self.left -= size
        return self.whole is None or self.whole.take(*parts)

    def player(self, record: Mapping[str, Any], seconds: float) -> str:
        """A data: URL of a record's sound. Empty for one that is too long, does not fit or cannot be read any more."""
        if seconds > LONGEST or seconds * RATE * 2 > self.left:
            return ""
        file = audio_of(record)
        return data_url("audio/wav", file) if file is not None and self.take(file) else ""


def mp3(samples: np.ndarray) -> str:
    """[samples] at `RATE` Hz as a data: URL of an MP3, or of a WAV file where libsndfile writes none."""
    import soundfile

    kind, mime = ("MP3", "mpeg") if "MP3" in soundfile.available_formats() else ("WAV", "wav")
    file = io.BytesIO()
    soundfile.write(file, np.clip(samples, -1, 1), RATE, format=kind)  # LAME aborts the process at huge samples
    return data_url(f"audio/{mime}", file.getvalue())


def data_url(kind: str, data: bytes) -> str:
    """Data of a MIME type as a data: URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
