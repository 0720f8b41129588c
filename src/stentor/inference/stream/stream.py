"""Stream: what is said, while it is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.stream.endpoint import Endpointer

BLOCK = 0.02
"""Seconds of audio that are heard at a time, however much is fed: so that events do not depend on it."""


class Stream:
    """One recording while it comes: `feed` its samples, and `finish`. What is held of it does not grow."""

    def __init__(self, recogniser: Recogniser, rate: int | None = None, silence: float | None = 0.8):
        """`rate`: Hz of what is fed (None: the recogniser's); `silence`: seconds after which speech has ended (None:
        whoever feeds it knows)."""
        self.recogniser, self.hypothesis = recogniser, recogniser.open()
        self._endpointer = None if silence is None else Endpointer(recogniser.rate, silence)
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
        self._ends = False

    def feed(self, samples: np.ndarray) -> list[Event]:
        """What is known after these: float32 [samples] in the range -1 to 1."""
        return self._alone(self.steps(samples))

    def finish(self) -> list[Event]:
        """What is known at the end."""
        return self._alone(self.last_steps())

    def steps(self, samples: np.ndarray) -> Iterator[Event | Hypothesis]:
        """The same as `feed`, for many streams together: where its hypothesis comes in the place of an event, it is
        `ready`, and is advanced beside those of others before this goes on."""
        self._fed = np.concatenate([self._fed, np.asarray(samples, np.float32)])
        while len(self._fed) >= self._block:
            block, self._fed = self._fed[: self._block], self._fed[self._block :]
            yield from self._hear(self._resampled(block))

    def last_steps(self) -> Iterator[Event | Hypothesis]:
        """The same as `finish`."""
        yield from self._hear(self._resampled(self._fed, last=True))
        rest, self._waiting = self._waiting, self._waiting[:0]
        self._samples += len(rest)
        self.hypothesis.add(rest)
        self.hypothesis.finish()
        yield from self._advanced()

    def _alone(self, steps: Iterable[Event | Hypothesis]) -> list[Event]:
        events: list[Event] = []
        for step in steps:
            if isinstance(step, Hypothesis):
                self.recogniser.advance([step])
            else:
                events.append(step)
        return events

    def _resampled(self, block: np.ndarray, last: bool = False) -> np.ndarray:
        return block if self._resampler is None else self._resampler.resample_chunk(block, last)

    def _hear(self, audio: np.ndarray) -> Iterator[Event | Hypothesis]:
        self._waiting = np.concatenate([self._waiting, audio])
        while len(self._waiting) >= self._hop:
            block, self._waiting = self._waiting[: self._hop], self._waiting[self._hop :]
            self._samples += len(block)
            self.hypothesis.add(block)
            if self._endpointer is not None and self._endpointer.add(block):
                self.hypothesis.flush(self._endpointer.seconds / 2)
                self._ends = True
            yield from self._advanced()
            if self._ends and self.hypothesis.settled:
                yield self._event("end_of_speech")
                self._ends = False

    def _advanced(self) -> Iterator[Event | Hypothesis]:
        while self.hypothesis.ready:
            yield self.hypothesis
        words, self.hypothesis.words = self.hypothesis.words, []
        yield from (self._event("word", **word) for word in words)
        if self.hypothesis.partial != self._partial:
            self._partial = self.hypothesis.partial
            yield self._event("partial", text=self._partial)

    def _event(self, kind: str, **facts: Any) -> Event:
        return {"type": kind, **facts, "time": round(self._samples / self.recogniser.rate, 3)}
