"""Resynthesis: the loss of a codec, from audio that was encoded and decoded against the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from stentor.models.codecs.base import AudioCodec

RATE = 16000
"""Hz that spectra are compared at, whatever the codec's rate, so that figures of codecs can be compared."""
RANGE = 60.0
"""dB below a clip's maximum that are compared: recordings hold noise below, and synthetic voices nothing."""
DECIBELS = 40.0
"""Decibels of one unit of `WhisperMel`, which is a quarter of log10(power)."""


@dataclass(frozen=True)
class Resynthesis:
    """Figures over all clips."""

    clips: int
    seconds: float
    """Audio that was encoded."""
    mel_distance: float
    """dB: mean absolute difference of the log-mel spectra (80 filters, frames of 25 ms every 10 ms at 16 kHz), each
    down to 60 dB below the clip's maximum."""
    bit_rate: float
    """bit/s of codes that are stored as they are."""
    usage: list[float]
    """Usage of each codebook: its perplexity (the entries that would carry as much if all were equally frequent) over
    its entries: 1 where all are used equally."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        used = ", ".join(f"{share:.0%}" for share in self.usage)
        return (
            f"{self.clips:,} clips ({self.seconds:.0f} s) encoded and decoded: mel distance {self.mel_distance:.2f} dB "
            f"at {self.bit_rate:,.0f} bit/s; codebooks used: {used}"
        )


def resynthesis(
    codec: AudioCodec,
    audios: Iterable[np.ndarray],
    on_clip: Callable[[np.ndarray, np.ndarray], None] = lambda original, decoded: None,
) -> Resynthesis:
    """Encode and decode clips, float32 [samples] at the codec's sampling rate, one frame at least.

    `on_clip` is called with each clip and its decoded copy of the same length. Raises AudioError as
    `AudioCodec.encode` does.
    """
    import numpy as np

    distance, frames, samples, clips = 0.0, 0, 0, 0
    entries = codec.require_tokens()
    counts = np.zeros((codec.codebooks, entries), np.int64)
    for audio in audios:
        [codes] = codec.encode([audio])
        decoded = codec.decode([codes])[0][: len(audio)]
        for row, book in zip(counts, codes):
            np.add.at(row, book.astype(np.int64), 1)
        difference = mel_difference(audio, decoded, codec.sample_rate)
        distance += float(difference.sum())
        frames += len(difference)
        samples += len(audio)
        clips += 1
        on_clip(audio, decoded)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    return Resynthesis(
        clips,
        samples / codec.sample_rate,
        distance / max(frames, 1),
        codec.frame_rate * codec.codebooks * math.log2(entries),
        [float(share) for share in np.exp(entropy) / codec.vocabulary],
    )


def mel_difference(original: np.ndarray, decoded: np.ndarray, rate: int) -> np.ndarray:
    """dB, float32 [frames]: how far apart the log-mel spectra of two clips of the same length are, in each frame."""
    import soxr

    from stentor.audio.features import WhisperMel

    if rate != RATE:
        original, decoded = (soxr.resample(audio, rate, RATE, quality="HQ") for audio in (original, decoded))
    features, lengths = WhisperMel(80)([original, decoded])
    both = DECIBELS * features[:, :, : int(lengths[0])]
    both = both.clamp(min=float(both[0].max()) - RANGE)
    return (both[0] - both[1]).abs().mean(0).numpy()
