"""Log-mel spectra of clips, and audio from them by Griffin-Lim."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.audio.features import mel_filters


class Spectra:
    """Log-mel frames [T, mels] of [T * hop] samples, each centred on the middle of its hop, and back.

    Powers are of a Hann window of `window` samples with unit energy, mel filters of unit area per Hz (Slaney).
    """

    def __init__(self, sample_rate: int, mels: int, hop: int, window: int, floor: float):
        self.hop, self.window, self.floor = hop, window, floor
        self.n_fft = window
        hann = torch.hann_window(window)
        self.hann = hann / hann.square().sum().sqrt()
        self.filters = torch.from_numpy(mel_filters(mels, self.n_fft, sample_rate))  # [bins, mels]
        self.inverse = torch.linalg.pinv(self.filters)

    def to(self, device: str) -> None:
        self.hann, self.filters, self.inverse = (t.to(device) for t in (self.hann, self.filters, self.inverse))

    def log_mel(self, audio: Tensor) -> Tensor:
        """float32 [T, mels] of [T * hop] samples."""
        power = torch.view_as_real(self.stft(audio)).square().sum(-1)
        return (power @ self.filters + self.floor).log()

    def audio(self, log_mel: Tensor, iterations: int, momentum: float) -> Tensor:
        """float32 [T * hop] of [T, mels]: Griffin-Lim (1984) with momentum (Perraudin et al. 2013).

        The phases start from a fixed noise, so that the same frames sound the same.
        """
        magnitude = self.power(log_mel).sqrt()
        noise = torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(0)).to(magnitude.device)
        phase = torch.polar(torch.ones_like(noise), 2 * np.pi * noise)
        previous = torch.zeros_like(phase)
        for _ in range(iterations):
            rebuilt = self.stft(self.istft(magnitude * phase))
            phase = rebuilt - (momentum / (1 + momentum)) * previous
            phase /= phase.abs().clamp(min=1e-12)
            previous = rebuilt
        return self.istft(magnitude * phase)

    def power(self, log_mel: Tensor, rounds: int = 30) -> Tensor:
        """Power spectra [T, bins] that are not negative and whose mel powers are the given ones: multiplicative
        updates (Lee and Seung 2001) from the least-squares solution."""
        mel = (log_mel.exp() - self.floor).clamp(min=self.floor * 1e-3)
        power = (mel @ self.inverse).clamp(min=self.floor * 1e-3)
        norm = self.filters.sum(1).clamp(min=1e-12)
        for _ in range(rounds):
            power *= ((mel / (power @ self.filters).clamp(min=1e-12)) @ self.filters.T) / norm
        return power

    def stft(self, audio: Tensor) -> Tensor:
        """Complex [..., T, bins] of [..., T * hop]."""
        edge = (self.window - self.hop) // 2
        frames = F.pad(audio, (edge, self.window - self.hop - edge)).unfold(-1, self.window, self.hop)
        return torch.fft.rfft(frames * self.hann, self.n_fft)

    def istft(self, spectrum: Tensor) -> Tensor:
        """The least-squares inverse of `stft`, float32 [..., T * hop]."""
        frames = torch.fft.irfft(spectrum, self.n_fft)[..., : self.window] * self.hann
        wave = self._overlap_add(frames.flatten(0, -3) if frames.dim() > 2 else frames[None])
        weight = self._overlap_add(self.hann.square().expand(1, frames.shape[-2], -1))
        return (wave / weight.clamp(min=1e-8)).view(*frames.shape[:-2], -1)

    def _overlap_add(self, frames: Tensor) -> Tensor:
        """[N, T * hop] of [N, T, window]."""
        count = frames.shape[1]
        length = (count - 1) * self.hop + self.window
        summed = F.fold(frames.transpose(1, 2), (1, length), (1, self.window), stride=(1, self.hop))[:, 0, 0]
        edge = (self.window - self.hop) // 2
        return summed[:, edge : edge + count * self.hop]
