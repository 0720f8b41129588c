"""Streaming transcription of live audio."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stentor.audio.activity import FRAME
from stentor.audio.io import check_finite
from stentor.audio.resampler import Resampler
from stentor.data.word_times import in_order
from stentor.errors import ConfigError
from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.vad import Endpointer

BLOCK = 0.02
"""Seconds of audio processed at a time, so that events do not depend on how much is fed at once."""
RATES = (1000, 1_000_000)
"""Minimum and maximum sample rate in Hz."""


class Stream:
    """Live transcription in constant memory; see `Model.stream`. Call `feed` for each block of samples, then `finish`.

    Both return a list of events, dicts with `type` and `time`, the seconds of audio fed so far:

    * `word`: a final word with `word`, `start` and `end` in seconds and `confidence` (None if unknown);
    * `partial`: `text` after the last word, which may still change;
    * `end_of_speech`: a pause after speech. Everything said before it has become words."""

    def __init__(self, recogniser: Recogniser, rate: int | None = None, silence: float | None = 0.8):
        """`rate`: sample rate of the fed audio in Hz, by default the recogniser's; `silence`: seconds of silence after
        which speech has ended (None: the caller decides). Raises ConfigError for invalid values."""
        if rate is not None and not RATES[0] <= rate <= RATES[1]:
            raise ConfigError(f"The sample rate must be from {RATES[0]} to {RATES[1]} Hz, such as 16000, not {rate}.")
        if silence is not None and not 0 < silence < math.inf:
            raise ConfigError(f"The silence must be above 0 s, such as 0.8, not {silence:g}.")
        self.recogniser, self.hypothesis = recogniser, recogniser.open()
        self._endpointer = None if silence is None else Endpointer(recogniser.detector.live(recogniser.rate), silence)
        self._resampler = Resampler(rate or recogniser.rate, recogniser.rate)
        self._block = round((rate or recogniser.rate) * BLOCK)
        self._hop = round(BLOCK / FRAME) * round(recogniser.rate * FRAME)
        self._fed = np.zeros(0, np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._samples = 0
        self._partial, self._spoken = "", 0.0  # the end of the last word in seconds
        self._ends = self._finished = False

    def feed(self, samples: np.ndarray) -> list[Event]:
        """Add audio, float32 [samples] from -1 to 1, and return the new events. Raises ConfigError for other arrays and
        after `finish`, and AudioError for NaN."""
        return self._alone(self.steps(samples))

    def finish(self) -> list[Event]:
        """End the recording and return the remaining events."""
        return self._alone(self.last_steps())

    def steps(self, samples: np.ndarray) -> Iterator[Event | Hypothesis]:
        """Like `feed`, for many streams at once. When it yields its hypothesis, the caller advances the `ready`
        hypotheses of all streams together before continuing."""
        self._fed = np.concatenate([self._fed, self.checked(samples)])
        while len(self._fed) >= self._block:
            block, self._fed = self._fed[: self._block], self._fed[self._block :]
            yield from self._hear(self._resampler.add(block))

    def last_steps(self) -> Iterator[Event | Hypothesis]:
        """Like `finish`, for many streams at once."""
        yield from self._hear(self._resampler.add(self.checked(self._fed), last=True))
        self._finished = True
        rest, self._waiting = self._waiting, self._waiting[:0]
        self._samples += len(rest)
        self.hypothesis.add(rest)
        self.hypothesis.finish()
        yield from self._advanced()

    def checked(self, samples: np.ndarray) -> np.ndarray:
        """Return valid samples as float32. Raises ConfigError and AudioError as `feed` does."""
        if self._finished:
            raise ConfigError("This stream has finished: open a new one for more audio.")
        samples = np.asarray(samples)
        if samples.ndim != 1 or (len(samples) and samples.dtype.kind != "f"):
            raise ConfigError(
                "A stream takes floating-point samples from -1 to 1 of one channel, [samples], not "
                f"{samples.dtype} {list(samples.shape)}. Divide 16-bit samples by 32768, and average channels."
            )
        check_finite(samples, "The audio of the stream")
        return samples.astype(np.float32, copy=False)

    def _alone(self, steps: Iterable[Event | Hypothesis]) -> list[Event]:
        events: list[Event] = []
        for step in steps:
            if isinstance(step, Hypothesis):
                self.recogniser.advance([step])
            else:
                events.append(step)
        return events

    def _hear(self, audio: np.ndarray) -> Iterator[Event | Hypothesis]:
        self._waiting = np.concatenate([self._waiting, audio])
        while len(self._waiting) >= self._hop:
            block, self._waiting = self._waiting[: self._hop], self._waiting[self._hop :]
            self._samples += len(block)
            self.hypothesis.add(block)
            if self._endpointer is not None:
                ended = self._endpointer.add(block)
                if self._endpointer.paused:
                    self.hypothesis.pause()
                if ended:
                    self.hypothesis.flush()
                    self._ends = True
            yield from self._advanced()

    def _advanced(self) -> Iterator[Event | Hypothesis]:
        while self.hypothesis.ready:
            yield self.hypothesis
        words, self.hypothesis.words = in_order(self.hypothesis.words, begin=self._spoken), []
        self._spoken = max([self._spoken, *(word["end"] or 0.0 for word in words)])
        yield from (self._event("word", **word) for word in words)
        if self.hypothesis.partial != self._partial:
            self._partial = self.hypothesis.partial
            yield self._event("partial", text=self._partial)
        if self._ends and self.hypothesis.words_ended:
            yield self._event("end_of_speech")
            self._ends = False

    def _event(self, kind: str, **facts: Any) -> Event:
        return {"type": kind, **facts, "time": round(self._samples / self.recogniser.rate, 3)}
