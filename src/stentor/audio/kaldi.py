"""Kaldi's features: log mel filter banks, cepstral coefficients and power spectra (Povey et al. 2011).

Ours rather than lhotse's, which needs more than twice the time for the same values. `import torch` stays inside the
functions: configs import this module for `KaldiFeatures`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from stentor.errors import AudioError
from stentor.section import Section

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_BLOCK = 512  # frames at a time; so many spectra stay in a processor's cache
_BANDS = 4  # groups of mel filters, each multiplied with the part of the spectrum that it covers
_SEED = 0  # of the dither of audio that must give the same features each time


class KaldiFeatures(Section):
    """Kaldi's features, equal to those of lhotse's `Fbank`, `Mfcc` and `Spectrogram` and faster than these."""

    type: Literal["fbank", "mfcc", "spectrogram"] = "fbank"
    """Log mel filter bank energies, mel-frequency cepstral coefficients, or the power spectrum."""
    num_mel_bins: int = Field(80, ge=1)
    """Mel filters (fbank and mfcc)."""
    frame_length: float = Field(0.025, gt=0)
    """Length of a frame in seconds."""
    frame_shift: float = Field(0.01, gt=0)
    """Time from the start of one frame to the start of the next, in seconds."""
    sampling_rate: int = Field(16000, gt=0)
    """Rate of the audio in Hz."""
    preemph_coeff: float = Field(0.97, ge=0, le=1)
    """Pre-emphasis; 0 turns it off."""
    window_type: Literal["povey", "hanning", "hamming"] = "povey"
    """Window of a frame. `povey` is Hann to the power of 0.85."""
    dither: float = Field(0.0, ge=0)
    """Standard deviation of noise added to the audio. It differs in each epoch, except in evaluation and stores."""
    snip_edges: bool = False
    """Drop the frames at the ends that reach beyond the audio."""
    remove_dc_offset: bool = True
    """Subtract each frame's mean."""
    low_freq: float = Field(20.0, ge=0)
    """Lower edge of the mel filters in Hz."""
    high_freq: float = -400.0
    """Upper edge of the mel filters in Hz. Zero or a negative value is an offset from half the sampling rate."""
    num_ceps: int = Field(13, ge=1)
    """Coefficients (mfcc)."""
    cepstral_lifter: int = Field(22, ge=0)
    """Strength of the scaling of higher coefficients (mfcc). 0 turns it off."""
    use_energy: bool = False
    """Include the log energy of the frame as its first value: before the mel bins (fbank), or instead of the first
    coefficient or bin (mfcc, spectrogram)."""

    @property
    def bins(self) -> int:
        """Values per frame."""
        if self.type == "mfcc":
            return self.num_ceps
        if self.type == "fbank":
            return self.num_mel_bins + self.use_energy
        return self.fft_length // 2 + 1

    @property
    def length(self) -> int:
        """Samples of a frame."""
        return round(self.frame_length * self.sampling_rate)

    @property
    def shift(self) -> int:
        """Samples from one frame to the next."""
        return round(self.frame_shift * self.sampling_rate)

    @property
    def fft_length(self) -> int:
        """Samples of a frame with the zeros that make it a power of two."""
        return 1 << (self.length - 1).bit_length()

    @property
    def band(self) -> tuple[float, float]:
        """Lower and upper edge of the mel filters in Hz."""
        return self.low_freq, self.high_freq if self.high_freq > 0 else self.sampling_rate / 2 + self.high_freq

    @model_validator(mode="after")
    def _possible(self) -> KaldiFeatures:
        low, high = self.band
        nyquist = self.sampling_rate / 2
        if self.type != "spectrogram" and not low < high <= nyquist:
            raise ValueError(
                f"the mel filters go from low_freq {low:g} to high_freq {high:g} Hz; "
                f"that must rise and end at {nyquist:g} Hz at most"
            )
        if self.type == "mfcc" and self.num_ceps > self.num_mel_bins:
            raise ValueError(f"num_ceps ({self.num_ceps}) must not exceed num_mel_bins ({self.num_mel_bins})")
        if not 1 <= self.shift <= self.length or self.length < 2:
            raise ValueError(
                f"frame_shift ({self.frame_shift:g} s) must be one sample at least and must not exceed frame_length "
                f"({self.frame_length:g} s)"
            )
        return self

    def count(self, samples: int) -> int:
        """Frames of so many samples, 0 for less than one frame."""
        if samples < self.length:
            return 0
        if self.snip_edges:
            return 1 + (samples - self.length) // self.shift
        return (samples + self.shift // 2) // self.shift

    def extract(self, audio: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Features float32 [count(samples), bins] of float32 [samples] at `sampling_rate`.

        `rng` draws the dither; without it the noise is the same each time. Frame i is about the time from i to i + 1
        times `frame_shift` (half a frame less half a shift later with `snip_edges`). Raises `AudioError` (`too_short`)
        for audio shorter than one frame.
        """
        import numpy as np

        samples = np.ascontiguousarray(audio, np.float32)
        if len(samples) < self.length:
            raise AudioError(f"{len(samples)} samples are less than one frame of {self.frame_length:g} s.", "too_short")
        if self.dither:
            noise = (rng or np.random.default_rng(_SEED)).standard_normal(len(samples), np.float32)
            samples = samples + np.float32(self.dither) * noise
        return self.extractor(samples)

    def mirrored(self, signal: Tensor) -> Tensor:
        """The samples that the frames take, mirrored at the ends."""
        import torch

        if self.snip_edges:
            return signal
        left = (self.length - self.shift) // 2
        right = (self.count(len(signal)) - 1) * self.shift + self.length - left - len(signal)
        return torch.cat([signal[:left].flip(0), signal, signal[len(signal) - max(right, 0) :].flip(0)])

    @cached_property
    def extractor(self) -> Extractor:
        """The computation of these features."""
        return Extractor(self)


class Extractor:
    """The computation, with its window and filters."""

    def __init__(self, settings: KaldiFeatures):
        import torch

        self.settings = settings
        length, fft = settings.length, settings.fft_length
        if settings.window_type == "hamming":
            self.window = torch.hamming_window(length, periodic=False)
        else:
            power = 0.85 if settings.window_type == "povey" else 1.0
            self.window = torch.hann_window(length, periodic=False).pow(power)
        self.bands: list[tuple[slice, slice, Tensor]] = []
        """(mel filters, values of the power spectrum that they cover, weights), which together are all filters."""
        if settings.type == "spectrogram":
            return
        self.filters = _mel_filters(settings.num_mel_bins, fft, settings.sampling_rate, *settings.band)
        # Each bin twice: a complex spectrum is read as real and imaginary parts side by side.
        filters = self.filters.repeat_interleave(2, dim=0)
        for mels in torch.arange(settings.num_mel_bins).tensor_split(min(_BANDS, settings.num_mel_bins)):
            columns = slice(int(mels[0]), int(mels[-1]) + 1)
            nonzero = filters[:, columns].any(1).nonzero()[:, 0]
            # Filters narrower than a bin of the spectrum may cover no bin at all.
            rows = slice(int(nonzero[0]), int(nonzero[-1]) + 1) if len(nonzero) else slice(0, 1)
            self.bands.append((rows, columns, filters[rows, columns].contiguous()))
        if settings.type == "mfcc":
            self.cosines = _cosines(settings.num_mel_bins, settings.num_ceps, settings.cepstral_lifter)

    def __call__(self, audio: np.ndarray) -> np.ndarray:
        """float32 [samples], one frame at least, to float32 [frames, bins]."""
        import torch

        s = self.settings
        with torch.no_grad():
            signal = s.mirrored(torch.from_numpy(audio))
            frames = signal.unfold(0, s.length, s.shift)
            means = frames.mean(1) if s.remove_dc_offset else None
            # All linear, so the emphasis may come first, for the whole signal; the mean is then taken off in part.
            emphasised = signal.clone()
            emphasised[1:] -= s.preemph_coeff * signal[:-1]
            gain_at_dc = 1 - s.preemph_coeff
            shaped = emphasised.unfold(0, s.length, s.shift)
            spectrogram = s.type == "spectrogram"
            out = torch.empty(len(frames), s.fft_length // 2 + 1 if spectrogram else s.num_mel_bins)
            padded = torch.zeros(min(_BLOCK, len(frames)), s.fft_length)
            for i in range(0, len(frames), _BLOCK):
                block = slice(i, min(i + _BLOCK, len(frames)))
                rows = padded[: block.stop - i]
                windowed = rows[:, : s.length]
                torch.mul(shaped[block], self.window, out=windowed)
                # Kaldi takes a frame's first sample for the one before it.
                windowed[:, 0] = frames[block, 0] * (gain_at_dc * self.window[0])
                if means is not None:
                    windowed.addr_(means[block], self.window, alpha=-gain_at_dc)
                power = torch.view_as_real(torch.fft.rfft(rows)).flatten(1).square_()
                if spectrogram:
                    torch.add(power[:, ::2], power[:, 1::2], out=out[block])
                for bins, mels, weights in self.bands:
                    torch.matmul(power[:, bins], weights, out=out[block, mels])
            if not spectrogram:
                out.clamp_(min=torch.finfo(torch.float32).eps).log_()
            if s.type == "mfcc":
                out = out @ self.cosines
            if s.use_energy:
                centred = frames if means is None else frames - means[:, None]
                energy = (centred.square().sum(1) + 1e-15).log().clamp(min=math.log(1e-10))
                if s.type == "fbank":
                    out = torch.cat([energy[:, None], out], 1)
                else:
                    out[:, 0] = energy
        return out.numpy()


def _mel_filters(count: int, fft: int, rate: int, low: float, high: float) -> Tensor:
    """Triangles of height 1 on Kaldi's mel scale, 1127 ln(1 + f / 700): float32 [fft // 2 + 1, count]. As in Kaldi none
    covers the Nyquist frequency."""
    import torch

    def mel(hertz: Tensor) -> Tensor:
        return 1127 * (hertz / 700).log1p()

    bins = mel(torch.arange(fft // 2 + 1, dtype=torch.float64) * rate / fft)[:, None]
    first, last = mel(torch.tensor([low, high], dtype=torch.float64)).tolist()
    edges = torch.linspace(first, last, count + 2, dtype=torch.float64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)).clamp(min=0)
    triangles[-1] = 0
    return triangles.float()


def _cosines(mels: int, coefficients: int, lifter: int) -> Tensor:
    """The orthonormal DCT-II with the lifter's factors: float32 [mels, coefficients]."""
    import torch

    n, k = torch.arange(mels, dtype=torch.float64)[:, None], torch.arange(coefficients, dtype=torch.float64)
    matrix = torch.cos(math.pi / mels * (n + 0.5) * k) * math.sqrt(2 / mels)
    matrix[:, 0] /= math.sqrt(2)
    if lifter:
        matrix *= 1 + lifter / 2 * torch.sin(math.pi * k / lifter)
    return matrix.float()
