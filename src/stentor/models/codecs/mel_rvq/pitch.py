"""Pitch of recordings by autocorrelation (Boersma 1993), to train the decoder with."""

import torch
from torch import Tensor
from torch.nn import functional as F

LOWEST, HIGHEST = 60.0, 480.0
"""Hz."""
PERIODS = 3.0
"""Of the lowest pitch, in a window."""
VOICED = 0.5
"""Least autocorrelation of a voiced frame."""
OCTAVE_COST = 0.02
"""Autocorrelation that an octave downwards costs: of equal peaks, those of multiples of the period are not it."""
QUIET = 0.02
"""Peak of a frame, as a share of the clip's, below which it counts as silence."""


def pitch_of(audio: Tensor, hop: int, sample_rate: int) -> Tensor:
    """Hz float32 [T] of [T hop] samples, 0 where a frame is not voiced."""
    window = int(PERIODS * sample_rate / LOWEST)
    edge = (window - hop) // 2
    frames = F.pad(audio, (edge, window - hop - edge)).unfold(0, window, hop)
    loud = frames.abs().amax(1) > QUIET * audio.abs().max()
    hann = torch.hann_window(window, periodic=False)
    correlation = autocorrelation((frames - frames.mean(1, keepdim=True)) * hann)
    correlation = correlation / autocorrelation(hann[None])  # the window's own decay
    first, last = int(sample_rate / HIGHEST), int(sample_rate / LOWEST)
    lags = torch.arange(first, last + 1, device=audio.device)
    before, here, after = (correlation[:, first + n : last + n + 1] for n in (-1, 0, 1))
    peaks = (here >= before) & (here >= after) & (here >= VOICED)
    scores = here - OCTAVE_COST * (lags * LOWEST / sample_rate).log2()
    best = scores.masked_fill(~peaks, -1.0).argmax(1)
    hertz = sample_rate / lags[best]
    return hertz * (peaks.any(1) & loud)


def autocorrelation(frames: Tensor) -> Tensor:
    """Of [T, window], over its value at lag 0: [T, window]."""
    size = frames.shape[1]
    power = torch.fft.rfft(frames, 2 * size).abs().square()
    correlation = torch.fft.irfft(power)[:, :size]
    return correlation / correlation[:, :1].clamp(min=1e-9)
