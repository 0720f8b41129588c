"""`stentor transcribe` behind its options: many files in, transcripts on standard output or in a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.inference.formats import NEED_WORDS, SUBTITLES, SUFFIXES, WRITERS, render

if TYPE_CHECKING:
    from stentor.inference.recording import Recording


@dataclass
class Request:
    """The options of the command."""

    model: str
    audio: list[str]
    format: str = "txt"
    out: str | None = None
    words: bool = False
    diarizer: str | None = None
    language: str | None = None
    context: str | None = None
    device: str = "auto"
    batch_seconds: float = 120.0
    vad: str | None = None
    cues: str = "lines"


def transcribe_files(request: Request) -> None:
    """Transcribe and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    formats = _formats(request)
    from stentor.commands.file_progress import Files
    from stentor.inference.load import load
    from stentor.inference.recording import FileRecording
    from stentor.inference.transcribe import transcribe
    from stentor.inference.vad import SileroDetector

    detector = SileroDetector(request.vad) if request.vad else None
    model = load(request.model, request.device)
    task = model.for_transcription()
    diarizer = None
    if request.diarizer is not None:
        from stentor.inference.diarize import segments_by

        diarizer = segments_by(load(request.diarizer, request.device))
    files = Files(request.audio, request.out, "transcribing")
    rate = model.bundle.processor.sample_rate
    recordings: list[Recording] = [FileRecording(path, rate) for path in request.audio]
    with files:
        for transcript in transcribe(
            model.bundle,
            task,
            recordings,
            request.language,
            request.context,
            request.batch_seconds,
            detector,
            request.model,
            request.words,
            on_error=files.left_out,
            on_window=files.window,
            diarizer=diarizer,
        ):
            name = next(files.names)
            if files.folder is None:
                files.print(_printed(transcript, formats[0], request))
            else:
                for format in formats:
                    text = render(transcript, format, request.cues)
                    (files.folder / f"{name}.{SUFFIXES[format]}").write_text(text, encoding="utf-8")
            files.file()
    files.check("transcribed")


def _formats(request: Request) -> list[str]:
    formats = list(dict.fromkeys(f.strip().lower() for f in request.format.split(",") if f.strip()))
    unknown = [f for f in formats if f not in WRITERS]
    if unknown or not formats:
        raise ConfigError(f"Unknown --format {', '.join(unknown) or '(empty)'}; known: {', '.join(WRITERS)}.")
    if (worded := NEED_WORDS & set(formats)) and not request.words:
        raise ConfigError(f"--format {', '.join(sorted(worded))} lists word times: it needs --words.")
    if request.cues not in ("lines", "words"):
        raise ConfigError(f"Unknown --cues {request.cues}; known: lines, words.")
    if request.cues == "words" and not (request.words and SUBTITLES & set(formats)):
        raise ConfigError("--cues words is a subtitle for each word: it needs --words and --format srt or vtt.")
    if request.out is None:
        if len(formats) > 1:
            raise ConfigError("Several formats cannot share standard output: give a folder with --out.")
        if len(request.audio) > 1 and formats[0] not in ("txt", "json"):
            raise ConfigError(f"{formats[0]} of several files needs a folder: give one with --out.")
    return formats


def _printed(transcript: dict[str, Any], format: str, request: Request) -> str:
    """For standard output: JSON as one line per file; text with the file's name in front when there are several."""
    if format == "json":
        return json.dumps(transcript, ensure_ascii=False)
    text = render(transcript, format, request.cues).rstrip("\n")
    return f"{transcript['audio']}\t{text}" if len(request.audio) > 1 and format == "txt" else text
