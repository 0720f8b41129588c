"""Speaking texts of any length, in a voice that is given, described or left to the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.speaking_rate import weight
from stentor.errors import ConfigError, DataError
from stentor.inference.speak.postprocess import ends, join, level
from stentor.tasks.speak.chunks import chunks
from stentor.tasks.speak.duration import estimate

if TYPE_CHECKING:
    from stentor.data.speaking_rate import SpeakingRate
    from stentor.inference.speak.voice import Voice
    from stentor.models.base import Bundle
    from stentor.tasks.speak.generation import Generation

LEAST_SPEED, MOST_SPEED = 0.25, 4.0
LONGEST_DURATION = 3600.0
"""Seconds."""


@dataclass
class Utterance:
    """A text to speak, and how."""

    text: str
    voice: Voice | None = None
    """None: the model's choice, or what `instruct` says."""
    language: str | None = None
    instruct: str | None = None
    """The voice in words."""
    duration: float | None = None
    """Seconds. None: by the duration rule."""
    speed: float = 1.0
    """How many times as fast as the duration rule has it."""
    seed: int | None = None
    """None: that of the generation settings."""


@dataclass
class Speech:
    """What was spoken."""

    audio: np.ndarray
    """Float32 [samples]."""
    rate: int
    """Hz."""
    codes: np.ndarray
    """Integers [codebooks, frames] that the model made, before anything was trimmed; of long texts one part after the
    other."""
    texts: list[str]
    """The parts that the text was spoken in."""
    seed: int

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.rate


@dataclass(eq=False)
class _Part:
    """A text that is spoken in one go."""

    of: int
    """Its utterance."""
    place: int
    """Its number among the parts of that."""
    text: str
    frames: int
    codes: np.ndarray | None = None


def check(utterance: Utterance, bundle: Bundle) -> list[str]:
    """Sentences for a person about what will not be as asked; none when all is well.

    Raises ConfigError for values that cannot be, DataError for a text of which nothing can be spoken.
    """
    if not utterance.text.strip():
        raise ConfigError("The text is empty: there is nothing to speak.")
    if not LEAST_SPEED <= utterance.speed <= MOST_SPEED:
        raise ConfigError(f"The speed {utterance.speed:g} is not between {LEAST_SPEED:g} and {MOST_SPEED:g}.")
    if utterance.duration is not None and not 0 < utterance.duration <= LONGEST_DURATION:
        raise ConfigError(f"The duration {utterance.duration:g} is not between 0 and {LONGEST_DURATION:g} s.")
    if utterance.duration is not None and utterance.speed != 1:
        raise ConfigError("The duration says how fast it is spoken: leave out the speed, or the duration.")
    if utterance.seed is not None and not 0 <= utterance.seed < 2**63:
        raise ConfigError(f"The seed {utterance.seed} is not between 0 and {2**63 - 1}.")
    said, unknown = spelled(utterance.text, bundle)
    if not any(c.isalnum() for c in said):
        letters = " ".join(dict.fromkeys(c for c in utterance.text if c.isprintable() and not c.isspace()))
        raise DataError(
            f"This model cannot speak the text: it knows none of its letters ({letters[:60]}). Write it in the letters "
            f"that it was trained on{', numbers in words (--normalize)' if _numbers(unknown) else ''}."
        )
    if unknown:
        return [
            f"This model does not know {printed(unknown)} in the text, and leaves it out"
            f"{'; --normalize writes numbers in words' if _numbers(unknown) else ''}."
        ]
    return []


def spelled(text: str, bundle: Bundle) -> tuple[str, str]:
    """The text as the model can read it, and the characters that it cannot.

    White space becomes single spaces or line ends; letters that the model only knows in the other case are written in
    that; what it does not know is left out.
    """
    knows = bundle.processor.knows
    unknown = [c for c in dict.fromkeys(text) if not c.isspace() and not knows(c)]
    other = {c: c.swapcase() if len(c.swapcase()) == 1 and knows(c.swapcase()) else "" for c in unknown}
    lines = ("".join(other.get(c, c) for c in line).split() for line in text.splitlines())
    return "\n".join(" ".join(words) for words in lines if words), "".join(c for c in unknown if not other[c])


def flat(text: str, bundle: Bundle) -> str:
    """`spelled`, on one line."""
    return " ".join(spelled(text, bundle)[0].split())


def speak(
    bundle: Bundle,
    utterances: Sequence[Utterance],
    generation: Generation,
    finish: bool = True,
    denoise: bool = False,
    **options: Any,
) -> Iterator[Speech]:
    """Each utterance spoken, in their order.

    Long texts are divided at punctuation; without a voice, the first part is the voice of the others. An utterance does
    not depend on the others: it has a seed of its own, and its parts have consecutive ones. With `finish` silence at
    the ends is trimmed to 0.1 s and faded (not where a duration was asked for), and the level is that of ordinary
    speech; without, it is as the codec gives it. `denoise` asks for clean speech after noisy voices, of models that
    have learned that. `options` go to the model's `speak`.
    """
    codec = bundle.processor.codec
    pace = bundle.processor.pace
    voices = [None if u.voice is None else (u.voice.codes, flat(u.voice.text, bundle)) for u in utterances]
    divided = [
        _divide(i, spelled(u.text, bundle)[0], u, voices[i], codec.frame_rate, pace) for i, u in enumerate(utterances)
    ]
    settings = {**generation.arguments(), **options}

    def reveal(parts: list[_Part]) -> None:
        prompts, seeds = [], []
        for part in parts:
            asked, own = utterances[part.of], divided[part.of]
            reference = voices[part.of]
            if reference is None and part.place:
                reference = (own[0].codes, own[0].text)
            prompts.append(
                bundle.processor.utterance(
                    part.text,
                    language=asked.language,
                    instruct=asked.instruct,
                    reference=reference,
                    frames=part.frames,
                    denoise=denoise and asked.voice is not None,
                )
            )
            seeds.append(_seed(asked, generation) + part.place)
        for part, codes in zip(parts, bundle.model.speak(prompts, seeds=seeds, **settings)):
            part.codes = codes

    # What needs nothing that is still to be spoken goes together.
    first = [part for own in divided for part in (own if utterances[own[0].of].voice is not None else own[:1])]
    reveal(first)
    if later := [part for own in divided for part in own if part.codes is None]:
        reveal(later)
    for asked, own in zip(utterances, divided):
        yield _speech(asked, own, bundle, _seed(asked, generation), finish)


def _seed(utterance: Utterance, generation: Generation) -> int:
    return generation.seed if utterance.seed is None else utterance.seed


def _divide(
    number: int,
    text: str,
    utterance: Utterance,
    voice: tuple[np.ndarray, str] | None,
    frame_rate: float,
    pace: SpeakingRate | None,
) -> list[_Part]:
    asked = utterance.duration
    said = (None, None) if voice is None else (voice[1], voice[0].shape[1] / frame_rate)

    def seconds(part: str) -> float:
        if asked is not None:
            return asked * weight(part) / weight(text)
        return estimate(part, *said, utterance.speed, pace)

    parts = [" ".join(part.split()) for part in chunks(text, seconds)]
    if asked is None:
        frames = [max(1, round(seconds(part) * frame_rate)) for part in parts]
    else:
        # Shared out by weight, all of it.
        shares = list(itertools.accumulate(map(weight, parts), initial=0.0))
        ends = [round(asked * frame_rate * share / shares[-1]) for share in shares]
        frames = [max(1, end - start) for start, end in itertools.pairwise(ends)]
    return [_Part(number, place, *part) for place, part in enumerate(zip(parts, frames))]


def _speech(asked: Utterance, parts: list[_Part], bundle: Bundle, seed: int, finish: bool) -> Speech:
    codec = bundle.processor.codec
    audios = codec.decode([part.codes for part in parts])
    if finish:
        timed = asked.duration is not None
        if not timed:
            audios = [ends(audio, codec.sample_rate) for audio in audios]
        audio = level(join(audios, codec.sample_rate, [part.text for part in parts], pauses=not timed))
    else:
        audio = np.concatenate(audios)
    codes = np.concatenate([part.codes for part in parts], axis=1)
    return Speech(audio, codec.sample_rate, codes, [part.text for part in parts], seed)


def printed(characters: str) -> str:
    """Each character, as a person can read it."""
    return " ".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in characters)


def _numbers(text: str) -> bool:
    return any(c.isdigit() for c in text)
