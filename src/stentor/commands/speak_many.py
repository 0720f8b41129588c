"""`stentor speak --from`: many texts of a file into a folder, by one process or several."""

import difflib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from stentor.audio.io import encode, probe
from stentor.commands.speak_options import SpeakOptions
from stentor.data.jsonl import open_text, parse_object
from stentor.data.storage import as_path, full_path
from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.inference.declarations import declarations
from stentor.inference.options import SpeechOptions
from stentor.inference.speak.reference import Remark
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.utterance import Speech, Utterance
from stentor.inference.speak.voice import voice_names
from stentor.pipeline.executor import device_names, make_executor
from stentor.pipeline.file_progress import FileProgress, check_failed
from stentor.pipeline.journal import write_jsonl
from stentor.pipeline.options import Workers
from stentor.pipeline.outputs import Outputs, digest, identity
from stentor.pipeline.worker import Worker
from stentor.sources.speech_list import REFERENCE_ALIASES, beside_or_here
from stentor.tasks.speak.task import seed_of


@dataclass
class TextLine:
    """One text of a file."""

    number: int
    record: dict[str, Any]
    problem: str | None = None  # why it cannot be spoken

    @property
    def id(self) -> str:
        return str(self.record.get("id", f"line{self.number:05d}"))


KINDS: dict[Any, tuple[type, ...]] = {str | None: (str,), int | None: (int,), float | None: (int, float)}
TYPES: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "text": (str,),
    **{field.name: KINDS[declared.read_as or field.type] for field, declared in declarations(SpeechOptions)},
}
"""Keys of a line that mean something here; null is as if the key were not there."""
ALIASES = REFERENCE_ALIASES | {"language_id": "language"}
"""OmniVoice's names."""
LONGEST_ID = 200
"""Bytes of an `id`: names of files have 255."""
IGNORED = ("speaker", "audio_path", "start", "words", "segments", "uem", "text_pinyin", "language_name")
"""Other keys of manifests and of OmniVoice's lists, which may stand there."""


def read_lines(path: str) -> list[TextLine]:
    """The lines of a JSONL file, each with its problem where it has one; empty lines are skipped.

    Raises ConfigError when the file cannot be read, DataError when it holds no line.
    """
    lines: list[TextLine] = []
    seen: dict[str, int] = {}
    try:
        with open_text(as_path(path)) as texts:
            written = [(number, line) for number, line in texts.numbered() if not isinstance(line, str) or line.strip()]
    except DataError as error:
        raise ConfigError(f"--from {error}") from None
    for number, text in written:
        where = f"{path}:{number}"
        try:
            record = parse_object(text, where)
        except DataError as error:
            lines.append(TextLine(number, {}, str(error).removeprefix(f"{where}: ")))
            continue
        line = TextLine(number, {key: value for key, value in record.items() if value is not None})
        problem = _rename(line.record) or _problem(line, seen)
        line.problem = problem and f"the line {problem}{'' if problem.endswith('?') else '.'}"
        lines.append(line)
    if not lines:
        raise DataError(f"--from {path} is empty: it holds one JSON object a line.")
    return lines


def _rename(record: dict[str, Any]) -> str | None:
    """Give `ALIASES` our names; what is wrong with the keys."""
    for alias, key in ALIASES.items():
        if alias in record and key in record:
            return f"has both `{key}` and `{alias}`, which mean the same"
        if alias in record:
            record[key] = record.pop(alias)
    for key in record:
        if key not in TYPES and key not in IGNORED:
            matches = difflib.get_close_matches(key, [*TYPES, *ALIASES], 1)
            hint = f"did you mean `{matches[0]}`?" if matches else f"known are {', '.join(TYPES)}"
            return f"has the key `{key}`, which means nothing here; {hint}"
    return None


def _problem(line: TextLine, seen: dict[str, int]) -> str | None:
    if "text" not in line.record:
        return "has no `text`"
    for key, kinds in TYPES.items():
        value = line.record.get(key)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            return f"has {json.dumps(value, ensure_ascii=False)[:40]} as `{key}`, which must be {_named(kinds)}"
    named = Path(line.id).name == line.id and line.id.isprintable() and len(line.id.encode()) <= LONGEST_ID
    if not line.id or not named or line.id.startswith("."):
        return f"has the id {line.id!r}, which is no name for a file"
    first = seen.setdefault(line.id.lower(), line.number)
    return None if first == line.number else f"has the id {line.id!r} of line {first}"


def _named(kinds: tuple[type, ...]) -> str:
    return {str: "text", int: "a whole number", float: "a number"}[kinds[-1] if kinds != (str, int) else str]


MANIFEST = "speech.jsonl"
BATCH = 32
"""Lines of a file that are spoken together."""


def open_speaker(options: SpeakOptions, device: str, remark: Remark) -> Speaker:
    """The model of the command with its settings. Raises ConfigError."""
    from stentor.inference.load import load

    model = load(options.model, device)
    return model.speaker(options.generation, options.recognizer, options.normalize, options.denoise, remark)


def timing(what: str, seconds: float, took: float) -> str:
    """Duration of audio and of its computation."""
    return f"{what}: {seconds:.2f} s of speech in {took:.2f} s (real-time factor {took / max(seconds, 1e-9):.3g})"


@dataclass
class SpokenLine:
    """The outcome of a line; nothing but messages where it could not be spoken."""

    line: TextLine
    record: dict[str, Any] | None = None
    """The line of the manifest about its speech."""
    content: bytes = b""
    """Its audio file."""
    seconds: float = 0.0
    messages: list[str] = field(default_factory=list)
    """Warnings and reasons of failures; of lines that were spoken together, with the first one."""
    took: float = 0.0
    """Seconds that the lines took which were spoken together, with the first one."""


@dataclass
class LinesWorker(Worker):
    """Speaks groups of lines."""

    options: SpeakOptions

    def setup(self, device: str) -> None:
        self.messages: list[str] = []
        self.speaker = open_speaker(self.options, device, lambda text: self.messages.append(f"warning: {text}"))
        self.seed = self.speaker.generation.seed if self.options.seed is None else self.options.seed

    def process(self, group: Sequence[TextLine]) -> list[SpokenLine]:
        """The file of each line, which depends on nothing but the line."""
        began, spoken = time.perf_counter(), list[SpokenLine]()
        for line, speech in self.speak(group):
            if isinstance(speech, StentorError):
                self.messages.append(f"{self.options.from_}:{line.number}: {speech}")
                spoken.append(SpokenLine(line))
                continue
            path = _path(self.options, line)
            content = encode(speech.audio, speech.rate, str(path), path.suffix.lstrip("."))
            spoken.append(SpokenLine(line, _record(line, path.name, speech.seconds), content, speech.seconds))
        spoken[0].messages, self.messages = self.messages, []
        spoken[0].took = time.perf_counter() - began
        return spoken

    def speak(self, group: Sequence[TextLine]) -> Iterator[tuple[TextLine, Speech | StentorError]]:
        """The lines that cannot be spoken, with why, then the others with their speech."""
        prepared: list[tuple[TextLine, Utterance]] = []
        for line in group:
            try:
                prepared.append((line, self._utterance(line)))
            except StentorError as error:
                yield line, error
        utterances = [utterance for _, utterance in prepared]
        for (line, _), speech in zip(prepared, self.speaker.speak(utterances, not self.options.raw)):
            yield line, speech

    def crashed(self, group: Sequence[TextLine]) -> list[SpokenLine]:
        _, (reject,) = super().crashed(group)
        return [SpokenLine(group[0], messages=[f"{self.options.from_}: {reject.message}"])]

    def _utterance(self, line: TextLine) -> Utterance:
        """Checked. Raises ConfigError, DataError and AudioError."""
        record, options = line.record, self.options
        voice, reference = record.get("voice"), record.get("reference")
        reference_text = record.get("reference_text")
        if voice is not None and voice not in voice_names(self.speaker.voices):
            voice = self._resolve(voice)
        if reference is not None:
            reference = self._resolve(reference)
        if voice is None and reference is None:
            voice, reference = options.voice, options.reference
            reference_text = options.reference_text if reference_text is None else reference_text
        duration = record.get("duration")
        speed = None if duration is not None else record.get("speed")  # as in OmniVoice: the duration counts
        if duration is None and speed is None:
            duration, speed = options.duration, options.speed
        return self.speaker.prepare(
            Utterance(
                record["text"],
                voice=voice,
                language=record.get("language", options.language),
                instruct=record.get("instruct", options.instruct),
                duration=duration,
                speed=1.0 if speed is None else float(speed),
                seed=record.get("seed", seed_of(self.seed, line.id)),
                reference=reference,
                reference_text=reference_text,
            )
        )

    def _resolve(self, written: str) -> str:
        return str(beside_or_here(written, as_path(self.options.from_ or "").parent))


def speak_many(options: SpeakOptions, lines: Sequence[TextLine]) -> None:
    """Each line into DIR/ID.wav, and DIR/speech.jsonl with all of them. What is there already is kept, so that the same
    command resumes where it was stopped, with any number of processes. Lines that cannot be spoken are named on
    standard error, and DataError is raised at the end."""
    assert options.out is not None
    assert options.from_ is not None
    folder, source = Path(options.out), full_path(options.from_)
    facts = {line.id: _facts(options, line, source) for line in lines if line.problem is None}
    outputs = Outputs(folder, "speak", options, facts)
    written = folder / MANIFEST
    before = outputs.made.get((MANIFEST, digest(written.read_bytes())), {}) if written.is_file() else {}
    if before.get("source", source) != source and not options.force:
        raise ConfigError(f"{written} lists the speech of {before['source']}: give another --out, or --force.")
    failed, todo = [line.number for line in lines if line.problem is not None], list[TextLine]()
    seconds, took = 0.0, 0.0
    records: dict[int, dict[str, Any]] = {}
    with FileProgress(len(lines), "speaking") as bar:
        again = outputs.plan([options.format], not options.force, "lines")
        for line in lines:
            if line.problem is not None:
                bar.print(f"stentor: {options.from_}:{line.number}: {line.problem}", error=True)
            elif line.id not in again:
                path = _path(options, line)
                records[line.number] = _record(line, path.name, probe(path).duration)
            else:
                todo.append(line)
                continue
            bar.add_file()
        unchanged = len(records)
        processes = options.processes or 1
        size = min(BATCH, -(-len(todo) // processes)) or 1
        local = processes > 1 and options.ray is None
        devices = device_names(options.device) if local else [options.device]
        cluster = Workers(
            ray=options.ray,
            jobs=options.processes or (None if options.ray else 1),
            gpus_per_worker=options.gpus_per_worker,
            device=options.device,
            plugin=options.plugin,
        )
        executor = make_executor(cluster, devices)
        groups = [todo[i : i + size] for i in range(0, len(todo), size)]
        for spoken in chain.from_iterable(executor.map(LinesWorker(options), groups, lambda: False)):
            for message in spoken.messages:
                bar.warn(f"stentor: {message}")
            if spoken.record is None:
                failed.append(spoken.line.number)
            elif problem := outputs.write(spoken.line.id, {options.format: spoken.content}):
                failed.append(spoken.line.number)
                bar.warn(problem)
            else:
                records[spoken.line.number] = spoken.record
            seconds += spoken.seconds
            took += spoken.took / min(processes, len(groups))
            bar.add_seconds(spoken.seconds)
            bar.add_file()
    write_jsonl(written, (records[number] for number in sorted(records)))
    outputs.note({MANIFEST: digest(written.read_bytes())}, {"source": source})
    if new := len(records) - unchanged:
        print(timing(f"{folder}: {new} spoken", seconds, took))
    if unchanged:
        print(f"{folder}: {unchanged} kept as they are; --force speaks them again")
    named = [f"line {number}" for number in sorted(failed)]
    check_failed(named, len(lines), "lines could not be spoken", most=20)


def _path(options: SpeakOptions, line: TextLine) -> Path:
    return Path(options.out or "") / f"{line.id}.{options.format}"


NOT_KEPT = ("reference", "reference_text", "voice", "speed", "seed", "audio_path", "start", "duration", "words")
"""Keys of a line that are about something else than the speech that was made of it."""


def _record(line: TextLine, name: str, seconds: float) -> dict[str, Any]:
    """Manifest entry for the speech of a line."""
    others = {key: value for key, value in line.record.items() if key not in NOT_KEPT}
    return {**others, "id": line.id, "audio_path": name, "duration": round(seconds, 3)}


def _facts(options: SpeakOptions, line: TextLine, source: str) -> dict[str, Any]:
    """Facts that the speech of a line depends on. A file of it that is no audio is deleted, with a message."""
    path, folder = _path(options, line), as_path(source).parent
    try:
        probe(path) if path.is_file() else None
    except AudioError as error:
        print(f"stentor: {error} It is made again.", file=sys.stderr)
        path.unlink()
    named = [line.record[key] for key in ("voice", "reference") if key in line.record]
    return {"source": source, "line": digest([line.record, [identity(beside_or_here(n, folder)) for n in named]])}
