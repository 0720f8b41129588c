"""RTTM and UEM files of NIST's Rich Transcription evaluations: who speaks when, and which parts are scored.

RTTM: `SPEAKER <recording> <channel> <start> <duration> <NA> <NA> <speaker> <NA> <NA>`, seconds; lines of other types
and comments (`;`, `#`) are passed over. UEM: `<recording> <channel> <start> <end>`. Channels are taken together, as
audio is mixed to mono when it is read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.data.atomic_write import atomic_path
from stentor.data.jsonl import MAX_PROBLEMS, open_text, raise_problems
from stentor.data.spans import merge_segments
from stentor.data.storage import as_path
from stentor.errors import DataError

OTHER_TYPES = {"SPKR-INFO", "LEXEME", "NON-LEX", "NON-SPEECH", "SEGMENT", "NOSCORE", "NO_RT_METADATA"}
OTHER_TYPES |= {"A/P", "SU", "CB", "IP", "EDIT", "FILLER"}
"""Types of RTTM lines that say nothing about speakers' times."""


@dataclass(frozen=True, slots=True)
class RttmLine:
    """One line of an RTTM (with its speaker) or of a UEM (without)."""

    recording: str
    start: float
    """Seconds."""
    end: float
    speaker: str
    where: str
    """`file:line`."""


def read_rttm(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """The segments of each recording, `{"speaker", "start", "end"}` in seconds, in order of start. Overlapping segments
    of one speaker are merged, those without a duration left out. Raises `DataError` that names up to 20 bad lines with
    how to fix them."""
    segments_of: dict[str, list[dict[str, Any]]] = {}
    for line in read_rttm_lines(path):
        if line.end == line.start:
            continue
        segment = {"speaker": line.speaker, "start": line.start, "end": line.end}
        segments_of.setdefault(line.recording, []).append(segment)
    return {recording: merge_segments(segments)[0] for recording, segments in segments_of.items()}


def format_rttm(recording: str, segments: Iterable[Mapping[str, Any]], channel: int = 0) -> list[str]:
    """The RTTM lines of one recording, in order of start, times to 1 ms. White space in names becomes `_`. RTTM counts
    channels from 1. Segments that are shorter than half a millisecond have no duration in it and are left out."""
    lines = []
    for segment in sorted(segments, key=lambda s: (s["start"], s["end"])):
        start, end = round(segment["start"], 3), round(segment["end"], 3)
        if end > start:
            speaker = _one_word(str(segment["speaker"]))
            place = f"{_one_word(recording)} {channel + 1} {start:.3f} {end - start:.3f}"
            lines.append(f"SPEAKER {place} <NA> <NA> {speaker} <NA> <NA>")
    return lines


def write_rttm(path: str | Path, recordings: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Write the segments of recordings, by id, as one RTTM file, through a temporary file that is renamed."""
    lines = [line for recording, segments in recordings.items() for line in format_rttm(recording, segments)]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def read_rttm_lines(path: str | Path) -> Iterator[RttmLine]:
    """The speaker lines of an RTTM file unchanged, those without a duration among them. Raises `DataError` at the
    end that names all bad lines."""
    return _read_lines(as_path(path), "RTTM", _rttm_line, "holds no SPEAKER lines; is it an RTTM file?")


def read_uem_lines(path: str | Path) -> Iterator[RttmLine]:
    """The lines of a UEM file unchanged. Raises `DataError` at the end that names all bad lines."""
    empty = "holds no lines; a UEM has lines of `<recording> <channel> <start> <end>`."
    return _read_lines(as_path(path), "UEM", _uem_line, empty)


def _read_lines(
    path: Path, kind: str, parse: Callable[[str, list[str]], RttmLine | str], empty: str
) -> Iterator[RttmLine]:
    """The lines as `parse(file:line, fields)` gives them, which answers a sentence for one that is wrong."""
    problems: list[str] = []
    is_empty = True
    with open_text(path) as lines:
        for number, text in enumerate(lines, 1):
            fields = text.split()
            if not fields or fields[0].startswith((";", "#")) or (kind == "RTTM" and fields[0] in OTHER_TYPES):
                continue
            where = f"{path}:{number}"
            line = parse(where, fields)
            if isinstance(line, str):
                problems.append(f"{where}: {line}")
                if len(problems) == MAX_PROBLEMS:
                    break
            else:
                is_empty = False
                yield line
    raise_problems(f"The {kind} {path}", problems)
    if is_empty:
        raise DataError(f"{path} {empty}")


def _rttm_line(where: str, fields: list[str]) -> RttmLine | str:
    """The line, or its fault and how to fix it."""
    if fields[0] != "SPEAKER":
        return f"'{fields[0][:20]}' is not a type of RTTM lines; a line begins with SPEAKER."
    if len(fields) < 8:
        return (
            f"{len(fields)} fields where an RTTM line has ten: "
            "SPEAKER <recording> <channel> <start> <duration> <NA> <NA> <speaker> <NA> <NA>."
        )
    start, duration = _seconds(fields[3]), _seconds(fields[4])
    if start is None or duration is None:
        wrong = fields[3] if start is None else fields[4]
        return f"'{wrong}' is not a number of seconds (fields 4 and 5 are start and duration)."
    if start < 0:
        return f"the segment starts at {start:g} s; recordings begin at 0, so shift the times or remove the line."
    if duration < 0:
        end = _seconds(fields[4][1:])
        hint = f" (an end at {end:g} s?)" if end is not None and end > start else ""
        return f"the duration is {duration:g} s{hint}; give the seconds from start to end, or remove the line."
    if fields[7] in ("<NA>", "NA"):
        return "the segment names no speaker (field 8)."
    return RttmLine(fields[1], start, round(start + duration, 6), fields[7], where)


def _uem_line(where: str, fields: list[str]) -> RttmLine | str:
    if len(fields) != 4:
        return f"{len(fields)} fields where a UEM line has four: <recording> <channel> <start> <end>."
    start, end = _seconds(fields[2]), _seconds(fields[3])
    if start is None or end is None:
        wrong = fields[2] if start is None else fields[3]
        return f"'{wrong}' is not a number of seconds (fields 3 and 4 are start and end)."
    if start < 0 or end <= start:
        return f"the part goes from {start:g} to {end:g} s; a UEM line has its end, not its duration, after its start."
    return RttmLine(fields[0], start, end, "", where)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _one_word(name: str) -> str:
    return "_".join(name.split()) or "_"
