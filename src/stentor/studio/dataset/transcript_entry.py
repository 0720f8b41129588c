"""Transcript entry: transcripts of every format become one `TranscriptEntry` for each."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

AUDIO = ("wav", "flac", "mp3", "ogg", "opus", "m4a", "mp4", "webm")
"""Endings that are taken off when names are compared."""


@dataclass(frozen=True)
class TranscriptEntry:
    """One transcript."""

    text: str
    file: str | None = None
    """Name of the recording without folders and ending; None where the format does not say."""
    start: float | None = None
    """Seconds; None for the whole recording."""
    end: float | None = None
    language: str | None = None
    speaker: str | None = None
    where: str = ""
    """File and line, for messages."""


ParsedEntries = Iterator[TranscriptEntry | str]
"""Entries, and a sentence in place of each that is wrong."""


def stem(name: str) -> str:
    """A recording's name without folders and without an ending of audio or transcripts."""
    last = PurePosixPath(name.replace("\\", "/")).name
    front, dot, ending = last.rpartition(".")
    known = (*AUDIO, "txt", "lab", "json", "srt", "vtt", "textgrid")
    return front if dot and front and ending.lower() in known else last


def key(name: str) -> str:
    """What names are compared by: the stem without case, in composed characters (some systems decompose them)."""
    return unicodedata.normalize("NFC", stem(name)).casefold()


def lines_of(text: str) -> list[str]:
    """Lines as editors count them; other separators of Unicode may stand inside of a text."""
    return re.split(r"\r\n|\r|\n", text)
