"""Voices that texts are dealt to: those of a model, or built-in ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.audio.io import encode
from stentor.commands.prepare.speech.texts import Text
from stentor.config.load import parse_section, parse_source
from stentor.config.prepare.speech import BuiltInVoices
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import UnusableRecord, speaker_of, text_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.sources.synth import dealt
from stentor.text.languages import language_code

if TYPE_CHECKING:
    from stentor.cli.prepare import SpeechOptions

REFERENCE_RATE = 24000
"""Hz of the references that are stored."""
OF_MODEL = ("references", "instruct", "steps", "guidance", "normalize")
"""Options that the built-in voices do not have."""


@dataclass(frozen=True)
class Voice:
    """A voice, and how a line of `speak --from` asks for it."""

    name: str | None
    """None: the model's choice."""
    speaker: str | None
    line: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spoken:
    """A text that is to be spoken by a voice."""

    index: int
    id: str
    text: str
    language: str | None
    voice: Voice
    request: dict[str, Any] | None = None
    """Arguments of `stentor.audio.synth.say`. None: a model speaks."""


def assign(texts: Sequence[Text], options: SpeechOptions) -> list[Spoken]:
    """Each text with its voice. Raises ConfigError for voices that do not fit, DataError for references that cannot be
    used."""
    rng = random.Random(f"speech/{options.seed}")
    chosen = list(texts) if options.count is None else dealt(texts, options.count, rng)
    if options.model is not None:
        voices = dealt(_of_model(options), len(chosen), rng)
        voices = _with_references(voices, options.to)
        return [
            Spoken(i, _id(t, v.speaker, options.seed, i), t.text, t.language or options.language, v)
            for i, (t, v) in enumerate(zip(chosen, voices))
        ]
    if wrong := next((name for name in OF_MODEL if getattr(options, name)), None):
        raise ConfigError(f"--{wrong} is for a model that speaks: give one with --model.")
    if not options.voice and options.voices is None and all(text.request for text in chosen):
        requests = [text.request or {} for text in chosen]
    else:
        requests = _requests(chosen, options, rng)
    return [
        Spoken(i, _id(t, r["voice"], options.seed, i), t.text, _language(r["voice"]), Voice(r["voice"], r["voice"]), r)
        for i, (t, r) in enumerate(zip(chosen, requests))
    ]


def _id(text: Text, speaker: str | None, seed: int, index: int) -> str:
    """With the seed, so that what is made with several can be trained on together."""
    return "-".join(filter(None, (text.id, speaker, str(seed), f"{index:05d}")))


def _of_model(options: SpeechOptions) -> list[Voice]:
    """The voices that a model is asked for."""
    if options.voices is not None:
        raise ConfigError("--voices chooses built-in voices, and --model speaks in its own: --voice names them.")
    voices = [Voice(Path(name).name, Path(name).name, {"voice": name}) for name in options.voice]
    voices += [Voice(instruct, instruct, {"instruct": instruct}) for instruct in options.instruct]
    if options.references is not None:
        for cut in parse_source(options.references).cuts():
            if not isinstance(cut, UnusableRecord) and text_of(cut):
                voices.append(Voice(cut.id, speaker_of(cut) or cut.id, {"cut": cut, "reference_text": text_of(cut)}))
        if not voices:
            raise DataError(f"{options.references} holds no recording with a text, whose voice could be spoken in.")
    return voices or [Voice(None, None)]


def _with_references(voices: Sequence[Voice], folder: Path) -> list[Voice]:
    """The voices with the recordings of their references as files in the folder."""
    files: dict[str | None, Path] = {}
    stored = []
    for voice in voices:
        if (cut := voice.line.get("cut")) is None:
            stored.append(voice)
            continue
        if voice.name not in files:
            path = files[voice.name] = folder / "references" / f"{len(files):06d}.flac"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as part:
                    part.write_bytes(encode(load_audio(cut, REFERENCE_RATE), REFERENCE_RATE, cut.id))
        line = {"reference": str(files[voice.name].absolute()), "reference_text": voice.line["reference_text"]}
        stored.append(Voice(voice.name, voice.speaker, line))
    return stored


def _requests(texts: Sequence[Text], options: SpeechOptions, rng: random.Random) -> list[dict[str, Any]]:
    """How the built-in voices are to speak the texts. Raises ConfigError for voices of another language."""
    from stentor.audio import synth

    section = parse_section(options.voices or "speed=[140,200]", BuiltInVoices, "--voices")
    languages = {language_code(text.language or options.language) for text in texts} - {None}
    if (
        section.accents is None
        and len(languages) == 1
        and languages <= set(synth.languages())
        and "en" not in languages
    ):
        section = section.model_copy(update={"accents": list(languages)})
    names = options.voice or section.names()
    for name in names:
        synth.check_voice(name)
    if wrong := languages - {_language(name) for name in names}:
        code = sorted(map(str, wrong))[0]
        raise ConfigError(f"There are texts in {code}, and no chosen voice speaks it: --voices accents=[{code}].")
    voices = dealt(names, len(texts), rng)
    return [
        {"text": t.text, "voice": v, "speed": rng.randint(*section.speed), "pitch": rng.randint(*section.pitch)}
        for t, v in zip(texts, voices)
    ]


def _language(voice: str) -> str | None:
    return language_code(voice.partition("+")[0])
