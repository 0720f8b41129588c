"""`stentor speak`: one text into one file, or many from a file into a folder."""

from __future__ import annotations

import difflib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.audio.io import WRITTEN, probe
from stentor.commands.file_progress import FileProgress, check_failed, make_folder
from stentor.data.atomic_write import atomic_path
from stentor.data.jsonl import open_text, parse_object
from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.inference.speak import Utterance
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.voice import save_voice, voice_file
from stentor.tasks.speak import seed_of

if TYPE_CHECKING:
    from stentor.cli.speak import SpeakOptions

MANIFEST = "speech.jsonl"
BATCH = 32
"""Lines of a file that are spoken together."""
SHARED = ("text", "voice", "language", "instruct", "duration", "speed", "seed", "reference", "reference_text")
"""Fields of an utterance that are options of the command."""


def speak_files(options: SpeakOptions) -> None:
    """Speak and write. Raises ConfigError for options that do not go together, and what `SpeakerLabels` raises; of many
    texts, those that cannot be spoken are named on standard error, and DataError is raised at the end."""
    _check(options)
    from stentor.inference.load import load

    lines = None if options.from_ is None else read_lines(options.from_)
    changes = {"steps": options.steps, "guidance": options.guidance, "compile": options.compile or None}
    generation = {key: value for key, value in changes.items() if value is not None}
    speaker = load(options.model, options.device).speaker(
        generation, options.recognizer, options.normalize, options.denoise, _warn
    )
    if options.save_voice is not None:
        _save_voice(options, speaker)
    if lines is not None:
        _many(options, speaker, lines)
    elif options.text is not None:
        _one(options, speaker)


def _check(options: SpeakOptions) -> None:
    if options.text is not None and options.from_ is not None:
        raise ConfigError("Give a TEXT or a file with --from, not both.")
    if options.text is None and options.from_ is None and options.save_voice is None:
        raise ConfigError("There is nothing to speak: give a TEXT, `-` for standard input, or a file with --from.")
    if options.save_voice is not None and options.reference is None:
        raise ConfigError("--save-voice keeps the voice of a reference: give --reference.")
    if options.format not in WRITTEN:
        raise ConfigError(f"Unknown --format {options.format}; known: {', '.join(WRITTEN)}.")
    if options.text == "-":
        options.text = sys.stdin.read()
    if options.text is not None and not options.text.strip():
        raise ConfigError("The text is empty: there is nothing to speak.")
    if options.text is not None or options.from_ is not None:
        _check_out(options)
    if options.save_voice is not None:
        _check_new(voice_file(options.save_voice), "--save-voice", options.force)


def _check_new(path: Path, option: str, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigError(f"{option}: {path} exists already. Give another name, or --force to write over it.")


def _check_out(options: SpeakOptions) -> None:
    """The file or the folder of `--out`, before the model is loaded. Raises ConfigError."""
    if options.out is None:
        where = "a folder" if options.from_ is not None else "a file, such as --out speech.wav"
        raise ConfigError(f"Say where the speech goes: {where}{' with --out' if options.from_ else ''}.")
    out = Path(options.out)
    if options.text is not None:
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: give a file, such as {out / 'speech.wav'}.")
        if out.suffix.lower().lstrip(".") not in WRITTEN:
            raise ConfigError(f"--out {out}: audio is written as .wav, .flac or .ogg.")
        _check_new(out, "--out", options.force)
    elif out.is_file():
        raise ConfigError(f"--out {out} is a file: give a folder for the speech of --from.")
    make_folder(out if options.from_ is not None else out.parent)


def _warn(sentence: str) -> None:
    print(f"stentor: warning: {sentence}", file=sys.stderr, flush=True)


def _save_voice(options: SpeakOptions, speaker: Speaker) -> None:
    assert options.reference is not None and options.save_voice is not None
    voice = speaker.voice(options.reference, options.reference_text, language=options.language)
    path = save_voice(voice, options.save_voice, speaker.codec)
    print(f"{path}: a voice of {voice.frames / speaker.codec.frame_rate:.1f} s, for --voice {options.save_voice}")


def _one(options: SpeakOptions, speaker: Speaker) -> None:
    from stentor.audio.io import write

    assert options.out is not None
    shared = {name: getattr(options, name) for name in SHARED if getattr(options, name) is not None}
    asked = speaker.prepare(Utterance(**shared))
    began = time.perf_counter()
    speech = next(speaker.speak([asked], not options.raw))
    took = time.perf_counter() - began
    write(options.out, speech.audio, speech.rate)
    print(timing(options.out, speech.seconds, took))


def timing(what: str, seconds: float, took: float) -> str:
    """How long something is and how long it took."""
    return f"{what}: {seconds:.2f} s of speech in {took:.2f} s (real-time factor {took / max(seconds, 1e-9):.3g})"


@dataclass
class TextLine:
    """One text of a file."""

    number: int
    record: dict[str, Any]
    problem: str | None = None  # why it cannot be spoken

    @property
    def id(self) -> str:
        return str(self.record.get("id", f"line{self.number:05d}"))


TYPES: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "text": (str,),
    "reference": (str,),
    "reference_text": (str,),
    "voice": (str,),
    "instruct": (str,),
    "language": (str,),
    "duration": (int, float),
    "speed": (int, float),
    "seed": (int,),
}
"""Keys of a line that mean something here; null is as if the key were not there."""
ALIASES = {"ref_audio": "reference", "ref_text": "reference_text", "language_id": "language"}
"""OmniVoice's names."""
IGNORED = ("speaker", "audio_path", "start", "words", "segments", "uem", "text_pinyin", "language_name")
"""Other keys of manifests and of OmniVoice's lists, which may stand there."""


def read_lines(path: str) -> list[TextLine]:
    """The lines of a JSONL file, each with its problem where it has one; empty lines are skipped.

    Raises ConfigError when the file cannot be read, DataError when it holds no line.
    """
    lines: list[TextLine] = []
    seen: dict[str, int] = {}
    try:
        with open_text(Path(path)) as texts:
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
    if Path(line.id).name != line.id or line.id.startswith(".") or not line.id.isprintable():
        return f"has the id {line.id!r}, which is no name for a file"
    first = seen.setdefault(line.id.lower(), line.number)
    return None if first == line.number else f"has the id {line.id!r} of line {first}"


def _named(kinds: tuple[type, ...]) -> str:
    return {str: "text", int: "a whole number", float: "a number"}[kinds[-1] if kinds != (str, int) else str]


def _many(options: SpeakOptions, speaker: Speaker, lines: list[TextLine]) -> None:
    """Each line into DIR/ID.wav, and DIR/speech.jsonl with all of them. What is there already is kept."""
    from stentor.audio.io import write

    assert options.out is not None and options.from_ is not None
    folder = Path(options.out)
    defaults = _Defaults(options, speaker, Path(options.from_).parent)
    failed: list[str] = []
    records: dict[int, dict[str, Any]] = {}
    new, seconds, took = 0, 0.0, 0.0
    bar = FileProgress(len(lines), "speaking")

    def leave_out(line: TextLine, why: str) -> None:
        failed.append(f"line {line.number}")
        bar.print(f"stentor: {options.from_}:{line.number}: {why}", error=True)
        bar.add_file()

    speaker.remark = lambda sentence: bar.print(f"stentor: warning: {sentence}", error=True)
    with bar:
        waiting: list[tuple[TextLine, Utterance]] = []

        def say() -> None:
            nonlocal new, seconds, took
            began = time.perf_counter()
            for (line, _), speech in zip(waiting, speaker.speak([u for _, u in waiting], not options.raw)):
                path = folder / f"{line.id}.{options.format}"
                write(path, speech.audio, speech.rate)
                records[line.number] = _record(line, path.name, speech.seconds)
                new += 1
                seconds += speech.seconds
                bar.add_seconds(speech.seconds)
                bar.add_file()
            took += time.perf_counter() - began
            waiting.clear()

        for line in lines:
            if line.problem is not None:
                leave_out(line, line.problem)
                continue
            path = folder / f"{line.id}.{options.format}"
            if not options.force and (record := _former_record(path, line)) is not None:
                records[line.number] = record
                bar.add_file()
                continue
            try:
                waiting.append((line, defaults.utterance(line)))
            except StentorError as error:
                leave_out(line, str(error))
                continue
            if len(waiting) == BATCH:
                say()
        if waiting:
            say()
    with atomic_path(folder / MANIFEST) as part:
        rows = [json.dumps(records[number], ensure_ascii=False) + "\n" for number in sorted(records)]
        part.write_text("".join(rows), encoding="utf-8")
    if new:
        print(timing(f"{folder}: {new} spoken", seconds, took))
    if len(records) > new:
        print(f"{folder}: {len(records) - new} kept as they are; --force speaks them again")
    check_failed(failed, len(lines), "lines could not be spoken", most=20)


class _Defaults:
    """What the command's options say for the lines that do not."""

    def __init__(self, options: SpeakOptions, speaker: Speaker, folder: Path):
        self.options, self.speaker, self.folder = options, speaker, folder
        self.seed = speaker.generation.seed if options.seed is None else options.seed

    def utterance(self, line: TextLine) -> Utterance:
        """Checked. Raises ConfigError, DataError and AudioError."""
        record, options = line.record, self.options
        voice, reference = record.get("voice"), record.get("reference")
        reference_text = record.get("reference_text")
        if voice is not None:
            voice = self._path(voice)
        if reference is not None:
            reference = self._path(reference)
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
                voice,
                record.get("language", options.language),
                record.get("instruct", options.instruct),
                duration,
                1.0 if speed is None else float(speed),
                record.get("seed", seed_of(self.seed, line.id)),
                reference,
                reference_text,
            )
        )

    def _path(self, written: str) -> str:
        """As in manifests: relative to the file's folder; or, as in OmniVoice, to the working directory."""
        beside = self.folder / written
        return written if Path(written).exists() and not beside.exists() else str(beside)


NOT_KEPT = ("reference", "reference_text", "voice", "speed", "seed", "audio_path", "start", "duration", "words")
"""Keys of a line that are about something else than the speech that was made of it."""


def _record(line: TextLine, name: str, seconds: float) -> dict[str, Any]:
    """What the manifest says about the speech of a line."""
    others = {key: value for key, value in line.record.items() if key not in NOT_KEPT}
    return {**others, "id": line.id, "audio_path": name, "duration": round(seconds, 3)}


def _former_record(path: Path, line: TextLine) -> dict[str, Any] | None:
    """The record of what a former run made of a line, None when it made nothing, or nothing whole."""
    if not path.is_file():
        return None
    try:
        return _record(line, path.name, probe(path).duration)
    except AudioError:
        return None
