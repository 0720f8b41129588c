"""`rttm`: recordings with RTTM annotations (who speaks when) and, optionally, UEM (which parts are scored)."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.embedded_audio import audio_file
from stentor.data.jsonl import not_found
from stentor.data.rttm import read_rttm_lines, read_uem_lines
from stentor.data.spans import clip_spans, merge_segments
from stentor.data.storage import StoragePath, find_paths
from stentor.errors import AudioError, DataError
from stentor.sources.base import Source

if TYPE_CHECKING:
    from stentor.data.rttm import RttmLine

TOLERANCE = 1.0
"""Seconds that a segment may go beyond the end of the audio, and is clipped: times are rounded, and files lose their
last frames."""
ROUNDING = 0.1
"""Seconds beyond the end that are not worth a word."""


class Rttm(Source):
    """One record for each recording that RTTM files name, all its channels mixed; segments carry the speakers.

    Overlapping segments of one speaker are merged, those that end up to a second after the audio are clipped, and those
    without a duration are left out; the record says how many in its keys `merged_segments`, `clipped_segments` and
    `empty_segments`.
    """

    type: Literal["rttm"] = "rttm"
    path: StoragePath
    """The RTTM file, a folder of them (searched in depth), or a pattern such as `rttm/dev-*.rttm`."""
    audio: StoragePath | None = None
    """Folder with the audio, searched in depth for files named after the recordings (`ID.wav`, `ID.anything.flac`), or
    a pattern with `{id}` in it: `audio/{id}/*Mix-Headset.wav`. Null: the folder of the RTTM file."""
    uem: StoragePath | None = None
    """UEM file, folder or pattern: which parts of the recordings are scored. Recordings it does not name are left
    out. Null: all of each recording."""
    empty: bool = False
    """Also take the recordings of the UEM that no RTTM names: they hold no speech."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        lines = _collect(_files(self.path, "rttm"), read_rttm_lines)
        uem = _collect(_files(self.uem, "uem"), read_uem_lines) if self.uem is not None else None
        find = self._finder()
        names = [*lines, *(sorted(set(uem or {}) - set(lines)) if self.empty else [])]
        with ThreadPoolExecutor(8) as pool:
            yield from pool.map(lambda name: self._record(name, lines, uem, find), names)
        for name in sorted(set(uem or {}) - set(names)):
            where = (uem or {})[name][0].where
            message = f"{where}: no RTTM line names the recording '{name}'; if it holds no speech, set `empty: true`."
            yield UnusableRecord(name, "no_segments", message)
        if find.claims_all:
            for name, file in find.files_of_others(set(names)):
                message = f"{file}: no RTTM line names this recording."
                yield UnusableRecord(name, "no_segments", message)

    def _finder(self) -> Finder:
        if self.audio is None:
            home = self.path.expanduser()
            return Finder(home if home.is_dir() else home.parent, claims_all=home.is_dir())
        return Finder(self.audio.expanduser(), claims_all=True)

    def _record(
        self, name: str, lines: dict[str, list[RttmLine]], uem: dict[str, list[RttmLine]] | None, find: Finder
    ) -> Cut | UnusableRecord:
        from stentor.audio.io import probe

        rttm_lines = lines.get(name, [])
        where = (rttm_lines or (uem or {})[name])[0].where
        if uem is not None and name not in uem:
            message = f"{where}: the recording '{name}' has no line in the UEM {self.uem}; add `{name} 1 0 SECONDS`."
            return UnusableRecord(name, "not_in_uem", message)
        try:
            file = find(name, where)
            with audio_file(file) as local:
                seconds = probe(local).duration
        except AudioError as error:
            return UnusableRecord(name, error.reason, str(error))
        if not seconds:
            return UnusableRecord(name, "empty", f"{where}: {file}, the audio of '{name}', has no samples.")
        for line in (*rttm_lines, *(uem or {}).get(name, [])):
            if line.start >= seconds + TOLERANCE or (line.speaker and line.end > seconds + TOLERANCE):
                what = f"segment of {line.speaker}" if line.speaker else "scored part"
                return UnusableRecord(
                    name,
                    "truncated",
                    f"{line.where}: a {what} goes from {line.start:g} to {line.end:g} s, but {file} ends at "
                    f"{seconds:.2f} s; the file is cut short, or the times belong to another version of it.",
                )
        timed = [line for line in rttm_lines if line.end > line.start]
        segments, merged = merge_segments(
            {"speaker": line.speaker, "start": line.start, "end": min(line.end, seconds)}
            for line in timed
            if line.start < seconds
        )
        record: dict[str, Any] = {"id": name, "audio_path": str(file), "duration": seconds, "segments": segments}
        counts = {
            "merged_segments": merged,
            "clipped_segments": sum(line.end > seconds + ROUNDING for line in timed),
            "empty_segments": len(rttm_lines) - len(timed),
        }
        record |= {key: count for key, count in counts.items() if count}
        if uem is not None:
            record["uem"] = clip_spans(((line.start, line.end) for line in uem[name]), seconds)
        return cut_from_record(record, Path(), where)


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
        from stentor.audio.io import AUDIO_SUFFIXES

        for file in sorted(location.rglob("*")):
            if file.suffix.lower() in AUDIO_SUFFIXES:
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


def _files(path: Path, kind: str) -> list[Path]:
    """The files that a path, a folder or a pattern means. Raises `DataError` when there is none."""
    path = path.expanduser()
    if path.is_dir():
        files = sorted(path.rglob(f"*.{kind}"))
        if not files:
            raise DataError(f"{path} holds no *.{kind} files.")
        return files
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        if files := find_paths(str(path)):
            return files
        raise DataError(f"No file fits {path}.")
    raise not_found(path)


def _collect(files: list[Path], read: Any) -> dict[str, list[RttmLine]]:
    """The lines of several files by recording. Raises one `DataError` for all of them, and one for a recording that
    two files annotate."""
    lines: dict[str, list[RttmLine]] = {}
    home: dict[str, Path] = {}
    problems: list[str] = []
    for file in files:
        try:
            for line in read(file):
                if home.setdefault(line.recording, file) != file:
                    problems.append(
                        f"{line.where}: the recording '{line.recording}' stands in {home[line.recording]} already; "
                        "keep one of the two."
                    )
                    break
                lines.setdefault(line.recording, []).append(line)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return lines
