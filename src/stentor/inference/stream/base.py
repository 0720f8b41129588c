"""Interface of streaming recognisers and their events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from stentor.audio.activity import EnergyDetector
from stentor.inference.vad import Detector

Event = dict[str, Any]
"""One of the following, each with `time`, the seconds of audio received when the event was known:

* `{"type": "word", "word", "start", "end", "confidence"}`: a final word; times are None if unknown; with `speaker` if
  the stream has a diarizer;
* `{"type": "partial", "text"}`: the text after the last word, which may still change;
* `{"type": "end_of_speech"}`: a pause after speech. Everything said before it has become words.
"""


class Hypothesis(ABC):
    """The state of a recogniser for one live recording."""

    words: list[Event]
    """Final words that have not been collected yet: `word`, `start`, `end`, `confidence`."""
    partial: str
    """Text after the final words, which may still change."""
    seconds: float = 1.0
    """Seconds of audio that the next step reads: its cost when many streams take turns."""
    words_ended: bool = True
    """Whether everything before the last pause has become words."""

    @abstractmethod
    def add(self, samples: np.ndarray) -> None:
        """Add audio, float32 [samples] at the recogniser's rate."""

    def pause(self) -> None:  # noqa: B027  # nothing, for recognisers whose words stay at other times
        """Mark a short pause, after which speech may have ended: no word continues beyond it."""

    def flush(self) -> None:  # noqa: B027
        """Mark the end of speech at the last pause: everything said becomes words, now or when `words_ended` is set.
        More audio may follow."""

    @abstractmethod
    def finish(self) -> None:
        """Mark the end of the audio."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `Recogniser.advance` has work to do for it."""


class Recogniser(ABC):
    """A model with its streaming settings."""

    rate: int
    """Sample rate of its audio in Hz."""
    delay: float = 1.0
    """Seconds from one answer to the next."""
    delays: tuple[float, float] = (0.1, 10.0)
    """Minimum and maximum delay that this kind of recogniser supports with its model."""
    timed: bool = True
    """Whether its words have times."""
    takes_language: bool = False
    """Whether it takes the language of the speech."""
    policy = "chunks"
    """Name in results of the rule that makes a word final."""
    detector: Detector = EnergyDetector()
    """Speech detector."""

    def nearest(self, delay: float) -> float:
        """Return the supported delay that is nearest to `delay`."""
        least, most = self.delays
        return min(max(delay, least), most)

    @abstractmethod
    def open(self) -> Hypothesis:
        """Return the hypothesis of a new recording."""

    @abstractmethod
    def advance(self, hypotheses: Sequence[Hypothesis]) -> None:
        """Do one step for each of these `ready` hypotheses; results do not depend on the others. They may come from
        another recogniser of the same kind with a copy of the model on the same device."""
