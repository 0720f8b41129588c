"""Quality of a recording of speech without a reference: signal-to-noise ratio and effective bandwidth."""

from __future__ import annotations

import numpy as np

WINDOW = 0.032
"""Seconds of a frame of the spectrum, with half of it between two frames."""
LOUDEST_SNR = 60.0
"""Decibels; more cannot be told from a recording of 16 bits."""
FLOOR_SHARE = 0.1
"""Of the frames, in each band: the quietest ones, which hold its noise."""
FLOOR_BIAS = -float(np.log1p(-FLOOR_SHARE))
"""Their level in Gaussian noise, whose power in a band is distributed exponentially, relative to its mean."""
DEPTH = 65.0
"""Decibels under the loudest band, down to which a band holds something."""


def spectrogram(audio: np.ndarray, rate: int, seconds: float = WINDOW) -> np.ndarray:
    """Power [frames, bins] of Hann windows; `audio` float [samples] is at least a window long, or padded to one."""
    size = round(seconds * rate)
    audio = np.pad(audio, (0, max(0, size - len(audio))))
    frames = np.lib.stride_tricks.sliding_window_view(audio, size)[:: size // 2]
    return np.square(np.abs(np.fft.rfft(frames * np.hanning(size).astype(np.float32))))


def snr(audio: np.ndarray, rate: int) -> float:
    """Signal-to-noise ratio in dB of float [samples] with speech, at most `LOUDEST_SNR`.

    The noise of each band is a low quantile of its power over time (Stahl, Fischer and Bippus, "Quantile based noise
    estimation for spectral subtraction and Wiener filtering", ICASSP 2000): even while somebody speaks each band has
    moments without speech. Noise that comes and goes, and other voices, count as speech.
    """
    power = spectrogram(audio, rate)[:, round(80 * WINDOW) :]
    noise = float(np.quantile(power, FLOOR_SHARE, axis=0).sum()) / FLOOR_BIAS
    total = float(power.mean(0).sum())
    if noise <= total * 10 ** (-LOUDEST_SNR / 10):
        return LOUDEST_SNR
    return float(10 * np.log10(max(total - noise, 1e-3 * noise) / noise))


def bandwidth(audio: np.ndarray, rate: int) -> float:
    """Frequency in Hz up to which float [samples] hold anything: half of `rate`, or less where the audio was sampled up
    or passed a telephone or a codec.

    As NVIDIA's NeMo Speech Data Processor has it (EstimateBandwidth): the highest band less than some decibels under
    the loudest. Here the spectrum is that of the loud moments of each band (its 95 % quantile over time), so that
    hissing sounds count. The transition of a resampling filter makes it some 3 % less than half the rate that there
    was."""
    power = spectrogram(audio, rate)
    levels = 10 * np.log10(np.quantile(power, 0.95, axis=0) + 1e-12)
    held = power.any(0) & (levels > levels.max() - DEPTH)
    return float(np.flatnonzero(held)[-1] / WINDOW) if held.any() else 0.0
