"""Voices that texts are dealt to: those of a model, or built-in ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.audio.io import encode
from stentor.commands.prepare.speech.texts import Text
from stentor.config.load import parse_section, parse_source
from stentor.config.prepare.speech import BuiltInVoices
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import UnusableRecord, audio_path, speaker_of, text_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.sources.synth import dealt
from stentor.text.languages import language_code

if TYPE_CHECKING:
    from stentor.commands.prepare_options import SpeechOptions

REFERENCE_RATE = 24000
"""Hz of the references that are stored."""


@dataclass(frozen=True)
class Voice:
    """A voice, and how it is asked for."""

    name: str | None
    """None: the model's choice."""
    speaker: str | None
    call: dict[str, Any]
    """Of a model, keys of a line of `speak --from`; otherwise the arguments of `stentor.audio.synth.say`."""
    language: str | None = None


@dataclass(frozen=True)
class Spoken:
    """A text that is to be spoken by a voice."""

    index: int
    id: str
    text: str
    language: str | None
    voice: Voice


def assign(texts: Sequence[Text], options: SpeechOptions) -> list[Spoken]:
    """Each text with its voice. Raises ConfigError for voices that do not fit, DataError for references that cannot be
    used."""
    rng = random.Random(f"speech/{options.seed}")
    chosen = list(texts) if options.count is None else dealt(texts, options.count, rng)
    if options.model is not None:
        voices = dealt(_of_model(options, len(chosen)), len(chosen), rng)
    elif not options.voice and options.voices is None and all(text.request for text in chosen):
        voices = [_built_in(text.request or {}) for text in chosen]
    else:
        voices = _chosen_built_in(chosen, options, rng)
    return [
        Spoken(
            index,
            # With the seed, so that what is made with several can be trained on together.
            "-".join(filter(None, (text.id, voice.speaker, str(options.seed), f"{index:05d}"))),
            text.text,
            voice.language or text.language or options.language,
            voice,
        )
        for index, (text, voice) in enumerate(zip(chosen, voices))
    ]


def _of_model(options: SpeechOptions, most: int) -> list[Voice]:
    """The voices that a model is asked for; the recordings of references are stored, `most` of them."""
    if options.voices is not None:
        raise ConfigError("--voices chooses built-in voices, and --model speaks in its own: --voice names them.")
    voices = [Voice(Path(name).name, Path(name).name, {"voice": name}) for name in options.voice]
    voices += [Voice(instruct, instruct, {"instruct": instruct}) for instruct in options.instruct]
    if options.references is not None:
        cuts: Any = (cut for cut in parse_source(options.references).cuts() if not isinstance(cut, UnusableRecord))
        for cut in islice(filter(text_of, cuts), most):
            origin = repr((cut.id, audio_path(cut), cut.start, cut.duration)).encode()
            name = hashlib.blake2b(origin, digest_size=8).hexdigest()
            path = options.to.absolute() / "references" / f"{name}.flac"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as part:
                    part.write_bytes(encode(load_audio(cut, REFERENCE_RATE), REFERENCE_RATE, cut.id))
            call = {"reference": str(path), "reference_text": text_of(cut)}
            voices.append(Voice(cut.id, speaker_of(cut) or cut.id, call))
        if not voices:
            raise DataError(f"{options.references} holds no recording with a text, whose voice could be spoken in.")
    return voices or [Voice(None, None, {})]


def _built_in(call: dict[str, Any]) -> Voice:
    return Voice(call["voice"], call["voice"], call, _language(call["voice"]))


def _language(voice: str) -> str | None:
    return language_code(voice.partition("+")[0])


def _chosen_built_in(texts: Sequence[Text], options: SpeechOptions, rng: random.Random) -> list[Voice]:
    """Built-in voices that speak the language of each text; of texts that name none, any. Raises ConfigError."""
    from stentor.audio import synth

    section = parse_section(options.voices or "count=null", BuiltInVoices, "--voices")
    languages = [language_code(text.language or options.language) for text in texts]
    if section.accents is None:
        english = synth.accents() if {"en", None} & set(languages) else []
        others = sorted({str(code) for code in languages} - {"en", "None"})
        accents = (next((name for name in synth.languages() if _language(name) == code), code) for code in others)
        section = section.model_copy(update={"accents": [*english, *accents]})
    names = options.voice or section.names()
    for name in names:
        synth.check_voice(name)
    decks = {}
    for code in dict.fromkeys(languages):
        if not (deck := [name for name in names if code in (None, _language(name))]):
            raise ConfigError(f"There are texts in {code}, and no chosen voice speaks it: --voices accents=[{code}].")
        decks[code] = iter(dealt(deck, languages.count(code), rng))
    speed, pitch = section.speed, section.pitch
    return [
        _built_in(
            {"text": text.text, "voice": next(decks[code]), "speed": rng.randint(*speed), "pitch": rng.randint(*pitch)}
        )
        for text, code in zip(texts, languages)
    ]
