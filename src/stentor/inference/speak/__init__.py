"""Synthesis of texts of any length, in the voice of a recording, in a described one or in the model's own."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.speaking_rate import weight
from stentor.errors import ConfigError, DataError
from stentor.inference.speak.postprocess import concatenate, normalize_loudness, trim_silence
from stentor.inference.speak.voice import Voice
from stentor.models.base import Bundle
from stentor.tasks.speak.chunks import chunks
from stentor.tasks.speak.duration import estimate, frames_of
from stentor.tasks.speak.generation import Generation

LEAST_SPEED, MOST_SPEED = 0.25, 4.0
LONGEST_DURATION = 3600.0
"""Seconds."""


@dataclass
class Utterance:
    """A text to speak, and how."""

    text: str
    voice: Voice | str | Path | None = None
    """A voice, or the path of a saved one. None: that of `reference`, what `instruct` says, or the model's choice."""
    language: str | None = None
    instruct: str | None = None
    """The voice in words."""
    duration: float | None = None
    """Seconds. None: by the duration rule."""
    speed: float = 1.0
    """How many times as fast as the duration rule has it."""
    seed: int | None = None
    """None: that of the generation settings."""
    reference: str | Path | np.ndarray | None = None
    """A recording of the voice, a file or an array; `SpeakerLabels.prepare` makes `voice` of it."""
    reference_text: str | None = None
    """What is said in it. None: it is transcribed."""
    reference_rate: int | None = None
    """Hz of the array."""


@dataclass
class Speech:
    """Synthetic speech."""

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
    utterance: int
    """Number of its utterance."""
    number: int
    """Its own among the parts of that."""
    text: str
    frames: int
    codes: np.ndarray | None = None


def check(utterance: Utterance, bundle: Bundle) -> list[str]:
    """Sentences for a person about characters that are left out or new to the model; none when all is well.

    Raises ConfigError for values out of range, DataError for a text of which nothing can be spoken.
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
    text, unknown = spelled(utterance.text, bundle)
    if not any(c.isalnum() for c in text):
        letters = " ".join(dict.fromkeys(c for c in utterance.text if c.isprintable() and not c.isspace()))
        raise DataError(
            f"This model cannot speak the text: it knows none of its letters ({letters[:60]}). Write it in the letters "
            f"that it was trained on{', numbers in words (--normalize)' if _numbers(unknown) else ''}."
        )
    sentences, advice = [], "; --normalize writes numbers in words"
    if unknown:
        sentences.append(
            f"This model does not know {printed(unknown)} in the text, and leaves it out"
            f"{advice if _numbers(unknown) else ''}."
        )
    learned = getattr(bundle.processor, "letters", None)
    if learned is not None and (new := "".join(c for c in dict.fromkeys(text) if c.isalnum() and c not in learned)):
        sentences.append(
            f"No text that this model was trained on has {printed(new)}: how it speaks that is a guess"
            f"{advice if _numbers(new) else ''}."
        )
    return sentences


def spelled(text: str, bundle: Bundle) -> tuple[str, str]:
    """The text as the model can read it, and the characters that it cannot.

    White space becomes single spaces or line ends; letters that the model only knows in the other case are written in
    that; what it does not know is left out.
    """
    processor: Any = bundle.processor
    knows = processor.knows
    unknown = [c for c in dict.fromkeys(text) if not c.isspace() and not knows(c)]
    other_case = {c: c.swapcase() if len(c.swapcase()) == 1 and knows(c.swapcase()) else "" for c in unknown}
    lines = ("".join(other_case.get(c, c) for c in line).split() for line in text.splitlines())
    return "\n".join(" ".join(words) for words in lines if words), "".join(c for c in unknown if not other_case[c])


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
    processor: Any = bundle.processor
    model: Any = bundle.model
    codec = processor.codec
    # Of each utterance with a voice: (codec tokens, their text).
    references = [
        (u.voice.codes, flat(u.voice.text, bundle)) if isinstance(u.voice, Voice) else None for u in utterances
    ]
    parts_of = [_divide(i, u, references[i], bundle) for i, u in enumerate(utterances)]
    settings = {**generation.arguments(), **options}

    def synthesize(parts: list[_Part]) -> None:
        prompts, seeds = [], []
        for part in parts:
            utterance, first = utterances[part.utterance], parts_of[part.utterance][0]
            reference = references[part.utterance]
            prompt = {"language": utterance.language, "instruct": utterance.instruct, "frames": part.frames}
            prompt["denoise"] = denoise and reference is not None
            before = (first.codes, first.text) if reference is None and part.number else reference
            prompts.append(processor.utterance(part.text, reference=before, **prompt))
            seeds.append(_seed(utterance, generation) + part.number)
        for part, codes in zip(parts, model.speak(prompts, seeds=seeds, **settings)):
            part.codes = codes

    # Parts that need no codes of other parts go together.
    synthesize([part for parts, voice in zip(parts_of, references) for part in (parts if voice else parts[:1])])
    if later := [part for parts in parts_of for part in parts if part.codes is None]:
        synthesize(later)
    for utterance, parts in zip(utterances, parts_of):
        texts = [part.text for part in parts]
        audios = codec.decode([part.codes for part in parts])
        if finish:
            pauses = utterance.duration is None
            if pauses:
                audios = [trim_silence(audio, codec.sample_rate) for audio in audios]
            audio = normalize_loudness(concatenate(audios, codec.sample_rate, texts, pauses))
        else:
            audio = np.concatenate(audios)
        codes = np.concatenate([part.codes for part in parts], axis=1)  # type: ignore[misc]  # all are spoken
        yield Speech(audio, codec.sample_rate, codes, texts, _seed(utterance, generation))


def _seed(utterance: Utterance, generation: Generation) -> int:
    return generation.seed if utterance.seed is None else utterance.seed


def _divide(number: int, utterance: Utterance, reference: tuple[np.ndarray, str] | None, bundle: Bundle) -> list[_Part]:
    text, duration = spelled(utterance.text, bundle)[0], utterance.duration
    processor: Any = bundle.processor
    frame_rate, pace = processor.codec.frame_rate, processor.pace
    reference_text, reference_seconds = None, None
    if reference is not None:
        reference_text, reference_seconds = reference[1], reference[0].shape[1] / frame_rate

    def seconds(part: str) -> float:
        if duration is not None:
            return duration * weight(part) / weight(text)
        return estimate(part, reference_text, reference_seconds, utterance.speed, pace)

    parts = [" ".join(part.split()) for part in chunks(text, seconds)]
    if duration is None:
        frames = [frames_of(seconds(part), frame_rate) for part in parts]
    else:
        # Shared out by weight, all of it.
        shares = list(itertools.accumulate(map(weight, parts), initial=0.0))
        ends = [int(duration * frame_rate * share / shares[-1] + 1e-9) for share in shares]
        frames = [max(1, end - start) for start, end in itertools.pairwise(ends)]
    return [_Part(number, i, *part) for i, part in enumerate(zip(parts, frames))]


def printed(characters: str) -> str:
    """Each character, as a person can read it."""
    return " ".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in characters)


def _numbers(text: str) -> bool:
    return any(c.isdigit() for c in text)
