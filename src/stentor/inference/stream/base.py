"""Interface of streaming recognisers, and their events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from stentor.audio.activity import EnergyDetector
from stentor.inference.vad import Detector

Event = dict[str, Any]
"""One of these, each with `time`, the seconds of audio that had come when it was known:

* `{"type": "word", "word", "start", "end", "confidence"}`: a word that stays; times are None where there are none; and
  `speaker` of a stream with a diarizer;
* `{"type": "partial", "text"}`: what follows the last word and may still change;
* `{"type": "end_of_speech"}`: there has been no speech for a while. All that was said before is words.
"""


class Hypothesis(ABC):
    """State of a recogniser for one recording as it arrives."""

    words: list[Event]
    """Words that stay and were not taken yet: `word`, `start`, `end`, `confidence`."""
    partial: str
    """Words after them that may still change."""
    seconds: float = 1.0
    """Seconds of audio that its next step reads: its cost, where many take turns."""
    words_ended: bool = True
    """Whether all that came before the last pause is among the words."""

    @abstractmethod
    def add(self, samples: np.ndarray) -> None:
        """More audio: float32 [samples] at the recogniser's rate."""

    def pause(self) -> None:  # noqa: B027  # nothing, for recognisers whose words stay at other times
        """No speech for a while, and perhaps speech has ended: no word continues after this moment."""

    def flush(self) -> None:  # noqa: B027
        """Speech has ended with the last pause: what was said becomes words, at once or when
        `words_ended`; more may come."""

    @abstractmethod
    def finish(self) -> None:
        """There is no more audio."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `Recogniser.advance` has something to do for it."""


class Recogniser(ABC):
    """A model with how it answers."""

    rate: int
    """Hz of the audio that it takes."""
    delay: float = 1.0
    """Seconds from one answer to the next."""
    delays: tuple[float, float] = (0.1, 10.0)
    """The least and the most that such a recogniser of its model can have."""
    timed: bool = True
    """Whether its words have times."""
    takes_language: bool = False
    """Whether it accepts the spoken language."""
    policy = "chunks"
    """Policy that decides that a word is final, as figures are labelled."""
    detector: Detector = EnergyDetector()
    """Detector of speech and its end."""

    def nearest(self, delay: float) -> float:
        """The delay that such a recogniser can have which comes nearest to this one."""
        least, most = self.delays
        return min(max(delay, least), most)

    @abstractmethod
    def open(self) -> Hypothesis:
        """Stream of another recording."""

    @abstractmethod
    def advance(self, hypotheses: Sequence[Hypothesis]) -> None:
        """One step for each of these, which are all `ready`; their results do not depend on the others. They may be
        those of another such recogniser, of a copy of the model on the same device."""
