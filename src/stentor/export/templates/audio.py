"""Audio files as samples."""

import numpy as np
import soundfile

RATE, HOP = 16000, 160


def read(path, rate=RATE):
    """A file as float32 [samples] at `rate`; from another rate its spectrum is cut off or continued with zeros."""
    audio, native = soundfile.read(path, dtype="float32", always_2d=True)
    audio, size = audio.mean(1), round(len(audio) * rate / native)
    return audio if native == rate else (np.fft.irfft(np.fft.rfft(audio), size) * rate / native).astype(np.float32)


def runs(mask):  # first frame, and the frame after the last, of each stretch of True: [N, 2]
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]))).reshape(-1, 2)
