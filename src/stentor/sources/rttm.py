"""`rttm`: recordings with RTTM annotations (speaker segments) and, optionally, UEM (the parts to score)."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stentor.data.cut import Cut, UnusableRecord
from stentor.data.jsonl import not_found
from stentor.data.rttm import read_rttm_lines, read_uem_lines
from stentor.data.storage import StoragePath, find_paths
from stentor.errors import DataError
from stentor.sources.annotated import Annotated, Finder, Place
from stentor.sources.base import Source

if TYPE_CHECKING:
    from stentor.data.rttm import RttmLine


class Rttm(Source):
    """One record for each recording that RTTM files name, all its channels mixed; segments carry the speakers.

    Overlapping segments of one speaker are merged, those that end up to a second after the audio are clipped, and those
    without a duration are left out; the record says how many in its keys `merged_segments`, `clipped_segments` and
    `empty_segments`.
    """

    type: Literal["rttm"] = "rttm"
    path: StoragePath
    """The RTTM file, a folder of them (subfolders included), or a pattern such as `rttm/dev-*.rttm`."""
    audio: StoragePath | None = None
    """Folder with the audio files, which are named after the recordings (`ID.wav`, `ID.anything.flac`; subfolders
    included), or a pattern with `{id}` in it: `audio/{id}/*Mix-Headset.wav`. Null: the folder of the RTTM file."""
    uem: StoragePath | None = None
    """UEM file, folder or pattern that selects the parts of the recordings to score. Recordings that it does not name
    are left out. Null: all of each recording."""
    empty: bool = False
    """Include recordings of the UEM that no RTTM names, as recordings without speech."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        lines = collect_lines(_files(self.path, "rttm"), read_rttm_lines)
        uem = collect_lines(_files(self.uem, "uem"), read_uem_lines) if self.uem is not None else None
        find = self._finder()
        names = [*lines, *(sorted(set(uem or {}) - set(lines)) if self.empty else [])]

        def record(name: str) -> Cut | UnusableRecord:
            scored, spoken = None if uem is None else uem.get(name), lines.get(name, [])
            where, problem = (*spoken, *(scored or ()))[0].where, ""
            if uem is not None and scored is None:
                problem = f"the recording '{name}' has no line in the UEM {self.uem}; add `{name} 1 0 SECONDS`."
            annotated = Annotated(name, spoken, (Place(name),), where, scored, problem, "not_in_uem")
            return annotated.cut(lambda a: (find(a.name, a.where), a.places[0]))

        with ThreadPoolExecutor(8) as pool:
            yield from pool.map(record, names)
        for name in sorted(set(uem or {}) - set(names)):
            where = (uem or {})[name][0].where
            message = f"{where}: no RTTM line names the recording '{name}'; if it has no speech, set `empty: true`."
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


def collect_lines(files: list[Path], read: Any) -> dict[str, list[RttmLine]]:
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
                        f"{line.where}: the recording '{line.recording}' is already in {home[line.recording]}; "
                        "keep one of the two."
                    )
                    break
                lines.setdefault(line.recording, []).append(line)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return lines
