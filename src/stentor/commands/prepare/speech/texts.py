"""Texts that are to be spoken, of a source or by a language model, without those that are held out; and the voice of
each: a model's, a reference's or a built-in one."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stentor.audio.io import encode
from stentor.commands.prepare_options import SpeechOptions
from stentor.config.load import parse_section, parse_source
from stentor.config.prepare.steps import BuiltInVoices
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import UnusableRecord, audio_path, is_spoken, language_of, speaker_of, text_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.pipeline.journal import Journal
from stentor.pipeline.runner import refuse_rejects
from stentor.sources.base import Source
from stentor.sources.hub import Hub
from stentor.sources.synth import Synth, dealt
from stentor.tasks.speak.task import seed_of
from stentor.text.languages import language_code
from stentor.text.normalize import plain_text

TOGETHER = 64
"""Texts that a language model writes at once."""
DRAWS = 20
"""Repeated texts that a language model may write for each text that is wanted."""


@dataclass(frozen=True)
class Text:
    """One text, and what a `synth` source says of how to speak it."""

    id: str
    text: str
    language: str | None = None
    request: dict[str, Any] | None = None
    """Arguments of `stentor.audio.synth.say`."""


def read_texts(source: Source) -> Iterator[Text | UnusableRecord]:
    """The texts of a source; no audio is read where that can be avoided. Raises what the source raises."""
    chosen = slice(source.skip, None if source.limit is None else source.skip + source.limit)
    plain = not source.where and not source.exclude
    if isinstance(source, Synth) and plain:
        for number, request in enumerate(source.requests()[chosen]):
            yield Text(f"synth:{number}", request["text"], source.language, request)
    elif isinstance(source, Hub) and plain and source.part is None:
        name = source.name or source.preset
        texts = islice(source.texts(), chosen.start, chosen.stop)
        yield from (Text(f"{name}:{number}", text, source.language) for number, text in enumerate(texts))
    else:
        cuts = (source.model_copy(update={"silence": None}) if isinstance(source, Synth) else source).cuts()
        for cut in cuts:
            if isinstance(cut, UnusableRecord):
                yield cut
            else:
                voice = cut.custom["voice"] if is_spoken(cut) else None
                yield Text(cut.id, text_of(cut) or "", language_of(cut), voice)


def written_texts(options: SpeechOptions) -> list[Text]:
    """Different texts by the language model of the options, which are kept in `texts.jsonl`. Raises ConfigError for
    another model and for options that do not go together, and DataError when it always writes the same."""
    if options.count is None:
        raise ConfigError("Say how many texts the language model is to write: --count 1000.")
    options.to.mkdir(parents=True, exist_ok=True)
    settings = {"language_model": options.language_model, "temperature": options.temperature}
    settings |= {"count": options.count, "seed": options.seed}
    journal = Journal(options.to / "texts.jsonl", settings)
    if len(journal) < options.count:  # a kill may have left some lines
        journal.add([{"id": f"text:{number}", "text": text} for number, text in enumerate(_sampled(options))])
    return [Text(line["id"], line["text"], options.language) for line in journal.lines(journal.offsets)]


def _sampled(options: SpeechOptions) -> list[str]:
    from stentor.inference.load import load

    assert options.count is not None and options.language_model is not None
    model = load(options.language_model, options.device.partition(",")[0])
    task, texts = model.for_texts(), dict[str, None]()
    for first in range(0, DRAWS * options.count, TOGETHER):
        seeds = [seed_of(options.seed, f"text:{number}") for number in range(first, first + TOGETHER)]
        texts |= dict.fromkeys(filter(None, task.sample(model.bundle, seeds, options.temperature)))
        if len(texts) >= options.count:
            return list(texts)[: options.count]
    raise DataError(
        f"{options.language_model} wrote only {len(texts):,} different texts in {DRAWS * options.count:,}: ask for "
        "fewer with --count, or raise --temperature."
    )


def held_out(specs: Sequence[str]) -> dict[str, str]:
    """Source of each text of these sources, by `plain_text`. Raises what the sources raise, and DataError where
    over 1 % of a source cannot be read: its texts would be spoken."""
    held: dict[str, str] = {}
    for spec in specs:
        messages, total = [], 0
        for each in read_texts(parse_source(spec)):
            total += 1
            if isinstance(each, Text):
                held[plain_text(each.text)] = spec
            else:
                messages.append(each.message)
        try:
            refuse_rejects(messages, total)
        except DataError as error:
            raise DataError(f"{spec}: their texts would be spoken, so fix or remove these. {error}") from None
    return held


def allowed(
    texts: Sequence[Text | UnusableRecord], excluded: dict[str, str]
) -> tuple[list[Text], list[dict[str, Any]]]:
    """The texts that may be spoken; the others as rejects. Raises DataError where none may."""
    chosen, rejects = [], []
    for text in texts:
        if isinstance(text, UnusableRecord):
            rejects.append({"id": text.id, "reason": text.reason, "message": text.message})
        elif not text.text.strip():
            rejects.append({"id": text.id, "reason": "empty_text"})
        elif (spec := excluded.get(plain_text(text.text))) is not None:
            rejects.append({"id": text.id, "text": text.text, "reason": "held_out", "value": spec})
        else:
            chosen.append(text)
    if not chosen:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in reasons_of(rejects))
        raise DataError(f"There is nothing to speak: none of {len(texts):,} texts is left ({counts}).")
    return chosen, rejects


def reasons_of(rejects: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Count of each reason, the most frequent first."""
    return Counter(reject["reason"] for reject in rejects).most_common()


REFERENCE_RATE = 24000
"""Hz of the references that are stored."""


@dataclass(frozen=True)
class Voice:
    """A voice, and how it is asked for."""

    name: str | None
    """None: the model's choice."""
    speaker: str | None
    call: dict[str, Any]
    """For a model, keys of a line of `speak --from`; otherwise the arguments of `stentor.audio.synth.say`."""
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
