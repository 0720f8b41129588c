"""Stream: what is said, while it is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.stream.endpoint import Endpointer

BLOCK = 0.02
"""Seconds of audio that are heard at a time, however much is fed: so that events do not depend on it."""


class Stream:
    """One recording while it comes: `feed` its samples, and `finish`. What is held of it does not grow."""

    def __init__(self, recogniser: Recogniser, rate: int | None = None, silence: float = 0.8):
        """`rate`: Hz of what is fed (None: the recogniser's); `silence`: seconds after which speech has ended."""
        self.recogniser, self.hypothesis = recogniser, recogniser.open()
        self._endpointer = Endpointer(recogniser.rate, silence)
        self._resampler: Any = None
        if rate not in (None, recogniser.rate):
            import soxr

            self._resampler = soxr.ResampleStream(rate, recogniser.rate, 1, dtype="float32")
        self._block = round((rate or recogniser.rate) * BLOCK)
        self._hop = round(recogniser.rate * BLOCK)
        self._fed = np.zeros(0, np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._samples = 0
        self._partial = ""

    def feed(self, samples: np.ndarray) -> list[Event]:
        """What is known after these: float32 [samples] in the range -1 to 1."""
        self._fed = np.concatenate([self._fed, np.asarray(samples, np.float32)])
        events: list[Event] = []
        while len(self._fed) >= self._block:
            block, self._fed = self._fed[: self._block], self._fed[self._block :]
            events += self._hear(self._resampled(block))
        return events

    def finish(self) -> list[Event]:
        """What is known at the end."""
        events = self._hear(self._resampled(self._fed, last=True))
        rest, self._waiting = self._waiting, self._waiting[:0]
        self._samples += len(rest)
        self.hypothesis.add(rest)
        self.hypothesis.finish()
        advance(self.recogniser, [self.hypothesis])
        return events + self._events()

    def _resampled(self, block: np.ndarray, last: bool = False) -> np.ndarray:
        return block if self._resampler is None else self._resampler.resample_chunk(block, last)

    def _hear(self, audio: np.ndarray) -> list[Event]:
        self._waiting = np.concatenate([self._waiting, audio])
        events: list[Event] = []
        while len(self._waiting) >= self._hop:
            block, self._waiting = self._waiting[: self._hop], self._waiting[self._hop :]
            self._samples += len(block)
            self.hypothesis.add(block)
            ended = self._endpointer.add(block)
            if ended:
                self.hypothesis.flush()
            advance(self.recogniser, [self.hypothesis])
            events += self._events()
            if ended:
                events.append(self._event("end_of_speech"))
        return events

    def _events(self) -> list[Event]:
        events = [self._event("word", **word) for word in self.hypothesis.words]
        self.hypothesis.words = []
        if self.hypothesis.partial != self._partial:
            self._partial = self.hypothesis.partial
            events.append(self._event("partial", text=self._partial))
        return events

    def _event(self, kind: str, **facts: Any) -> Event:
        return {"type": kind, **facts, "time": round(self._samples / self.recogniser.rate, 3)}


def advance(recogniser: Recogniser, hypotheses: Sequence[Hypothesis]) -> None:
    """Steps, together, until none of the hypotheses is ready."""
    while ready := [hypothesis for hypothesis in hypotheses if hypothesis.ready]:
        recogniser.advance(ready)
