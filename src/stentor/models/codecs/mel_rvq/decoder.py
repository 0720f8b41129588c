"""Source-filter decoder of `mel_rvq`: pulses at the pitch and noise, each through a spectrum that a network predicts.

The network (ConvNeXt blocks over mel frames, as in Vocos, arXiv 2306.00814) says for each frame whether it is voiced,
its pitch, and how loud pulses and noise are at each frequency. Pulses follow the pitch from frame to frame, so that
phases need not be learned, which spectral losses hardly teach (DDSP, arXiv 2001.04643).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.codecs.mel_rvq.spectra import Spectra

LOWEST, HIGHEST = 60.0, 480.0
"""Pitch in Hz."""
KERNEL, EXPANSION = 7, 3
CORRECTIONS = 2
"""Rounds in which the mel powers of what was made are brought to those asked for."""
QUIETEST, LOUDEST = -12.0, 8.0
"""Limits of the filters' log-magnitudes."""
NOISE = -1.5
"""Log-magnitude of noise beside that of pulses, before training."""
FLOOR = 1e-6
"""Added to powers whose logarithms are compared."""
SPREAD = 4.0
"""About the standard deviation of log-mel frames."""


class Block(nn.Module):
    """A ConvNeXt block: a convolution of each channel over time, then two layers over the channels; [B, T, width]."""

    def __init__(self, width: int):
        super().__init__()
        self.over_time = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.reduce = nn.Linear(width, EXPANSION * width), nn.Linear(EXPANSION * width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.norm(self.over_time(x.transpose(1, 2)).transpose(1, 2))
        return x + self.reduce(F.gelu(self.expand(mixed)))


class SourceFilterDecoder(nn.Module):
    """Audio from log-mel frames. Filters start as what the mel frames say at each frequency, and are corrected."""

    between: Tensor

    def __init__(self, spectra: Spectra, sample_rate: int, width: int, layers: int):
        """`spectra`: those of the codec, on the decoder's device."""
        super().__init__()
        self.spectra, self.sample_rate, self.hop = spectra, sample_rate, spectra.hop
        self.bins, mels = spectra.filters.shape
        self.embed = nn.Conv1d(mels, width, KERNEL, padding=KERNEL // 2)
        self.first_norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width)
        self.filters = nn.Linear(width, 2 * self.bins)
        self.voicing = nn.Linear(width, 2)
        self.register_buffer("between", interpolation(self.spectra.filters), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Weights as before training."""
        for module in self.modules():
            if isinstance(module, nn.Conv1d | nn.Linear | nn.LayerNorm):
                module.reset_parameters()
        nn.init.zeros_(self.filters.weight)
        nn.init.zeros_(self.filters.bias)
        self.filters.bias.data[self.bins :] = NOISE

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters of synthesis from log-mel frames [B, T, mels]: log-magnitudes of the filters of pulses and noise
        [B, T, 2, bins], logits of being voiced [B, T], and the pitch [B, T] in octaves above `LOWEST`."""
        x = self.first_norm(self.embed(mel.transpose(1, 2) / SPREAD).transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        x = self.last_norm(x)
        voiced, octaves = self.voicing(x).unbind(-1)
        # A mel filter's power over its sum is the power of each of its bins.
        before = (mel - self.spectra.filters.sum(0).log()) @ self.between / 2
        filters = self.filters(x).unflatten(-1, (2, self.bins)) + before[:, :, None]
        return filters.clamp(QUIETEST, LOUDEST), voiced, octaves

    def synthesize(self, filters: Tensor, hertz: Tensor, generator: torch.Generator) -> Tensor:
        """float32 [B, T hop]: pulses and noise through `filters`. `hertz` [B, T] is 0 where a frame is not voiced."""
        pulses = pulse_train(hertz, self.hop, self.sample_rate)
        noise = torch.randn(pulses.shape, generator=generator).to(pulses.device)
        sources = self.spectra.stft(torch.stack([pulses, noise], 1)).transpose(1, 2)  # [B, T, 2, bins]
        return self.spectra.istft((sources * filters.exp()).sum(2))

    def audio(self, mel: Tensor) -> Tensor:
        """float32 [T hop] of [T, mels]; the same frames always sound the same."""
        filters, voiced, octaves = self(mel[None])
        hertz = (LOWEST * 2**octaves).clamp(LOWEST, HIGHEST) * (voiced > 0)
        audio = self.synthesize(filters, hertz, torch.Generator().manual_seed(0))[0]
        for _ in range(CORRECTIONS):  # noise is not as loud in each frame as it is on average
            gain = ((mel - self.spectra.log_mel(audio)) @ self.between / 2).clamp(QUIETEST, -QUIETEST).exp()
            audio = self.spectra.istft(self.spectra.stft(audio) * gain)
        return audio


def interpolation(filters: Tensor) -> Tensor:
    """float32 [mels, bins]: from values at the peaks of mel filters [bins, mels] to all bins, linear between peaks."""
    weights = filters / filters.amax(0)
    peaks = filters.argmax(0)
    weights[: peaks[0]] = F.one_hot(torch.tensor(0), filters.shape[1]).float()
    weights[peaks[-1] :] = F.one_hot(torch.tensor(filters.shape[1] - 1), filters.shape[1]).float()
    return (weights / weights.sum(1, keepdim=True).clamp(min=1e-6)).T.contiguous()


def pulse_train(hertz: Tensor, hop: int, sample_rate: int) -> Tensor:
    """Pulses float32 [B, T hop], one for each period of the pitch [B, T], with a mean power of about 1 where it is
    voiced (above 0). A pulse between two samples is divided between them."""
    rate = hertz.repeat_interleave(hop, 1) / sample_rate  # periods a sample
    phase = (rate.cpu() if rate.device.type == "mps" else rate).double().cumsum(1)  # MPS has no float64
    after = phase - phase.floor()  # the share of a period since the last pulse
    if rate.device.type == "mps":
        after = after.to(rate)
    step = rate.clamp(min=1e-6)
    passed = (after < rate).float()
    share = (after.float() / step).clamp(0, 1)  # of the sample, since the pulse
    height = passed / step.sqrt()
    out = height * (1 - share)
    out[:, :-1] += (height * share)[:, 1:]
    return out


def spectral_distance(audio: Tensor, target: Tensor, windows: tuple[int, ...]) -> Tensor:
    """Mean over `windows` (samples) of how far the magnitudes of two [B, samples] are apart: L1 of their logarithms
    and of themselves (Yamamoto et al. 2020, arXiv 1910.11480)."""
    total = audio.new_zeros(())
    for size in windows:
        hann = torch.hann_window(size, device=audio.device)
        a, b = (
            torch.stft(x, size, size // 4, window=hann / math.sqrt(size), return_complex=True) for x in (audio, target)
        )
        a, b = (torch.view_as_real(x).square().sum(-1).add(FLOOR) for x in (a, b))
        logs = (a.log() - b.log()).abs().mean() / 2
        total = total + logs + (a.sqrt() - b.sqrt()).abs().sum() / b.sqrt().sum()
    return total / len(windows)
