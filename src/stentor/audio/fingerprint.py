"""Audio fingerprint: landmarks of the spectrum that stay when a recording is made louder, cut or encoded again.

As Wang, "An industrial-strength audio search algorithm" (ISMIR 2003): peaks of the spectrogram, each hashed with later
ones near it. Three peaks make a hash here instead of two, which unrelated recordings hardly share, and of the hashes a
fourth is kept, chosen by their values, so that all recordings keep the same ones. Two recordings hold the same sound
where many hashes are equal at one offset in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

RATE = 8000
"""Hz: what a telephone or a low bit rate leaves."""
WINDOW, HOP = 512, 64
"""Samples of a frame of the spectrum, and between two frames: 8 ms, so that an offset between them does little."""
LOWEST = 12
"""First band, at 190 Hz: below is hum."""
BAND_REACH, FRAME_REACH = 8, 24
"""A peak is the largest within so many bands and frames on either side."""
FAN_OUT, FARTHEST = 4, 250
"""Later peaks that one is hashed with, and most frames between them."""
STEP = 8
"""Frames that count as one in hashes and offsets: peaks move by some frames when a recording is encoded again."""
SHARE = 4
"""One of so many hashes is kept."""
NEIGHBOURS = 16
"""Equal hashes that one is compared with, those before it in the data: of a jingle in every recording no more."""
LEAST = 5
"""Landmarks that recordings must share to be compared: fewer are chance."""


class Fingerprint(NamedTuple):
    """Landmarks of a recording, in order of time; about 35 a second of speech."""

    hashes: np.ndarray  # uint32 [N]
    frames: np.ndarray  # uint32 [N], of 8 ms

    def tobytes(self) -> bytes:
        return np.concatenate(self).astype("<u4").tobytes()

    @classmethod
    def frombytes(cls, data: bytes) -> Fingerprint:
        return cls(*np.frombuffer(data, "<u4").reshape(2, -1))


def fingerprint(audio: np.ndarray, rate: int) -> Fingerprint:
    """The landmarks of float [samples] (at least one)."""
    import soxr
    from scipy.ndimage import maximum_filter

    audio = np.pad(soxr.resample(audio, rate, RATE).astype(np.float32), WINDOW // 2)
    windows = np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP]
    levels = np.abs(np.fft.rfft(windows * np.hanning(WINDOW).astype(np.float32)))[:, LOWEST:]
    loudest = maximum_filter(levels, (2 * FRAME_REACH + 1, 2 * BAND_REACH + 1), mode="constant")
    frames, bands = np.nonzero((levels == loudest) & (levels > 1e-3 * levels.max()))
    bands = (bands // 2).astype(np.uint32)
    hashes, times = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint32)]
    for second in range(1, FAN_OUT):
        for third in range(second + 1, FAN_OUT + 1):
            a, b, c = (slice(i, max(len(frames) - third + i, 0)) for i in (0, second, third))
            near, far = (((frames[x] - frames[a]) + STEP // 2) // STEP for x in (b, c))
            key = (bands[a] << 24) | (bands[b] << 16) | (bands[c] << 8) | ((near * 16 + far) % 256).astype(np.uint32)
            usable = (frames[c] - frames[a] > 0) & (frames[c] - frames[a] <= FARTHEST) & (_mixed(key) % SHARE == 0)
            hashes.append(key[usable])
            times.append(frames[a][usable].astype(np.uint32))
    all_times = np.concatenate(times)
    order = np.argsort(all_times, kind="stable")
    return Fingerprint(np.concatenate(hashes)[order], all_times[order])


def _mixed(key: np.ndarray) -> np.ndarray:
    """Bits that have nothing to do with what the key means (Knuth's multiplicative hash)."""
    return (key * np.uint32(2654435761)) >> np.uint32(16)


def shared(prints: Sequence[Fingerprint], least: float) -> Iterator[tuple[int, int, float]]:
    """(later, earlier, share) of the pairs of recordings, in order, that have at least this share of the landmarks of
    the one with fewer at one offset. Takes some 30 bytes a landmark."""
    sizes = np.array([len(p.hashes) for p in prints], int)
    hashes, frames = (np.concatenate([np.zeros(0, np.uint32), *(p[k] for p in prints)]) for k in (0, 1))
    owner = np.repeat(np.arange(len(prints)), sizes)
    order = np.argsort(hashes, kind="stable")
    hashes, frames, owner = hashes[order], frames[order].astype(np.int64), owner[order]
    matches = []
    for distance in range(1, NEIGHBOURS + 1):
        equal = np.flatnonzero((hashes[distance:] == hashes[:-distance]) & (owner[distance:] != owner[:-distance]))
        later, earlier = owner[equal + distance], owner[equal]
        offset = (frames[equal + distance] - frames[equal]) // STEP
        # Each match counts at two offsets, so that matches on both sides of a border meet at one.
        matches += [np.stack([later, earlier, offset + i], 1) for i in (0, 1)]
    if not len(hashes):
        return
    places, counts = np.unique(np.concatenate(matches), axis=0, return_counts=True)
    best: dict[tuple[int, int], int] = {}
    for (b, a, _), count in zip(places[counts >= LEAST].tolist(), counts[counts >= LEAST].tolist()):
        best[b, a] = max(best.get((b, a), 0), count)
    for (b, a), most in sorted(best.items()):
        share = min(1.0, most / float(min(sizes[b], sizes[a])))
        if share >= least:
            yield b, a, share
