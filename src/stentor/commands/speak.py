"""`stentor speak`: one text into one file, or many from a file into a folder."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from stentor.audio.io import WRITTEN
from stentor.audio.writer import PIPED, open_writer
from stentor.commands.speak_many import open_speaker, read_lines, speak_many, timing
from stentor.commands.speak_options import LINES, PIPE, TEXT, VOICE, SpeakOptions
from stentor.data.atomic_write import atomic_path
from stentor.errors import ConfigError
from stentor.inference.declarations import refuse_unused
from stentor.inference.options import SPOKEN
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.utterance import Utterance
from stentor.inference.speak.voice import load_voice, save_voice, voice_file
from stentor.pipeline.outputs import Outputs, digest, make_folder

STDOUT = "-"
"""Standard output, as `--out`."""


def speak_files(options: SpeakOptions) -> None:
    """Speak and write. Raises ConfigError for options that do not go together, and what `Speaker` raises; of many
    texts, those that cannot be spoken are named on standard error, and DataError is raised at the end."""
    _check(options)
    if options.from_ is not None:
        speak_many(options, read_lines(options.from_))
        return
    speaker = open_speaker(options, options.device, _warn)
    if options.save_voice is not None:
        _save_voice(options, speaker)
    if options.text is not None:
        _one(options, speaker)


def _check(options: SpeakOptions) -> None:
    if options.text is not None and options.from_ is not None:
        raise ConfigError("Give a TEXT or a file with --from, not both.")
    if options.text is None and options.from_ is None and options.save_voice is None:
        raise ConfigError("There is nothing to speak: give a TEXT, `-` for standard input, or a file with --from.")
    if options.save_voice is not None and options.from_ is not None:
        raise ConfigError(
            "--save-voice does not go with --from: save the voice first, then speak the file with --voice."
        )
    if options.save_voice is not None and options.reference is None and options.voice is None:
        raise ConfigError("--save-voice keeps the voice of a reference: give --reference.")
    if options.text is not None:
        refuse_unused(options, SPOKEN, *([PIPE] if options.out == STDOUT else []), TEXT)
    else:
        refuse_unused(options, *((VOICE,) if options.from_ is None else (SPOKEN, LINES)))
    known = PIPED if options.text is not None and options.out == STDOUT else tuple(WRITTEN)
    if options.format not in known:
        raise ConfigError(f"Unknown --format {options.format}; known: {', '.join(known)}.")
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
    if options.text is not None and options.out == STDOUT:
        if sys.stdout.isatty():
            raise ConfigError("--out - writes audio to a pipe, and this is a terminal: add `| ffplay -nodisp -i -`.")
        return
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
    assert options.save_voice is not None
    if options.reference is not None:
        voice = speaker.voice(options.reference, options.reference_text, language=options.language)
    else:  # such as one of OmniVoice's
        voice = load_voice(str(options.voice), speaker.codec, speaker.voices)
    path = save_voice(voice, options.save_voice, speaker.codec)
    line = f"{path}: a voice of {voice.frames / speaker.codec.frame_rate:.1f} s, for --voice {options.save_voice}"
    print(line, file=sys.stderr if options.out == STDOUT else sys.stdout)


def _one(options: SpeakOptions, speaker: Speaker) -> None:
    assert options.out is not None
    utterance = speaker.prepare(Utterance.of(options.text or "", options))
    began, first, samples = time.perf_counter(), 0.0, 0
    rate = speaker.codec.sample_rate
    with _destination(options) as (path, kind), open_writer(path, rate, kind) as write:
        for piece in speaker.stream(utterance, not options.raw, options.stream):
            write(piece.audio)
            first = first or time.perf_counter() - began
            samples += len(piece.audio)
    if options.out != STDOUT:
        out, facts = Path(options.out), {"source": "text", "text": options.text}
        Outputs(out.parent, "speak", options, {}).note({out.name: digest(out.read_bytes())}, facts)
    line = timing(options.out, samples / rate, time.perf_counter() - began)
    line += f", the first after {first:.2f} s" if options.stream else ""
    print(line, file=sys.stderr if options.out == STDOUT else sys.stdout)


@contextmanager
def _destination(options: SpeakOptions) -> Iterator[tuple[str | Path, str]]:
    """Where one text goes and in which format. A file appears when it is complete; streamed, it grows in its place."""
    assert options.out is not None
    if options.out == STDOUT:
        yield STDOUT, options.format
        return
    path = Path(options.out)
    with nullcontext(path) if options.stream else atomic_path(path) as place:
        yield place, path.suffix.lower().lstrip(".")
