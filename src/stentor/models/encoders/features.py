"""Kaldi's features as models read them: normalised, joined and thinned out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.audio.kaldi import KaldiFeatures

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

FIXED = (-4.2677393, 4.5689974)
"""Mean and deviation of log mel energies in AudioSet."""
FLOOR = -7.0
"""Least log10 mel energy of Whisper's features where they do not look ahead: 8 below the maximum of read speech (the
median of 61 clips of LibriSpeech is 1.0)."""


class Features(KaldiFeatures):
    """Kaldi's features; frames can be joined and thinned out, and kept from epoch to epoch."""

    normalize: Literal["none", "mean", "meanvar", "global", "fixed"] = "global"
    """Over the frames of each clip: each bin to zero mean (`mean`), also to unit variance (`meanvar`), or all bins
    together to zero mean and unit variance (`global`: which bins are loud stays heard). `fixed`: by the mean and
    deviation of log energies of general audio (Gong et al. 2021), as models that hear a recording while it comes
    need it."""
    stack: int = Field(1, ge=1)
    """Frames that are joined to one, around the middle of each output frame."""
    subsample: int = Field(1, ge=1)
    """Frames per output frame: 10 makes 10 frames a second of 100."""
    store: str | None = None
    """Keep the features of training audio that `data.augment` leaves as it is, so that it is read (or generated) once:
    `memory` for this run alone (in the system's temporary folder), or a folder, such as `stentor prepare features`
    fills. Null: computed each time."""
    store_bits: Literal[16, 32] = 16
    """Bits per stored value. 16: steps of 1/65535 of each clip's range, below 0.001 for log features; 32: exact.
    Spectrograms always take 32."""

    @property
    def frame_seconds(self) -> float:
        """Seconds from one output frame to the next."""
        return self.shift * self.subsample / self.sampling_rate

    @property
    def size(self) -> int:
        """Values per output frame."""
        return self.bins * self.stack

    def frames(self, samples: int) -> int:
        """Output frames of a clip of so many samples; one shorter than a frame counts as a frame."""
        return math.ceil(self.count(max(samples, self.length)) / self.subsample)

    def raw(self, audio: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Features float32 [count, bins] before frames are joined, as they are stored. Silence is added to audio
        shorter than a frame."""
        import numpy as np

        audio = np.asarray(audio, np.float32)
        return self.extract(np.pad(audio, (0, max(0, self.length - len(audio)))), rng)

    def normalized(self, raw: np.ndarray) -> np.ndarray:
        """float32 [frames, bins] by `normalize`."""
        if self.normalize == "none":
            return raw
        if self.normalize == "fixed":
            return (raw - FIXED[0]) / FIXED[1]
        if self.normalize == "global":
            return (raw - raw.mean()) / (raw.std() + 1e-5)
        centred = raw - raw.mean(0)
        return centred / (centred.std(0) + 1e-5) if self.normalize == "meanvar" else centred

    def joined(self, frames: np.ndarray) -> np.ndarray:
        """float32 [T, bins] to output frames [ceil(T / subsample), size], oldest first; the first and the last frame
        stand in for those beyond the ends."""
        import numpy as np

        if self.stack == self.subsample == 1:
            return frames
        count = math.ceil(len(frames) / self.subsample)
        if self.stack == self.subsample == len(frames) / count:
            return frames.reshape(count, self.size)
        first = np.arange(count) * self.subsample + (self.subsample - self.stack) // 2
        rows = (first[:, None] + np.arange(self.stack)).clip(0, len(frames) - 1)
        return frames[rows].reshape(count, self.size)


class FixedWhisperMel(Features):
    """Whisper's log mel energies (Radford et al. 2022) with a floor that is the same for all clips, where Whisper's own
    is 8 decades below the maximum of each. Frames lie as Kaldi's do, 5 ms after Whisper's."""

    def extract(self, audio: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        import numpy as np
        import torch

        window, filters = _whisper_tables(self.num_mel_bins)
        signal = self.mirrored(torch.from_numpy(np.ascontiguousarray(audio, np.float32)))
        spectra = torch.fft.rfft(signal.unfold(0, self.length, self.shift) * window)
        mel = (spectra.abs().square() @ filters).clamp(min=10**FLOOR).log10()
        return ((mel + 4) / 4).numpy()


@lru_cache
def _whisper_tables(mels: int) -> tuple[Tensor, Tensor]:
    """Window [400] and mel filters [201, mels]."""
    import torch

    from stentor.audio.features import N_FFT, mel_filters

    return torch.hann_window(N_FFT), torch.from_numpy(mel_filters(mels))


@lru_cache
def fixed_mel(mels: int) -> Features:
    """Log mel energies that do not look ahead, for encoders that hear a recording while it comes."""
    return Features(num_mel_bins=mels, normalize="fixed")


@lru_cache
def fixed_whisper_mel(mels: int) -> Features:
    """Those of `fixed_mel` for Whisper's encoders."""
    return FixedWhisperMel(num_mel_bins=mels, normalize="none")
