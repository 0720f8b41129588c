"""`stentor diarize`: who speaks when in audio files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from stentor.errors import ConfigError
from stentor.inference.diarize import diarize, with_speakers

FORMATS = ("rttm", "json")


@dataclass
class Request:
    """The options of `stentor diarize`."""

    model: str
    audio: list[str]
    format: str = "rttm"
    out: str | None = None
    speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None
    device: str = "auto"


def diarize_files(request: Request) -> None:
    """Diarize and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    formats = _formats(request)
    from stentor.commands.file_progress import Files
    from stentor.inference.load import load
    from stentor.inference.recording import FileRecording

    model = load(request.model, request.device)
    task = with_speakers(model.for_diarization(), request.speakers, request.min_speakers, request.max_speakers)
    files = Files(request.audio, request.out, "diarizing")
    recordings = [FileRecording(path, model.bundle.processor.sample_rate) for path in request.audio]
    with files:
        for found in diarize(model.bundle, task, recordings, request.model, files.left_out, files.window):
            name = next(files.names)
            if files.folder is None:
                text = found.rttm(name) if formats[0] == "rttm" else json.dumps(found, ensure_ascii=False) + "\n"
                if text:
                    files.print(text.rstrip("\n"))
            else:
                for format in formats:
                    text = found.rttm(name) if format == "rttm" else json.dumps(found, ensure_ascii=False, indent=2)
                    (files.folder / f"{name}.{format}").write_text(text, encoding="utf-8")
            files.file()
    files.check("diarized")


def _formats(request: Request) -> list[str]:
    formats = list(dict.fromkeys(f.strip().lower() for f in request.format.split(",") if f.strip()))
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise ConfigError(f"Unknown --format {', '.join(unknown) or '(empty)'}; known: {', '.join(FORMATS)}.")
    if len(formats) > 1 and request.out is None:
        raise ConfigError("Several formats cannot share standard output: give a folder with --out.")
    return formats
