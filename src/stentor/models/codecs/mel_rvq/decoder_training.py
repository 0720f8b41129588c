"""Training of the decoder of `mel_rvq`: by the spectra of what it makes of a codec's mel frames, and the pitch of the
recordings (autocorrelation, Boersma 1993)."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.models.codecs.mel_rvq.config import Decoder
from stentor.models.codecs.mel_rvq.decoder import HIGHEST, LOWEST, SourceFilterDecoder, spectral_distance

SECONDS = 0.8
"""Length of a clip in a batch; shorter clips are padded with silence."""
ITEMS = 12
WARM_UP = 50
"""Steps."""
WINDOWS = (0.02, 0.05, 0.1)
"""Seconds of the windows that spectra are compared with."""

PERIODS = 3.0
"""Periods of the lowest pitch in a window."""
VOICED = 0.5
"""Least autocorrelation of a voiced frame."""
OCTAVE_COST = 0.02
"""Autocorrelation that an octave downwards costs: of equal peaks, those of multiples of the period are not it."""
QUIET = 0.02
"""Peak of a frame, as a share of the clip's, below which it counts as silence."""


def train_decoder(
    decoder: SourceFilterDecoder, clips: Sequence[tuple[Tensor, np.ndarray]], section: Decoder, seed: int
) -> None:
    """Train on pairs of a codec's log-mel frames [T, mels] and the audio [at most T hop] they were made of.

    The same for the same clips in the same order and seed (and one number of threads).
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        decoder.reset()
        items = [prepared(decoder, mel, audio) for mel, audio in clips]
        order = np.random.default_rng(seed)
        weights = np.array([len(mel) for mel, _, _ in items], float)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=section.lr, betas=(0.9, 0.98), weight_decay=0.01)
        generator = torch.Generator().manual_seed(seed)
        windows = tuple(round(seconds * decoder.sample_rate) for seconds in WINDOWS)
        for step in range(section.steps):
            rate = min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / section.steps))
            for group in optimizer.param_groups:
                group["lr"] = section.lr * rate
            chosen = order.choice(len(items), ITEMS, p=weights / weights.sum())
            mel, audio, hertz = batch([items[i] for i in chosen], decoder, order)
            loss = decoder_loss(decoder, mel, audio, hertz, windows, generator)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
            optimizer.step()


def prepared(decoder: SourceFilterDecoder, mel: Tensor, audio: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Mel frames, audio filled up to them, and its pitch."""
    padded = torch.zeros(len(mel) * decoder.hop)
    padded[: len(audio)] = torch.as_tensor(audio, dtype=torch.float32)
    return mel, padded, pitch_of(padded, decoder.hop, decoder.sample_rate)


def batch(
    items: Sequence[tuple[Tensor, Tensor, Tensor]], decoder: SourceFilterDecoder, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Stretches of clips from random places: mel frames [B, T, mels], audio [B, T hop], pitch [B, T]."""
    length = round(SECONDS * decoder.sample_rate / decoder.hop)
    parts = []
    for mel, audio, hertz in items:
        start = int(rng.integers(0, max(1, len(mel) - length + 1)))
        short = max(0, length - len(mel))
        # The last frame on and on: the codec has no code for nothing.
        frames = torch.cat([mel[start : start + length], mel[-1:].expand(short, -1)])
        samples = audio[start * decoder.hop : (start + length) * decoder.hop]
        pitch = F.pad(hertz[start : start + length], (0, short))
        parts.append((frames, F.pad(samples, (0, short * decoder.hop)), pitch))
    mel, audio, hertz = (torch.stack(part) for part in zip(*parts))
    return mel, audio, hertz


def decoder_loss(
    decoder: SourceFilterDecoder,
    mel: Tensor,
    audio: Tensor,
    hertz: Tensor,
    windows: tuple[int, ...],
    generator: torch.Generator,
) -> Tensor:
    """Distance of the spectra, with pulses at the recording's pitch, and how wrong voicing and pitch are."""
    filters, voiced, octaves = decoder(mel)
    distance = spectral_distance(decoder.synthesize(filters, hertz, generator), audio, windows)
    is_voiced = hertz > 0
    target = (hertz.clamp(min=LOWEST) / LOWEST).log2()
    wrong = F.smooth_l1_loss(octaves[is_voiced], target[is_voiced], reduction="sum", beta=0.05)
    return (
        distance + F.binary_cross_entropy_with_logits(voiced, is_voiced.float()) + wrong / max(1, int(is_voiced.sum()))
    )


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
    """Autocorrelation of [T, window], divided by its value at lag 0: [T, window]."""
    size = frames.shape[1]
    power = torch.fft.rfft(frames, 2 * size).abs().square()
    correlation = torch.fft.irfft(power)[:, :size]
    return correlation / correlation[:, :1].clamp(min=1e-9)
