"""Endpointer: since when nobody speaks, in audio that comes in blocks."""

from __future__ import annotations

import numpy as np

from stentor.audio.activity import FRAME
from stentor.inference.vad import LiveDetector

SPOKEN = 8
"""Frames of speech without which there is nothing to end."""


class Endpointer:
    """Finds where speech has ended: `silence` seconds without any, after speech."""

    def __init__(self, detector: LiveDetector, silence: float = 0.8):
        self.detector, self.hop, self.silence = detector, detector.hop, max(1, round(silence / FRAME))
        self._spoken, self._quiet = 0, 0
        self.paused = False
        """Whether half of that time has passed in the last block."""

    @property
    def speaking(self) -> bool:
        """Whether somebody has spoken since speech ended last."""
        return self._spoken >= SPOKEN

    def end(self) -> None:
        """Speech has ended, as somebody else knows."""
        self._spoken = 0

    def add(self, block: np.ndarray) -> bool:
        """Whether speech has ended in this block, float32 of some frames of 10 ms."""
        ended = self.paused = False
        for speech in self.detector.add(block):
            self._spoken += speech
            self._quiet = 0 if speech else self._quiet + 1
            self.paused = self.paused or (self.speaking and self._quiet == (self.silence + 1) // 2)
            if self._quiet == self.silence:
                ended = ended or self.speaking
                self._spoken = 0
        return ended
