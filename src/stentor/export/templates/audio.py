"""Audio files as samples."""

import numpy as np
import soundfile

RATE, HOP = 16000, 160


def read(path, rate=RATE):
    """A file as float32 [samples] at `rate`; from another rate its spectrum is cut off or continued with zeros."""
    audio, native = opened(path, lambda p: soundfile.read(p, dtype="float32", always_2d=True), "give an audio file")
    audio, size = audio.mean(1), round(len(audio) * rate / native)
    return audio if native == rate else (np.fft.irfft(np.fft.rfft(audio), size) * rate / native).astype(np.float32)


def opened(path, reader, advice="copy or export the folder again"):  # what `reader` makes of the file
    try:
        return reader(path)
    except Exception as error:  # each library has its own
        raise SystemExit(f"{path} cannot be read ({str(error) or type(error).__name__}): {advice}") from error


def runs(mask):  # first frame, and the frame after the last, of each stretch of True: [N, 2]
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]))).reshape(-1, 2)
