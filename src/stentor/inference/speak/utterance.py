"""Utterances (a text and how to speak it), their checks, and synthetic speech."""

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from stentor.errors import ConfigError, DataError
from stentor.inference.options import SpeechOptions
from stentor.models.base import Bundle

LEAST_SPEED, MOST_SPEED = 0.25, 4.0
LONGEST_DURATION = 3600.0
"""Maximum duration in seconds."""


@dataclass
class Utterance(SpeechOptions):
    """A text to speak, with the options of its voice and speed."""

    text: str
    speed: float = field(default=1.0, kw_only=True)
    reference_rate: int | None = field(default=None, kw_only=True)
    """Sample rate of the reference in Hz if it is an array."""
    follows: bool = field(default=True, kw_only=True)
    """Whether, without a voice, the first piece of a long text is the reference for the others. False for models that
    were not trained with a reference and an instruct together."""

    @classmethod
    def of(cls, text: str, options: SpeechOptions) -> Self:
        """Return the utterance of a text with these options."""
        asked = {field.name: vars(options)[field.name] for field in fields(SpeechOptions)}
        return cls(text, **{**asked, "speed": 1.0 if options.speed is None else options.speed})


@dataclass
class Speech:
    """Synthetic speech: the result of `Model.speak`."""

    audio: np.ndarray
    """Samples, float32 [samples]."""
    rate: int
    """Sample rate in Hz."""
    codes: np.ndarray
    """Generated codes, integers [codebooks, frames], before any trimming; the pieces of a long text in order."""
    texts: list[str]
    """Pieces of the text that were synthesized one by one."""
    seed: int
    """Random seed that was used."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.audio) / self.rate


def check(utterance: Utterance, bundle: Bundle) -> list[str]:
    """Return remarks for the user about characters that are left out or new to the model; an empty list if none.

    Raises ConfigError for values out of range and DataError for a text without any known character.
    """
    if not utterance.text.strip():
        raise ConfigError("The text is empty: there is nothing to speak.")
    if not LEAST_SPEED <= utterance.speed <= MOST_SPEED:
        raise ConfigError(f"The speed {utterance.speed:g} is not between {LEAST_SPEED:g} and {MOST_SPEED:g}.")
    if utterance.duration is not None and not 0 < utterance.duration <= LONGEST_DURATION:
        raise ConfigError(f"The duration {utterance.duration:g} is not between 0 and {LONGEST_DURATION:g} s.")
    if utterance.duration is not None and utterance.speed != 1:
        raise ConfigError("The duration already determines the speed: leave out the speed or the duration.")
    if utterance.seed is not None and not 0 <= utterance.seed < 2**63:
        raise ConfigError(f"The seed {utterance.seed} is not between 0 and {2**63 - 1}.")
    text, unknown = spelled(utterance.text, bundle)
    if not any(c.isalnum() for c in text):
        letters = " ".join(dict.fromkeys(c for c in utterance.text if c.isprintable() and not c.isspace()))
        raise DataError(
            f"This model cannot speak the text: it knows none of its letters ({letters[:60]}). Write the text in the "
            f"letters of the training data{', and numbers in words (--normalize)' if _numbers(unknown) else ''}."
        )
    sentences, advice = [], "; --normalize converts numbers to words"
    if unknown:
        sentences.append(
            f"This model does not know {printed(unknown)} in the text and skips it"
            f"{advice if _numbers(unknown) else ''}."
        )
    learned = bundle.traits.letters
    if learned is not None and (new := "".join(c for c in dict.fromkeys(text) if c.isalnum() and c not in learned)):
        sentences.append(
            f"No text that this model was trained on contains {printed(new)}, so its pronunciation is a guess"
            f"{advice if _numbers(new) else ''}."
        )
    return sentences


def spelled(text: str, bundle: Bundle) -> tuple[str, str]:
    """Return the text as the model can read it, and the characters that it cannot read.

    White space becomes single spaces or line ends. Letters that the model only knows in the other case change case.
    Other unknown characters are left out.
    """
    processor: Any = bundle.processor
    knows = processor.knows
    unknown = [c for c in dict.fromkeys(text) if not c.isspace() and not knows(c)]
    other_case = {c: c.swapcase() if len(c.swapcase()) == 1 and knows(c.swapcase()) else "" for c in unknown}
    lines = ("".join(other_case.get(c, c) for c in line).split() for line in text.splitlines())
    return "\n".join(" ".join(words) for words in lines if words), "".join(c for c in unknown if not other_case[c])


def flat(text: str, bundle: Bundle) -> str:
    """Return the text of `spelled` on one line."""
    return " ".join(spelled(text, bundle)[0].split())


def printed(characters: str) -> str:
    """Return the characters separated by spaces, unprintable ones as code points."""
    return " ".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in characters)


def _numbers(text: str) -> bool:
    return any(c.isdigit() for c in text)
