"""Endpointer: since when nobody speaks, from the levels of audio that comes in blocks."""

from __future__ import annotations

from collections import deque

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
        self._sos = butter(2, 80, "highpass", fs=rate, output="sos")
        self._memory = np.zeros((len(self._sos), 2))
        self._levels: deque[float] = deque(maxlen=round(REACH / FRAME))
        self._floor, self._frames, self._spoken, self._quiet = FLOOR, 0, 0, 0

    @property
    def speaking(self) -> bool:
        """Whether somebody has spoken since speech ended last."""
        return self._spoken >= SPOKEN

    def add(self, block: np.ndarray) -> bool:
        """Whether speech has ended in this block, float32 of some frames of 10 ms."""
        from scipy.signal import sosfilt

        filtered, self._memory = sosfilt(self._sos, block, zi=self._memory)
        ended = False
        for power in np.square(filtered.reshape(-1, self.hop)).mean(1):
            self._levels.append(max(FLOOR, 10 * float(np.log10(max(power, 1e-12)))))
            if self._frames % 10 == 0:
                self._floor = float(np.quantile(self._levels, 0.1))
            self._frames += 1
            speech = self._levels[-1] > max(self._floor + self.margin, SILENCE)
            self._spoken += speech
            self._quiet = 0 if speech else self._quiet + 1
            if self._quiet == self.silence:
                ended = ended or self.speaking
                self._spoken = 0
        return ended
