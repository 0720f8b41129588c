"""A stream whose words carry speakers, from a diarizer that listens beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stentor.audio.resampler import Resampler
from stentor.errors import ConfigError
from stentor.inference.stream.base import Event
from stentor.inference.stream.stream import BLOCK, Stream
from stentor.text.written_words import joined

if TYPE_CHECKING:
    from stentor.inference.stream.speakers import OnlineDiarizer


class SpeakerStream:
    """One recording while it comes, as `Stream`. Each event of a word has `speaker`, None while nobody has talked.

    A word comes when the diarizer has decided who talks until its end: at most its `step` and `wait` later than that
    end. Until then it is part of the partial text.
    """

    def __init__(self, stream: Stream, diarizer: OnlineDiarizer, rate: int | None = None):
        """`rate`: Hz of what is fed (None: the recogniser's). Raises ConfigError where words have no times."""
        if not stream.recogniser.timed:
            raise ConfigError(
                "This recogniser does not know when words are said, so it cannot be known who says them: take a model "
                "for the task words, or leave out the diarizer."
            )
        self.stream, self.diarizer = stream, diarizer
        self.rate = rate or stream.recogniser.rate
        self._resampler = Resampler(self.rate, diarizer.rate)
        self._block = round(self.rate * BLOCK)
        self._fed = np.zeros(0, np.float32)
        self._samples = 0
        self._waiting: list[Event] = []
        self._partial = self._shown = ""
        self._before: str | None = None

    def feed(self, samples: np.ndarray) -> list[Event]:
        """What is known after these: float32 [samples] in the range -1 to 1."""
        self._fed = np.concatenate([self._fed, self.stream.checked(samples)])
        events: list[Event] = []
        while len(self._fed) >= self._block:
            block, self._fed = self._fed[: self._block], self._fed[self._block :]
            self._diarize(block)
            events += self._known(self.stream.feed(block))
        return events

    def finish(self) -> list[Event]:
        """What is known at the end."""
        self._diarize(self.stream.checked(self._fed), last=True)
        self.diarizer.finish()
        events = self.stream.feed(self._fed) + self.stream.finish()
        return self._known(events, ended=True)

    def _diarize(self, samples: np.ndarray, last: bool = False) -> None:
        self._samples += len(samples)
        self.diarizer.feed(self._resampler.add(samples, last))

    def _known(self, events: list[Event], ended: bool = False) -> list[Event]:
        """Of these events and those that waited the ones that can come now, in their order."""
        for event in events:
            if event["type"] == "partial":
                self._partial = event["text"]
            else:
                self._waiting.append(event)
        known: list[Event] = []
        while self._waiting and (ended or self._waiting[0].get("end", 0.0) <= self.diarizer.decided):
            event = {**self._waiting.pop(0), "time": self._time()}
            if event["type"] == "word":
                self._before = self.diarizer.speaker(event["start"], event["end"], self._before)
                event["speaker"] = self._before
            known.append(event)
        text = joined([*(event["word"] for event in self._waiting if event["type"] == "word"), self._partial])
        if text != self._shown:
            self._shown = text
            known.append({"type": "partial", "text": text, "time": self._time()})
        return known

    def _time(self) -> float:
        return round(self._samples / self.rate, 3)
