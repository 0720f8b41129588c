"""Quality of a recording of speech without a reference: signal-to-noise ratio and effective bandwidth."""

from functools import cache

import numpy as np

WINDOW = 0.032
"""Seconds of a frame of the spectrum, with half of it between two frames."""
LOUDEST_SNR = 60.0
"""Decibels; the limit of 16-bit recordings."""
FLOOR_SHARE = 0.1
"""Share of the frames in each band, the quietest ones, which hold its noise."""
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

    The lower one of two estimates. The noise of each band is a low quantile of its power over time (Stahl, Fischer and
    Bippus, "Quantile based noise estimation for spectral subtraction and Wiener filtering", ICASSP 2000): even while
    somebody speaks each band has moments without speech; this is steady, and takes noise that comes and goes for
    speech. The other looks at the samples alone: noise is Gaussian, speech is mostly quiet (WADA; Kim and Stern,
    "Robust signal-to-noise ratio estimation based on waveform amplitude distribution analysis", Interspeech 2008)."""
    return min(_quantile_snr(audio, rate), _wada_snr(audio))


def _quantile_snr(audio: np.ndarray, rate: int) -> float:
    power = spectrogram(audio, rate)[:, round(80 * WINDOW) :]
    noise = float(np.quantile(power, FLOOR_SHARE, axis=0).sum()) / FLOOR_BIAS
    total = float(power.mean(0).sum())
    if noise <= total * 10 ** (-LOUDEST_SNR / 10):
        return LOUDEST_SNR
    return float(10 * np.log10(max(total - noise, 1e-3 * noise) / noise))


def _wada_snr(audio: np.ndarray) -> float:
    sizes = np.abs(audio[audio != 0]).astype(np.float64)
    if not len(sizes):
        return LOUDEST_SNR
    return float(np.interp(np.log(sizes.mean()) - np.log(sizes).mean(), *_wada_table()))


@cache
def _wada_table() -> tuple[np.ndarray, np.ndarray]:
    """Log of the mean size less mean of the log sizes, of speech (Gamma of shape 0.4) in Gaussian noise, and dB."""
    from scipy.special import gammaincinv, ndtri

    places = (np.arange(400) + 0.5) / 400
    speech, noise = gammaincinv(0.4, places)[:, None], ndtri(places)[None]
    decibels = np.arange(-20.0, LOUDEST_SNR + 1)
    scale = np.sqrt(np.square(speech).mean() / np.square(noise).mean())
    mixtures = (np.abs(speech + noise * scale * 10 ** (-db / 20)) + 1e-12 for db in decibels)
    return np.array([np.log(m.mean()) - np.log(m).mean() for m in mixtures]), decibels


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
