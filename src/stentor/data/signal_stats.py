"""Signal statistics of one recording: levels, clipping, silence, bandwidth. No models."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stentor.audio.io import probe, read
from stentor.data.codec_tokens import has_codes, load_codes
from stentor.data.cut import audio_path
from stentor.data.embedded_audio import audio_file
from stentor.data.load_audio import load_audio
from stentor.errors import AudioError, StentorError

if TYPE_CHECKING:
    from lhotse.cut import Cut

FULL_SCALE = 0.999
"""Samples at least this large count as clipped when two or more stand side by side."""
FRAME = 0.02
"""Seconds of one step of the loudness contour."""
BELOW_SPEECH = 40.0
"""Frames this many dB below the loud ones are silence."""
HIGH_BAND = 4500.0
"""Hz above which telephone speech holds nothing."""


@dataclass
class SignalStats:
    """Measures of one decoded recording, or why it could not be decoded."""

    reason: str | None = None
    message: str = ""
    seconds: float = 0.0
    rate: int = 0
    """Sampling rate of the file in Hz. 0 for codec tokens, of which nothing is measured."""
    level: float = 0.0
    """Level of the loud frames (95th percentile), dBFS."""
    clipped: float = 0.0
    """Share of samples in clipped runs."""
    lead: float = 0.0
    """Seconds before the first frame that is not silent."""
    trail: float = 0.0
    """Seconds after the last one."""
    silence: float = 0.0
    """Share of silent frames."""
    high: float = 0.0
    """Power above 4.5 kHz relative to all, dB; 0 when the rate cannot hold any."""
    digest: str = ""
    """Equal for equal samples."""


def measure_cut(cut: Cut) -> SignalStats:
    """Decode a recording in full, at the file's own rate, and measure it; codec tokens are only read. Never raises for
    the recording's faults."""
    try:
        if has_codes(cut):
            digest = hashlib.blake2b(load_codes(cut).tobytes(), digest_size=16).hexdigest()
            return SignalStats(seconds=cut.duration, digest=digest)
        rate = 16000
        if path := audio_path(cut):
            with audio_file(path) as file:
                rate = probe(file).sample_rate
        audio = load_audio(cut, rate)
    except StentorError as error:
        return SignalStats(error.reason if isinstance(error, AudioError) else "unreadable", str(error))
    return measure_audio(audio, rate)


def measure_file(path: Path, start: float = 0.0, seconds: float | None = None) -> SignalStats:
    """As `measure_cut`, of (a part of) a file."""
    try:
        rate = probe(path).sample_rate
        audio = read(path, rate, start, seconds)
    except StentorError as error:
        return SignalStats(error.reason if isinstance(error, AudioError) else "unreadable", str(error))
    return measure_audio(audio, rate)


def measure_audio(audio: np.ndarray, rate: int) -> SignalStats:
    """Measure float32 [samples] (at least one) at `rate` Hz."""
    frame = max(1, round(FRAME * rate))
    frames = audio[: max(len(audio) // frame, 1) * frame]
    frames = frames.reshape(-1, frame) if len(audio) >= frame else audio[None]
    decibels = 10 * np.log10(np.square(frames, dtype=np.float64).mean(1) + 1e-12)
    level = float(np.percentile(decibels, 95))
    loud = np.flatnonzero(decibels > level - BELOW_SPEECH)
    full = np.abs(audio) >= FULL_SCALE
    runs = full[1:] & full[:-1]
    return SignalStats(
        seconds=len(audio) / rate,
        rate=rate,
        level=level,
        clipped=float(runs.mean()) if len(runs) else 0.0,
        lead=float(loud[0] * FRAME),
        trail=float((len(decibels) - 1 - loud[-1]) * FRAME),
        silence=1 - len(loud) / len(decibels),
        high=_high_band(audio, rate),
        digest=hashlib.blake2b(np.rint(audio * 32768).astype("<i4").tobytes(), digest_size=16).hexdigest(),
    )


def _high_band(audio: np.ndarray, rate: int) -> float:
    if rate < 16000 or len(audio) < 1024:
        return 0.0
    blocks = audio[: len(audio) // 1024 * 1024].reshape(-1, 1024) * np.hanning(1024)
    power = np.square(np.abs(np.fft.rfft(blocks))).mean(0)
    high = power[int(HIGH_BAND * 1024 / rate) :].sum()
    return float(10 * np.log10((high + 1e-20) / (power.sum() + 1e-20)))
