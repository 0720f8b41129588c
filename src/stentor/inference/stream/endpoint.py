"""Endpointer: since when nobody speaks, from the levels of audio that comes in blocks."""

from __future__ import annotations

import math

import numpy as np

from stentor.audio.activity import FLOOR, FRAME, MARGIN, SILENCE

REACH = 15.0
"""Seconds back for the noise floor."""
SPOKEN = 8
"""Frames of speech without which there is nothing to end."""


class Endpointer:
    """Finds where speech has ended: `silence` seconds within a margin of the noise floor, after speech."""

    def __init__(self, rate: int, silence: float = 0.8, margin: float = MARGIN):
        """`margin`: dB above the noise floor from which on there is speech."""
        from scipy.signal import butter

        self.hop, self.silence = round(rate * FRAME), max(1, round(silence / FRAME))
        self.margin = margin
        self._highpass = butter(2, 80, "highpass", fs=rate)
        self._memory = np.zeros(2)
        self._levels = np.zeros(round(REACH / FRAME))
        self._floor, self._frames, self._spoken, self._quiet = FLOOR, 0, 0, 0

    @property
    def seconds(self) -> float:
        """Of silence after which speech has ended."""
        return self.silence * FRAME

    @property
    def speaking(self) -> bool:
        """Whether somebody has spoken since speech ended last."""
        return self._spoken >= SPOKEN

    def end(self) -> None:
        """Speech has ended, as somebody else knows."""
        self._spoken = 0

    def add(self, block: np.ndarray) -> bool:
        """Whether speech has ended in this block, float32 of some frames of 10 ms."""
        from scipy.signal import lfilter

        filtered, self._memory = lfilter(*self._highpass, block, zi=self._memory)
        ended = False
        for power in np.square(filtered.reshape(-1, self.hop)).mean(1).tolist():
            level = max(FLOOR, 10 * math.log10(max(power, 1e-12)))
            self._levels[self._frames % len(self._levels)] = level
            self._frames += 1
            if self._frames % 10 == 1:
                self._floor = _quiet_level(self._levels[: self._frames])
            speech = level > max(self._floor + self.margin, SILENCE)
            self._spoken += speech
            self._quiet = 0 if speech else self._quiet + 1
            if self._quiet == self.silence:
                ended = ended or self.speaking
                self._spoken = 0
        return ended


def _quiet_level(levels: np.ndarray) -> float:
    """The 10 % quantile."""
    place = 0.1 * (len(levels) - 1)
    below, above = math.floor(place), math.ceil(place)
    ordered = np.partition(levels, (below, above))
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
