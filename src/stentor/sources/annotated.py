"""Recordings with speaker segments from an annotation: finding their audio, and the cut of each."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.embedded_audio import audio_file
from stentor.data.jsonl import not_found
from stentor.data.spans import clip_spans, merge_segments
from stentor.data.storage import find_paths
from stentor.errors import AudioError, DataError

if TYPE_CHECKING:
    from stentor.data.rttm import RttmLine

TOLERANCE = 1.0
"""Seconds that a segment may go beyond the end of the audio, and is clipped: times are rounded, and files lose their
last frames."""
ROUNDING = 0.1
"""Seconds beyond the end that are not worth a word."""


@dataclass(frozen=True)
class Place:
    """Where the audio of a recording may be."""

    stem: str
    """Name of the file without its suffix."""
    origin: float = 0.0
    """Time of the annotation at which the file begins, in seconds."""
    span: tuple[float, float] | None = None
    """Part of the annotation's time that is the recording. None: the whole file."""
    length: float | None = None
    """Seconds of the file, for files that only their length tells apart. None: any."""


@dataclass(frozen=True)
class Annotated:
    """A recording by its annotation."""

    name: str
    lines: Sequence[RttmLine]
    places: tuple[Place, ...]
    """Where its audio may be, the best first."""
    where: str
    scored: Sequence[RttmLine] | None = None
    """Its lines in the UEM, where there is one."""
    problem: str = ""
    """Reason why its annotation cannot be used."""
    reason: str = "no_segments"
    """Short word for the problem."""

    def cut(self, find: Callable[[Annotated], tuple[Path, Place]]) -> Cut | UnusableRecord:
        """The cut of the recording with the segments of its lines. `find` gives its file, or raises `AudioError`."""
        if self.problem:
            return UnusableRecord(self.name, self.reason, f"{self.where}: {self.problem}")
        try:
            return self._cut(*find(self))
        except AudioError as error:
            return UnusableRecord(self.name, error.reason, str(error))

    def _cut(self, file: Path, place: Place) -> Cut | UnusableRecord:
        from stentor.audio.io import probe

        name, where = self.name, self.where
        with audio_file(file) as local:
            length = probe(local).duration
        begin, end = place.span or (place.origin, place.origin + length)
        seconds = min(end - begin, length - (begin - place.origin))
        if seconds <= 0:
            problem = f"ends before {begin - place.origin:g} s" if length else "has no samples"
            return UnusableRecord(name, "empty", f"{where}: {file}, the audio of '{name}', {problem}.")
        keys = labels_within(name, self.lines, self.scored, begin, seconds, str(file))
        if isinstance(keys, UnusableRecord):
            return keys
        record: dict[str, Any] = {"id": name, "audio_path": str(file), "duration": seconds, **keys}
        if begin != place.origin:
            record["start"] = round(begin - place.origin, 6)
        return cut_from_record(record, Path(), where)


def labels_within(
    name: str, lines: Sequence[RttmLine], scored: Sequence[RttmLine] | None, begin: float, seconds: float, audio: str
) -> dict[str, Any] | UnusableRecord:
    """The segments of a recording that has so many seconds from `begin` on. Lines without a duration are left out,
    overlapping ones of a speaker merged, those that end up to `TOLERANCE` after the audio clipped, all counted in keys
    of the record; a line further beyond makes it `truncated`."""
    for line in (*lines, *(scored or ())):
        late = line.start - begin >= seconds + TOLERANCE
        if late or (line.speaker and line.end - begin > seconds + TOLERANCE):
            what = f"segment of {line.speaker}" if line.speaker else "scored part"
            return UnusableRecord(
                name,
                "truncated",
                f"{line.where}: a {what} goes from {line.start:g} to {line.end:g} s, but {audio} ends at "
                f"{begin + seconds:.2f} s; the file is cut short, or the times belong to another version of it.",
            )
    timed = [line for line in lines if line.end > line.start]
    segments, merged = merge_segments(
        {
            "speaker": line.speaker,
            "start": max(0.0, round(line.start - begin, 6)),
            "end": min(round(line.end - begin, 6), seconds),
        }
        for line in timed
        if line.end > begin and line.start - begin < seconds
    )
    counts = {
        "merged_segments": merged,
        "clipped_segments": sum(line.end - begin > seconds + ROUNDING for line in timed),
        "empty_segments": len(lines) - len(timed),
    }
    keys: dict[str, Any] = {"segments": segments, **{key: count for key, count in counts.items() if count}}
    if scored is not None:
        keys["uem"] = clip_spans(((line.start - begin, line.end - begin) for line in scored), seconds)
    return keys


class Finder:
    """Finds the audio of a recording by its id, in a folder (listed once) or by a pattern."""

    def __init__(self, location: Path, claims_all: bool):
        self.location = location
        self.pattern = "{id}" in str(location)
        self.claims_all = claims_all and not self.pattern
        """Whether every audio file of the folder should have an annotation."""
        self.named: dict[str, list[Path]] = defaultdict(list)
        """Files by each beginning of their name that ends before a dot."""
        if self.pattern:
            return
        if not location.is_dir():
            if location.exists():
                expected = "a folder or a pattern with {id} in it"
                raise DataError(f"`audio` of an rttm source is {expected}, got {location}.")
            raise not_found(location)
        from stentor.audio.suffixes import is_audio

        for file in sorted(location.rglob("*")):
            if is_audio(file.relative_to(location)):
                stem = file.stem
                self.named[stem].append(file)
                while "." in stem:
                    stem = stem.rpartition(".")[0]
                    self.named[stem].append(file)

    def __call__(self, name: str, where: str) -> Path:
        """The file. Raises `AudioError` (`missing`) that says where it was looked for, `DataError` when several fit."""
        if self.pattern:
            files = find_paths(str(self.location).replace("{id}", glob.escape(name)))
        else:
            fits = self.named.get(name, [])
            files = [file for file in fits if file.stem == name] or fits
        if not files:
            raise AudioError(
                f"{where}: there is no audio of the recording '{name}' in {self.location}"
                + ("." if self.pattern else " (a file of that name and any audio ending); give the folder as `audio`."),
                "missing",
            )
        if len(files) > 1:
            raise DataError(
                f"{where}: the audio of the recording '{name}' could be {' or '.join(map(str, files[:3]))}; say which "
                f"with a pattern such as `audio: {'folder' if self.pattern else self.location}/{{id}}.wav`."
            )
        return files[0]

    def files_of_others(self, names: set[str]) -> Iterator[tuple[str, Path]]:
        """(stem, file) of audio that belongs to none of these recordings."""
        ours = {file for name in names for file in self.named.get(name, [])}
        for file in sorted({file for files in self.named.values() for file in files} - ours):
            yield file.stem, file
