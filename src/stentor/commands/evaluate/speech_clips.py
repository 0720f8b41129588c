"""Clips to evaluate: each record as a model speaks it, or as an existing file has it, beside what is real."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.io import probe, read, write
from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.callbacks.samples import file_name
from stentor.data.batch import Example
from stentor.data.cut import field_of, language_of, speaker_of, text_of
from stentor.data.load_audio import load_audio
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.inference.model import Model
from stentor.inference.speak.reference import check_length, levelled
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.utterance import Utterance
from stentor.inference.speak.voice import Voice
from stentor.tasks.speak.task import Speak, seed_of

LEAST, MOST = 1.0, 20.0
"""Seconds of the recordings that are taken as references, where the speaker has such."""


@dataclass
class Clips:
    """The audio of one record, by column, and the facts about it."""

    item: Item
    columns: dict[str, np.ndarray]
    """`synthetic`, and where there is a recording `real` and, decoded from its codes, `codec`: float32 [samples]."""
    rate: int
    facts: dict[str, Any]
    like: str
    """Id of the record whose recording the voice is compared with, where the record names no reference of its own."""


def is_recorded(item: Item) -> bool:
    """Whether there is a recording of what the record says: not of texts in an evaluation list."""
    return item.cut.duration > 0


def reference_of(item: Item) -> str | None:
    """The file of the reference that a line of an evaluation list names, which is absolute there; in other sources
    `reference` is a field like any."""
    reference = field_of(item.cut, "reference")
    return reference if isinstance(reference, str) and Path(reference).is_absolute() else None


@contextmanager
def naming(item: Item) -> Iterator[None]:
    """Puts the record's id before what is raised inside."""
    try:
        yield
    except StentorError as error:
        kind = ConfigError if isinstance(error, ConfigError) else DataError
        raise kind(f"{item.cut.id}: {error}") from None


def check_references(items: Sequence[Item], voice: str | None) -> None:
    """Raises DataError for references that are too short or too long, of all records, before the first one is spoken;
    ConfigError for one that `voice`, of VOICES, copies and whose words are not known."""
    checked: set[str] = set()
    for item in items:
        path = reference_of(item)
        copied = voice == "reference" or (voice == "auto" and field_of(item.cut, "voice") is None)
        with naming(item):
            if path is not None and copied and not (field_of(item.cut, "reference_text") or "").strip():
                raise ConfigError(
                    f"what is said in its reference {path} must be known: write it into the list (`reference_text`), "
                    "or give --recognizer with a model that writes it down."
                )
            if path is not None and path not in checked:
                check_length(probe(path).duration, path)
                checked.add(path)


@dataclass
class FileClips:
    """Speech that is there already: files ID.wav (or another kind of audio) in one folder, whoever made them."""

    folder: Path
    others: dict[str, Item]
    """By id of a record, another recording of its speaker."""
    computing = 0.0
    seconds = 0.0

    def check(self, items: Sequence[Item]) -> None:
        """Raises DataError when the speech of a record is missing: a figure over fewer is of another set."""
        if not self.folder.is_dir():
            raise ConfigError(f"--audio-from {self.folder} is no folder.")
        if missing := [item.cut.id for item in items if self._file(item.cut.id) is None]:
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise DataError(
                f"{self.folder} has no speech of {len(missing)} of {len(items)} records ({names}): "
                "each is a file ID.wav. Make it, or score the others alone with `exclude={id: [...]}` behind --data."
            )

    def clips(self, items: Sequence[Item]) -> list[Clips]:
        """The speech of some records at the rate of its file, and what is real resampled to that."""
        clips = []
        for item in items:
            path = self._file(item.cut.id)
            assert path is not None
            with naming(item):
                info = probe(path)
                columns = {"synthetic": read(path, info.sample_rate, check_silence=False)}
                if is_recorded(item):
                    columns["real"] = load_audio(item.cut, info.sample_rate)
            facts = {"voice": "file", "seconds": round(info.duration, 3), "audio": str(path)}
            like = reference_of(item) or self.others.get(item.cut.id, item).cut.id
            clips.append(Clips(item, columns, info.sample_rate, facts, like))
        return clips

    def _file(self, name: str) -> Path | None:
        stems = dict.fromkeys((name, file_name(name)))
        paths = (self.folder / f"{stem}{suffix}" for stem in stems for suffix in AUDIO_SUFFIXES)
        return next((path for path in paths if path.is_file()), None)


@dataclass
class ModelClips:
    """Speech of a model. Each record is read once; those whose audio cannot be used are left out."""

    model: Model
    task: Speak
    speaker: Speaker
    voice: str
    """One of VOICES."""
    length: str
    """One of LENGTHS, without `auto`."""
    folder: Path | None
    """Where the speech is written."""
    others: dict[str, Item]
    """By id of a record, another recording of its speaker."""
    codes: dict[str, np.ndarray] = field(default_factory=dict)
    computing: float = 0.0
    seconds: float = 0.0
    write: Callable[[Path, np.ndarray, int], None] = write
    """Writes speech into the folder, as `stentor.audio.io.write` does."""

    def __post_init__(self) -> None:
        self.reader = BatchDataset(self.task, self.model.bundle.processor, None, seed=0)
        self.voices: dict[tuple[str, ...], Voice] = {}

    def clips(self, items: Sequence[Item]) -> list[Clips]:
        """The speech of some records, beside the recording decoded from its codes and the recording itself."""
        examples = {item.cut.id: self._example(item) for item in items if is_recorded(item)}
        ready = [item for item in items if examples.get(item.cut.id) or not is_recorded(item)]
        if not ready:
            return []
        asked = []
        for item in ready:
            with naming(item):
                asked.append(self._utterance(item, examples.get(item.cut.id)))
        began = time.perf_counter()
        # As it comes from the codec: trimming and levels would be measured along with the model.
        speeches = list(self.speaker.speak([utterance for utterance, _, _ in asked], finish=False))
        self.computing += time.perf_counter() - began
        recorded = [item.cut.id for item in ready if is_recorded(item)]
        decoded = self.speaker.codec.decode([self.codes[name] for name in recorded]) if recorded else []
        codecs = dict(zip(recorded, decoded, strict=True))
        clips = []
        for item, (_, kind, like), speech in zip(ready, asked, speeches, strict=True):
            self.seconds += speech.seconds
            facts: dict[str, Any] = {"voice": kind, "seconds": round(speech.seconds, 3)}
            facts |= {"frames": speech.codes.shape[1], "seed": speech.seed}
            if kind == "reference":
                facts["like"] = like
            if self.folder is not None:
                path = self.folder / f"{file_name(item.cut.id)}.wav"
                self.write(path, speech.audio, speech.rate)
                facts["audio"] = str(path)
            columns = {"synthetic": speech.audio}
            if (example := examples.get(item.cut.id)) is not None:
                columns["codec"] = codecs[item.cut.id]
                if example.audio is not None:
                    columns["real"] = example.audio
            clips.append(Clips(item, columns, speech.rate, facts, like))
        return clips

    def _utterance(self, item: Item, example: Example | None) -> tuple[Utterance, str, str]:
        """(what is asked for, what tells its voice, the file or the record that the voice is compared with)."""
        record = self.task.spoken(item.cut)
        reference = reference_of(item)
        instruct = record.instruct if self.voice in ("auto", "instruct") else None
        kind, voice = ("instruct" if instruct else "none"), None
        saved = None if is_recorded(item) else field_of(item.cut, "voice")
        # A voice without a reference is compared with another recording of its speaker, or else with its own.
        like = reference or self.others.get(item.cut.id, item).cut.id
        if saved is not None and self.voice == "auto":
            kind, voice = "voice", saved
        elif reference is not None and self.voice in ("auto", "reference"):
            kind, voice = "reference", self._reference_voice(item, reference)
        elif not instruct and item.cut.id in self.others and self.voice in ("auto", "reference"):
            voice = self._recorded_voice(self.others[item.cut.id])
            kind = "reference" if voice is not None else "none"
        duration, speed = field_of(item.cut, "speak_seconds"), 1.0
        if duration is None and self.length == "recorded" and example is not None:
            duration = example.extra["seconds"]
        elif duration is None and not is_recorded(item):
            speed = float(field_of(item.cut, "speed") or 1.0)
        utterance = Utterance(
            record.text,
            voice=voice,
            language=record.language,
            instruct=instruct,
            duration=duration,
            speed=speed,
            seed=seed_of(self.speaker.generation.seed, item.cut.id),
        )
        return utterance if is_recorded(item) else self.speaker.prepare(utterance), kind, like

    def _reference_voice(self, item: Item, path: str) -> Voice:
        """The voice of a list's reference, as it is: published evaluations trim none."""
        text = (field_of(item.cut, "reference_text") or "").strip()
        key = (path, text, language_of(item.cut) or "")
        if key not in self.voices:
            if text:
                samples = levelled(read(path, self.speaker.codec.sample_rate))
                codes = self.speaker.codec.encode([samples])[0]
                self.voices[key] = Voice(codes, text, language_of(item.cut), path)
            else:
                self.voices[key] = self.speaker.voice(path, language=language_of(item.cut))
        return self.voices[key]

    def _recorded_voice(self, item: Item) -> Voice | None:
        if item.cut.id not in self.codes and self._example(item) is None:
            return None
        return Voice(self.codes[item.cut.id], text_of(item.cut) or "", language_of(item.cut), item.cut.id)

    def _example(self, item: Item) -> Example | None:
        """The example of a record, whose codes are then in `codes`."""
        examples, _ = self.reader.examples([item])  # what cannot be read was counted with the loss
        if not examples:
            return None
        processor: Any = self.model.bundle.processor
        try:
            codes = self.codes[item.cut.id] = processor.codes(examples[0])
            processor.codec.check(codes)
        except AudioError:
            return None
        examples[0].extra["seconds"] = codes.shape[1] / processor.codec.frame_rate
        return examples[0]


def others_of_speakers(items: Sequence[Item]) -> dict[str, Item]:
    """For each record another recorded one of the same speaker that has a text, of a good length where there is one:
    the next by id. Records of speakers who are not known, or who have no other, are left out."""
    by_speaker: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.cut.id):
        speaker = speaker_of(item.cut)
        if is_recorded(item) and speaker is not None and (text_of(item.cut) or "").strip():
            by_speaker.setdefault(speaker, []).append(item)
    references = {}
    for records in by_speaker.values():
        good = [item for item in records if LEAST <= item.cut.duration <= MOST]
        if len(good) < 2:
            good = records
        ids = [item.cut.id for item in good]
        for item in records:
            reference = good[bisect_right(ids, item.cut.id) % len(good)]
            if reference is not item:
                references[item.cut.id] = reference
    return references
