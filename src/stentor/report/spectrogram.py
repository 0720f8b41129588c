"""Spectrograms as PNG pictures, for reports: a few lines of numpy and zlib instead of a drawing library."""

import struct
import zlib

import numpy as np

ROWS = 96
"""Points on the mel scale, from 60 Hz to 7.6 kHz or half the sampling rate."""
WINDOW, HOP = 0.02, 0.005
"""Seconds of an analysis window and between two columns."""
RANGE = 55.0
"""Decibels from the loudest points, which are black, to white."""
LEVELS = 24
"""Shades of grey: enough for the eye, and few compress well."""


def spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Shades of grey, uint8 [ROWS, columns], low frequencies at the bottom, of float32 [samples] at `rate` Hz. A column
    stands for `HOP` seconds around its middle, so that the picture spans exactly the audio."""
    width, hop = round(WINDOW * rate), HOP * rate
    size = 1 << (2 * width - 1).bit_length()
    columns = max(1, round(len(samples) / hop))
    middles = ((np.arange(columns) + 0.5) * hop).astype(int)
    padded = np.pad(np.asarray(samples, np.float32), width)
    frames = padded[middles[:, None] + width - width // 2 + np.arange(width)] * np.hanning(width).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, size)) ** 2
    low, high = (1127 * np.log1p(f / 700) for f in (60, min(7600, rate / 2)))
    frequencies = 700 * np.expm1(np.linspace(low, high, ROWS) / 1127)
    bins = frequencies / rate * size
    left = np.floor(bins).astype(int).clip(0, power.shape[1] - 2)
    share = bins - left
    decibels = 10 * np.log10(power[:, left] * (1 - share) + power[:, left + 1] * share + 1e-10)
    top = np.percentile(decibels, 99.7)
    loud = ((decibels - top) / RANGE + 1).clip(0, 1)
    return (255 - np.round(loud * (LEVELS - 1)) * (255 / (LEVELS - 1))).astype(np.uint8).T[::-1]


def png(grey: np.ndarray) -> bytes:
    """A PNG file (8 bit greyscale) of uint8 [rows, columns]; the format is that of the W3C's PNG specification."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, columns = grey.shape
    lines = b"".join(b"\0" + row.tobytes() for row in grey)  # 0: no filter, which is best for few shades
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines, 9)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
