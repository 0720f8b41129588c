"""From a transcript to subtitles that can be read: at most two lines of 42 characters, cut between words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LINE = 42
"""Characters per line (as in the BBC's and Netflix' guidelines)."""
LINES = 2
"""Lines per subtitle."""
LONGEST = 7.0
"""Seconds that a subtitle stays at most."""


@dataclass
class Cue:
    """One subtitle, in seconds."""

    start: float
    end: float
    text: str


def cues(transcript: dict[str, Any]) -> list[Cue]:
    """Subtitles in order of time, cut between words: at most 2 lines of 42 characters.

    With word times a subtitle begins and ends with its words, and a pause of a second or 7 seconds in all end it;
    without, a segment's time is shared among its subtitles by their number of characters. Subtitles overlap only where
    speakers do.
    """
    if words := transcript.get("words"):
        speakers = dict.fromkeys(w.get("speaker") for w in words)
        found = [cue for name in speakers for cue in _timed([w for w in words if w.get("speaker") == name])]
    else:
        found = [cue for segment in transcript["segments"] for cue in _shared(segment)]
    for cue in found:
        cue.start = round(cue.start, 3)
        cue.end = max(round(cue.end, 3), round(cue.start + 0.001, 3))  # a word may have no length; a subtitle must
    return sorted(found, key=lambda cue: (cue.start, cue.end))


def wrap(text: str) -> str:
    """One line, or two of about equal length: the break that makes the longer one shortest."""
    if len(text) <= LINE:
        return text
    breaks = [i for i, c in enumerate(text) if c == " " and i <= LINE and len(text) - i - 1 <= LINE]
    if not breaks:
        return "\n".join(_lines(text))
    at = min(breaks, key=lambda i: max(i, len(text) - i - 1))
    return f"{text[:at]}\n{text[at + 1 :]}"


def _timed(words: list[dict[str, Any]]) -> Iterator[Cue]:
    group: list[dict[str, Any]] = []
    for word in words:
        text = " ".join(w["word"] for w in [*group, word])
        if group and (
            not _fits(text) or word["start"] - group[-1]["end"] >= 1.0 or word["end"] - group[0]["start"] > LONGEST
        ):
            yield Cue(group[0]["start"], group[-1]["end"], " ".join(w["word"] for w in group))
            group = []
        group.append(word)
    if group:
        yield Cue(group[0]["start"], group[-1]["end"], " ".join(w["word"] for w in group))


def _shared(segment: dict[str, Any]) -> Iterator[Cue]:
    seconds = segment["end"] - segment["start"]
    parts = _parts(segment["text"], seconds)
    total = sum(len(part) for part in parts)
    at = 0
    for part in parts:
        start = segment["start"] + seconds * at / total
        at += len(part)
        yield Cue(start, segment["start"] + seconds * at / total, part)


def _parts(text: str, seconds: float) -> list[str]:
    """The text in subtitles of about equal length, at most `LONGEST` seconds each where words allow."""
    pieces = [piece for word in text.split() for piece in _pieces(word)]
    count = max(1, math.ceil(len(text) / (LINE * LINES)), math.ceil(seconds / LONGEST))
    goal = len(text) / count
    parts: list[str] = []
    for piece in pieces:
        longer = f"{parts[-1]} {piece}" if parts else piece
        if parts and _fits(longer) and len(parts[-1]) + len(piece) / 2 < goal:
            parts[-1] = longer
        else:
            parts.append(piece)
    return parts


def _pieces(word: str) -> list[str]:
    """A word that fits on a line as it is; text without spaces in lines."""
    return [word[i : i + LINE] for i in range(0, len(word), LINE)]


def _lines(text: str) -> list[str]:
    lines: list[str] = []
    for piece in (piece for word in text.split() for piece in _pieces(word)):
        if lines and len(lines[-1]) + 1 + len(piece) <= LINE:
            lines[-1] += " " + piece
        else:
            lines.append(piece)
    return lines


def _fits(text: str) -> bool:
    return len(_lines(text)) <= LINES
