"""Features of audio that comes in pieces, to the last bit the same for any pieces."""

from __future__ import annotations

import numpy as np

from stentor.models.encoders.features import Features


class FeatureStream:
    """Frames of a recording while it comes. They are those of `Features` but for the last bits: spectra are computed
    for `unit` frames at a time, behind the first ones, counted from the start of the recording."""

    def __init__(self, features: Features, first: int, unit: int):
        """`features`: without dither, and with a `normalize` that does not look ahead. `first`: so many are computed
        first, and those that are joined to the last one of them."""
        self.features, self.unit = features, unit
        self._next = first + max(0, features.stack + (features.subsample - features.stack) // 2 - features.subsample)
        """Frames that are computed next."""
        self._plain = type(features)(**{**features.model_dump(), "snip_edges": True})
        self._left = 0 if features.snip_edges else (features.length - features.shift) // 2
        self._signal = np.zeros(0, np.float32)
        """Samples from the start of the next frame on; mirrored before the first sample."""
        self._begun = False
        self._last = np.zeros(0, np.float32)
        """The last samples, of which the end is mirrored."""
        self._samples = self._frames = 0
        self._rows = np.zeros((0, features.bins), np.float32)
        """Frames before they are joined, from the first that is needed on."""
        self._first = self._joined = 0

    def add(self, samples: np.ndarray) -> np.ndarray:
        """The next frames float32 [T, size] that can be computed after these float32 [samples]."""
        self._samples += len(samples)
        self._last = np.concatenate([self._last, samples])[-self.features.length :]
        self._signal = np.concatenate([self._signal, samples])
        if not self._begun and len(self._signal) > self.features.length:
            self._begin()
        before = self._frames
        while self._begun and len(self._signal) >= (self._next - 1) * self.features.shift + self.features.length:
            self._extract(self._next)
        return self._join(self._frames) if self._frames > before else np.zeros((0, self.features.size), np.float32)

    def finish(self) -> np.ndarray:
        """The last frames."""
        f = self.features
        if short := max(0, f.length - self._samples):
            self.add(np.zeros(short, np.float32))
        if not self._begun:
            self._begin()
        total = f.count(self._samples)
        right = (total - 1) * f.shift + f.length - self._left - self._samples
        if right > 0:
            self._signal = np.concatenate([self._signal, self._last[len(self._last) - right :][::-1]])
        while self._frames < total:
            self._extract(min(self._next, total - self._frames))
        return self._join(total + f.stack + f.subsample)

    def _begin(self) -> None:
        self._begun = True
        self._signal = np.concatenate([self._signal[: self._left][::-1], self._signal])

    def _extract(self, count: int) -> None:
        f = self.features
        rows = self._plain.extract(self._signal[: (count - 1) * f.shift + f.length])
        self._rows = np.concatenate([self._rows, f.normalized(rows)])
        self._signal = self._signal[count * f.shift :]
        self._frames, self._next = self._frames + count, self.unit

    def _join(self, until: int) -> np.ndarray:
        """Output frames whose parts all come before frame `until`; beyond the end the last one stands in."""
        f = self.features
        offset = (f.subsample - f.stack) // 2
        count = max(self._joined, -(-self._frames // f.subsample) if until > self._frames else 0)
        if until <= self._frames:
            count = max(self._joined, (until - f.stack - offset) // f.subsample + 1)
        numbers = np.arange(self._joined, count) * f.subsample + offset
        rows = (numbers[:, None] + np.arange(f.stack)).clip(0, max(self._frames - 1, 0)) - self._first
        joined = self._rows[rows].reshape(len(numbers), f.size)
        self._joined = count
        needed = max(self._first, min(count * f.subsample + offset, self._frames - 1))
        self._rows, self._first = self._rows[needed - self._first :], needed
        return joined
