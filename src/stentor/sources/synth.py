"""`synth`: texts spoken by the built-in voice, generated when they are needed; nothing is stored or downloaded."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from stentor.data.cut import RATE, Cut, UnusableRecord
from stentor.data.jsonl import not_found, open_text
from stentor.data.storage import StoragePath, as_path
from stentor.data.synth_cache import synthesize_all
from stentor.errors import ConfigError, DataError
from stentor.section import IntRange, Range, Section
from stentor.sources.base import Source
from stentor.sources.phrases import command, digit_string, sentence

GENERATED = 1000
"""Utterances of a generated text kind when `count` is null."""
HELD_OUT = 10
"""One generated text in so many is held out."""
DRAWS = 1000
"""Texts that are drawn at most until one belongs to the part."""

EFFECTS = frozenset(
    {"Demonic", "Tweaky", "UniRobot", "anikaRobot", "croak", "fast", "whisper", "whisperf"}
    | {f"klatt{n}" for n in ("", *range(2, 7))}
    | {f"robosoft{n}" for n in ("", *range(2, 9))}
)
"""Variants that are sound effects rather than speakers; used only when named."""


class Phrases(Section):
    """Texts made by a built-in generator."""

    kind: Literal["digits", "commands", "sentences"]
    """`digits`: strings of spelled digits. `commands`: almost 3,000 short sentences for a home assistant.
    `sentences`: millions of sentences as in talk."""
    words: IntRange | None = None
    """Fewest and most digits in a string, or words in a sentence. Null: 2 to 6 digits, 4 to 14 words."""
    part: Literal["train", "test"] | None = None
    """`test`: only texts that are held out, a tenth of all; `train`: only the others. Null: all."""

    def text(self, rng: random.Random) -> str:
        """One text, drawn."""
        for _ in range(DRAWS):
            if self.kind == "digits":
                text = digit_string(rng, *(self.words or (2, 6)))
            elif self.kind == "sentences":
                text = sentence(rng, *(self.words or (4, 14)))
            else:
                text = command(rng)
            if self.part is None or (zlib.crc32(text.encode()) % HELD_OUT == 0) == (self.part == "test"):
                return text
        raise ConfigError(
            f"texts: {self.kind} with `words: {list(self.words or ())}` are too few to hold a tenth of them out for "
            f"`part: {self.part}`: allow more words, or leave `part` out."
        )


class Voices(Section):
    """A choice of the built-in voices. A voice is an accent and a variant (the speaker), such as `en-us+f3`."""

    accents: list[str] | None = None
    """Languages and accents such as `en-us` or `de`. Null: seven accents of English."""
    variants: list[str] | None = None
    """Speakers such as `f3`. Null: all but the sound effects (whispers and robots)."""
    count: int | None = Field(None, ge=1)
    """Number of voices, from as many speakers as possible. Null: each variant in each accent."""
    part: Literal["train", "test"] | None = None
    """`test`: only the held-out variants; `train`: only the others. Null: all. Two sources with the same variants,
    `held_out` and `seed` then share no speaker in any accent."""
    held_out: int = Field(10, ge=1)
    """Number of variants that are held out for `part: test`."""
    seed: int = 0
    """Seed that chooses the held-out variants. Keep it equal in training and test."""

    def names(self) -> list[str]:
        """Voice names in a fixed order. Raises `ConfigError` for unknown ones and when there are too few."""
        from stentor.audio import synth

        accents = self.accents or synth.accents()
        variants = self.variants or sorted(set(synth.variants()) - EFFECTS)
        random.Random(f"held-out/{self.seed}").shuffle(variants := list(variants))
        if self.part and self.held_out >= len(variants):
            raise ConfigError(f"voices.held_out is {self.held_out}, but there are only {len(variants)} variants.")
        if self.part:
            variants = variants[: self.held_out] if self.part == "test" else variants[self.held_out :]
        # Walking down the diagonals of variants x accents, so that the first few differ in both.
        names = [
            f"{accents[(turn + i) % len(accents)]}+{variant}"
            for turn in range(len(accents))
            for i, variant in enumerate(variants)
        ]
        if self.count and self.count > len(names):
            raise ConfigError(
                f"voices.count is {self.count}, but {len(variants)} variants in {len(accents)} accents make only "
                f"{len(names)} voices{f' for part: {self.part}' if self.part else ''}."
            )
        return names[: self.count]


class Synth(Source):
    """Texts spoken by the built-in voices (eSpeak NG), with exact word times; `speaker` is the voice's name."""

    type: Literal["synth"] = "synth"
    texts: Literal["digits", "commands", "sentences"] | Phrases | list[str] | StoragePath = "digits"
    """`digits`, `commands` or `sentences`, a list of texts, a text file with one text a line, or a generator with its
    options: `{kind: digits, words: [1, 4]}`."""
    voices: Voices | list[str] = Voices()
    """A choice of voices, or their names: `[en-us, en+f3]`."""
    count: int | None = Field(None, ge=1)
    """Number of utterances: texts and voices are used equally often, speed and pitch are drawn. Null: each text of a
    list or file once in each voice; 1000 of generated texts."""
    speed: IntRange = (140, 200)
    """Words per minute."""
    pitch: IntRange = (20, 80)
    """Pitch, 0 to 99."""
    silence: Range | None = (0.1, 0.3)
    """Seconds of silence before and after each utterance, both drawn. Null: none, as inside sources that put pauses
    between clips themselves."""
    seed: int = 0
    """Draws texts, voices, speed and pitch. Train and test parts draw differently with the same seed."""

    def tight(self) -> Source:
        return self if "silence" in self.model_fields_set else self.model_copy(update={"silence": None})

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.audio.synth import RATE

        requests = self.requests()
        part = self.voices.part if isinstance(self.voices, Voices) else None
        rng = random.Random(f"silence/{self.seed}/{part}")
        kind = self.texts.kind if isinstance(self.texts, Phrases) else self.texts
        label = "texts" if isinstance(kind, list) else as_path(kind).stem
        for i, (request, result) in enumerate(zip(requests, synthesize_all(requests))):
            name = f"{label}-{request['voice']}-{i:05d}"
            if isinstance(result, str):
                yield UnusableRecord(name, "empty", f"{name}: {result}")
                continue
            samples, words = result
            cut = spoken_cut(name, request, samples / RATE, words)
            if self.silence is not None:
                cut = chain(cut.id, [cut], [rng.uniform(*self.silence)], rng.uniform(*self.silence))
            yield cut

    def requests(self) -> list[dict[str, Any]]:
        """Texts and voices: arguments of `stentor.audio.synth.say`, in order."""
        from stentor.audio.synth import check_voice

        voices = self.voices if isinstance(self.voices, list) else self.voices.names()
        if not voices:
            raise ConfigError("The synth source has no voices.")
        for voice in voices:
            check_voice(voice)
        part = self.voices.part if isinstance(self.voices, Voices) else None
        rng = random.Random(f"synth/{self.seed}/{part}")
        if isinstance(self.texts, Phrases | str):
            count = self.count or GENERATED
            texts = self._generate(count, rng)
            pairs = list(zip(texts, dealt(voices, count, rng)))
        else:
            texts = self._listed()
            if self.count is None:
                pairs = [(text, voice) for text in texts for voice in voices]
            else:
                pairs = list(zip(dealt(texts, self.count, rng), dealt(voices, self.count, rng)))
        return [
            {"text": text, "voice": voice, "speed": rng.randint(*self.speed), "pitch": rng.randint(*self.pitch)}
            for text, voice in pairs
        ]

    def _generate(self, count: int, rng: random.Random) -> list[str]:
        phrases = self.texts if isinstance(self.texts, Phrases) else Phrases(kind=self.texts)
        return [phrases.text(rng) for _ in range(count)]

    def _listed(self) -> list[str]:
        if not isinstance(self.texts, str | Phrases | list):
            path = self.texts.expanduser()
            if not path.exists():
                raise DataError(
                    "`texts` of a synth source is `digits`, `commands`, `sentences`, a list of sentences or a file. "
                    f"{not_found(path)}"
                )
            with open_text(path) as lines:
                texts = [text for line in lines if (text := line.strip())]
        else:
            assert isinstance(self.texts, list)
            texts = [text for text in self.texts if text.strip()]
        if not texts:
            place = "`texts`" if isinstance(self.texts, list | str) else self.texts
            raise DataError(f"{place} of the synth source holds no texts.")
        return texts


def spoken_cut(name: str, request: dict[str, Any], seconds: float, words: list[dict[str, Any]]) -> Cut:
    """The cut of one utterance of the built-in voice; `request` holds the arguments of `stentor.audio.synth.say`."""
    from lhotse import MonoCut, Recording, SupervisionSegment
    from lhotse.supervision import AlignmentItem

    recording = Recording(id=name, sources=[], sampling_rate=RATE, num_samples=round(seconds * RATE), duration=seconds)
    items = [AlignmentItem(w["word"], w["start"], round(w["end"] - w["start"], 6)) for w in words]
    supervision = SupervisionSegment(
        id=name,
        recording_id=name,
        start=0.0,
        duration=seconds,
        text=request["text"],
        speaker=request["voice"],
        language=request["voice"].partition("+")[0].partition("-")[0],
        alignment={"word": items},
    )
    return MonoCut(
        id=name,
        start=0.0,
        duration=seconds,
        channel=0,
        recording=recording,
        supervisions=[supervision],
        custom={"voice": request},
    )


def chain(name: str, cuts: list[Cut], pauses: list[float], after: float) -> Cut:
    """One mixed cut on the sample grid: each cut after its pause in seconds, then `after` seconds of silence."""
    from lhotse.cut import MixedCut, PaddingCut
    from lhotse.cut.set import MixTrack

    tracks, samples = [], 0
    for cut, pause in zip(cuts, pauses):
        samples += round(pause * RATE)
        tracks.append(MixTrack(cut=cut, offset=samples / RATE))
        samples += round(cut.duration * RATE)
    samples += round(after * RATE)
    # Silence under the whole, because a mixed cut ends where its last track ends.
    silence = PaddingCut(
        id=f"{name}-silence", duration=samples / RATE, sampling_rate=RATE, feat_value=0.0, num_samples=samples
    )
    return MixedCut(id=name, tracks=[*tracks, MixTrack(cut=silence)])


def dealt(items: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    """`count` items, each equally often, as from shuffled decks."""
    cards: list[Any] = []
    while len(cards) < count:
        cards += rng.sample(items, len(items))
    return cards[:count]
