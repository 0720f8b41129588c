"""Kaldi's features as models read them: normalised, joined and thinned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

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
    """Kaldi's features, with optional stacking and subsampling of frames and a store for later epochs."""

    normalize: Literal["none", "mean", "meanvar", "global", "fixed"] = "global"
    """Normalisation over the frames of each clip. `mean`: zero mean of each bin. `meanvar`: zero mean and unit variance
    of each bin. `global`: zero mean and unit variance of all bins together, which keeps the differences between bins.
    `fixed`: the mean and deviation of log energies of general audio (Gong et al. 2021), as streaming models need it."""
    stack: int = Field(1, ge=1)
    """Number of frames stacked into each output frame, around its middle."""
    subsample: int = Field(1, ge=1)
    """Subsampling factor: 10 makes 10 frames a second from 100."""
    store: str | None = None
    """Store the features of training audio that `data.augment` leaves unchanged, so that the audio is read (or
    generated) once. `memory`: for this run only (in the system's temporary folder). Otherwise a folder, such as
    `stentor prepare features` writes. Null: features are computed each time."""
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


def parakeet_mel(settings: Any, clips: Sequence[np.ndarray]) -> Tensor:
    """Log-mel [B, mels, T] of float32 clips, bit for bit that of transformers' ParakeetFeatureExtractor (`settings`) in
    less than half its time: it adds up real and imaginary parts along a dimension of two."""
    import numpy as np
    import torch
    from torch.nn.utils.rnn import pad_sequence

    audio = pad_sequence([torch.from_numpy(np.ascontiguousarray(clip)) for clip in clips], batch_first=True)
    lengths = torch.tensor([[len(clip)] for clip in clips])
    audio = torch.cat([audio[:, :1], audio[:, 1:] - settings.preemphasis * audio[:, :-1]], 1)
    audio = audio.masked_fill(torch.arange(audio.shape[1]) >= lengths, 0.0)
    window, sizes = torch.hann_window(settings.win_length, periodic=False), (settings.hop_length, settings.win_length)
    spectra = torch.stft(audio, settings.n_fft, *sizes, window, pad_mode="constant", return_complex=True)
    power = (spectra.real.square() + spectra.imag.square()).sqrt().square()
    mel, frames = (settings.mel_filters @ power + 2**-24).log().transpose(1, 2), lengths // settings.hop_length
    inside = (torch.arange(mel.shape[1]) < frames)[..., None]
    centred = mel - ((mel * inside).sum(1) / frames)[:, None]
    deviation = ((centred**2 * inside).sum(1) / (frames - 1)).sqrt()[:, None]
    return (centred / (deviation + 1e-5) * inside)[:, : int(frames.max())].transpose(1, 2).contiguous()


@lru_cache
def fixed_mel(mels: int) -> Features:
    """Log mel energies that do not look ahead, for encoders that stream a recording."""
    return Features(num_mel_bins=mels, normalize="fixed")


@lru_cache
def fixed_whisper_mel(mels: int) -> Features:
    """Those of `fixed_mel` for Whisper's encoders."""
    return FixedWhisperMel(num_mel_bins=mels, normalize="none")
