"""`stentor align` behind its options: one recording, its text, the time of every word."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import Aligned, Clip
from stentor.inference.formats import SUFFIXES, WRITERS


@dataclass
class Request:
    """The options of the command."""

    model: str
    audio: str
    text: str
    """The text, or the path of a file that holds it."""
    format: str = "json"
    out: str | None = None
    engine: str | None = None
    language: str | None = None
    device: str = "auto"
    lag: float | None = None


def align_file(request: Request) -> None:
    """Print word times, or write them to a folder. A text that does not seem to be what is said is aligned with a
    warning on standard error.

    Raises ConfigError for wrong options, AudioError, and DataError for a text that has no times in this audio.
    """
    formats = list(dict.fromkeys(f.strip().lower() for f in request.format.split(",") if f.strip()))
    unknown = [f for f in formats if f not in WRITERS]
    if unknown or not formats:
        raise ConfigError(f"Unknown --format {', '.join(unknown) or '(empty)'}; known: {', '.join(WRITERS)}.")
    if len(formats) > 1 and request.out is None:
        raise ConfigError("Several formats cannot share standard output: give a folder with --out.")
    text = given_text(request.text)
    from stentor.inference.align import clip_of, open_aligner
    from stentor.inference.recording import FileRecording

    aligner = open_aligner(request.model, request.engine, request.device, request.lag)
    clip = clip_of(FileRecording(request.audio, aligner.rate), text, request.language)
    (found,) = aligner.align([clip])
    if problem := trouble(clip, found):
        if not found.words:
            raise DataError(problem)
        print(f"stentor: warning: {problem}", file=sys.stderr)
    answer = transcript(clip, found, request.model)
    if request.out is None:
        sys.stdout.write(WRITERS[formats[0]](answer))
        return
    folder = Path(request.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder --out {folder} cannot be made: {error.strerror}.") from error
    for format in formats:
        path = folder / f"{Path(request.audio).stem}.{SUFFIXES[format]}"
        path.write_text(WRITERS[format](answer), encoding="utf-8")


def given_text(text: str) -> str:
    """The text itself, or what is in the file that it names, as one line. Raises ConfigError when that is empty."""
    source = "The text"
    try:
        named = Path(text).is_file()
    except OSError:  # longer than a path may be
        named = False
    if named:
        source = f"The file {text}"
        try:
            text = Path(text).read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source} is not UTF-8 text (byte {error.start}): give a text file.") from None
    if not text.strip():
        raise ConfigError(f"{source} is empty: give the words that are spoken.")
    return " ".join(text.split())


def trouble(clip: Clip, found: Aligned) -> str | None:
    """What is wrong with word times, in a sentence; None when nothing is."""
    match found.reason:
        case "no_words":
            return f"Nothing in the text {clip.text!r} is spoken: it has no letter and no digit."
        case "too_long_text":
            return (
                f"{clip.id}: {clip.seconds:.2f} s of audio cannot hold a text of {len(clip.text):,} characters: text "
                "and audio do not belong together."
            )
        case "mismatch":
            heard = f" The model hears: {found.heard[:200]!r}." if found.heard else ""
            return f"{clip.id}: the text does not seem to be what is said, so that its times mean little.{heard}"
    return None


def transcript(clip: Clip, found: Aligned, model: str) -> dict[str, Any]:
    """The transcript dict of the contract, with `words`."""
    words = [word.as_dict() for word in found.words]
    segment = {"start": words[0]["start"], "end": words[-1]["end"], "text": clip.text}
    return {
        "audio": clip.recording.name,
        "duration": round(clip.seconds, 3),
        "language": clip.language,
        "text": clip.text,
        "words": words,
        "segments": [segment],
        "model": model,
    }
