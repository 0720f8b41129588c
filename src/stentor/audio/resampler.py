"""Resampler: audio that comes in pieces, at another rate."""

from typing import Any

import numpy as np


class Resampler:
    """One channel from a rate to another. Samples come out some milliseconds after they went in."""

    def __init__(self, rate: int, wanted: int):
        self._stream: Any = None
        if rate != wanted:
            import soxr

            self._stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")

    def add(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Output that is known after these [samples]; `last`: there are no more."""
        if self._stream is None:
            return samples
        resampled: np.ndarray = self._stream.resample_chunk(np.asarray(samples, np.float32), last)
        return resampled
