"""Turns: the utterances of audio that comes in pieces."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Literal

import numpy as np

from stentor.audio.activity import FRAME
from stentor.inference.stream.endpoint import Endpointer
from stentor.inference.stream.stream import BLOCK
from stentor.inference.vad import Detector
from stentor.serve.realtime.settings import TurnDetection

ONSET = 0.08
"""Seconds of speech after which an utterance has begun."""
Part = Literal["silence", "begin", "speech", "end"]


class Turns:
    """Finds where utterances begin and end. Where they are does not depend on the pieces."""

    def __init__(self, rate: int, vad: TurnDetection, seconds: float, detector: Detector):
        """`seconds`: of the session before it; `detector`: what finds speech, with the threshold of `vad`."""
        self.seconds = seconds
        """Of the session, up to the end of the last block."""
        self._rate = rate
        self._endpointer = Endpointer(detector.live(rate), vad.silence_duration_ms / 1000)
        self._block = round(BLOCK / FRAME) * self._endpointer.hop
        before = math.ceil((vad.prefix_padding_ms / 1000 + ONSET) / BLOCK)
        self._before: deque[np.ndarray] = deque(maxlen=before)
        self._rest = np.zeros(0, np.float32)
        self._speaking = False

    def split(self, samples: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
        """Float32 [samples] in blocks, each with what it is; `begin` has what came just before as well."""
        self._rest = np.concatenate([self._rest, samples])
        while len(self._rest) >= self._block:
            block, self._rest = self._rest[: self._block], self._rest[self._block :]
            self.seconds += self._block / self._rate  # not BLOCK: of some rates it is not a whole number of samples
            ended = self._endpointer.add(block)
            if self._speaking:
                self._speaking = not ended
                yield "end" if ended else "speech", block
                continue
            self._before.append(block)
            self._speaking = self._endpointer.speaking
            if self._speaking:
                block = np.concatenate(self._before)
                self._before.clear()
            yield "begin" if self._speaking else "silence", block

    def rest(self) -> np.ndarray:
        """What is less than a block."""
        return self._rest
