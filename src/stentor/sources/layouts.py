"""Corpora for diarization that lhotse has no recipe for, or only for another layout: where their annotation and audio
lie, and how names and times of the two belong together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stentor.data.cut import Cut, UnusableRecord, set_silent
from stentor.data.jsonl import not_found
from stentor.data.rttm import RttmLine, read_rttm_lines, read_uem_lines
from stentor.errors import AudioError, DataError
from stentor.sources.annotated import Annotated, Finder, Place
from stentor.sources.rttm import collect_lines

Parts = dict[str, Callable[[], Iterator[Cut | UnusableRecord]]]


@dataclass(frozen=True)
class Layout:
    """Layout of a corpus, and a reader of it: `layout(folder)` gives the parts by name."""

    splits: Mapping[str, str]
    """Pattern of the annotation files of each split, below the folder."""
    read: Callable[[Sequence[Path]], Iterator[Annotated]]
    otherwise: str | None = "**/*.rttm"
    """Pattern of the annotation files that are the part `all` where no split has any."""
    prefer: tuple[str, ...] = ()
    """Folders in which audio is taken from first when several files have the name of a recording."""
    own_folders: bool = False
    """Whether each split's audio lies in folders of its own, so that files in them without annotation are counted."""

    def __call__(self, folder: Path, annotations: str | None = None, empty: bool = False) -> Parts:
        """The parts that are there. `annotations`: folder of the annotation, where it is not below `folder`. Raises
        `DataError` when there is no annotation."""
        home = folder if annotations is None else Path(annotations).expanduser()
        if not home.is_dir():
            raise not_found(home)
        files = {split: sorted(home.glob(pattern)) for split, pattern in self.splits.items()}
        if self.otherwise and not any(files.values()):
            files["all"] = sorted(home.glob(self.otherwise))
        parts: Parts = {split: partial(self._records, f, folder, empty) for split, f in files.items() if f}
        if not parts:
            looked = ", ".join(self.splits.values())
            raise DataError(f"there is no annotation in {home} (looked for {looked})")
        return parts

    def _records(self, files: Sequence[Path], folder: Path, empty: bool) -> Iterator[Cut | UnusableRecord]:
        find = Finder(folder, claims_all=self.own_folders)
        names: set[str] = set()
        for recording in self.read(files):
            names.add(recording.name)
            if not recording.problem and not recording.lines and not empty:
                silent = f"no one speaks in '{recording.name}'; to keep such recordings, set `empty: true`."
                recording = replace(recording, problem=silent)
            cut = recording.cut(partial(self._audio, find))
            yield cut if isinstance(cut, UnusableRecord) else set_silent(cut)
        folders = {file.parent for name in names for file in find.named.get(name, ())}
        for name, file in find.files_of_others(names) if self.own_folders else ():
            if file.parent in folders:
                yield UnusableRecord(name, "no_segments", f"{file}: no annotation names this recording.")

    def _audio(self, find: Finder, recording: Annotated) -> tuple[Path, Place]:
        """The file of a recording. Raises `AudioError` (`missing`, or `ambiguous` when files differ in size alone)."""
        from stentor.audio.io import probe
        from stentor.audio.suffixes import AUDIO_SUFFIXES

        for place in recording.places:
            files = find.named.get(place.stem, [])
            order = {f: [*(p in f.parts for p in self.prefer), -AUDIO_SUFFIXES.index(f.suffix.lower())] for f in files}
            file = max(files, key=lambda f: order[f], default=None)
            equal = [f for f in files if file and order[f] == order[file]]
            if len({f.stat().st_size for f in equal}) > 1:
                message = f"{recording.where}: the audio of '{recording.name}' could be {' or '.join(map(str, equal))}"
                raise AudioError(f"{message}; move the others out of the folder.", "ambiguous")
            if file is not None and (place.length is None or abs(probe(file).duration - place.length) <= 0.1):
                return file, place
        stems = " or ".join(dict.fromkeys(place.stem for place in recording.places))
        message = f"{recording.where}: there is no audio of '{recording.name}' in {find.location}, named {stems}.*"
        raise AudioError(f"{message} (any audio or video ending, any subfolder).", "missing")


def rttm_files(files: Sequence[Path], uem: str = "") -> Iterator[Annotated]:
    """Recordings of RTTM files under their names. `uem`: where the UEM of each file lies, from the file."""
    lines = collect_lines(list(files), read_rttm_lines)
    uems = sorted({path for f in files if (path := f.parent / uem.format(stem=f.stem)).is_file()})
    scored = collect_lines(uems, read_uem_lines)
    for name, spoken in lines.items():
        yield Annotated(name, spoken, (Place(name),), spoken[0].where, scored.get(name))


CLIP = re.compile(r"(?P<video>.+)_c_(?P<number>\d+)$")


def ava_avd(files: Sequence[Path]) -> Iterator[Annotated]:
    """Clips of AVA-AVD by the lists of its splits, or its RTTM files. Each is five minutes of a video, from 900 s, and
    its RTTM has the times of the video. A clip's own file begins with its first segment, as AVA-AVD's script cuts it
    (`offsets.txt` has those times), a second before (as TS-DIA's does) or on the grid; otherwise it is taken out of the
    video."""
    for file in files:
        home = file.parent.parent
        table = home / "split" / "offsets.txt"
        rows = [row.split() for row in table.read_text("utf-8").splitlines()] if table.exists() else []
        offsets = {row[0].rstrip("."): float(row[1]) for row in rows if len(row) == 2}
        listed = [file.stem] if file.suffix == ".rttm" else file.read_text("utf-8").split()
        for number, name in enumerate(listed, 1):
            where, rttm = f"{file}:{number}", home / "rttms" / f"{name}.rttm"
            clip = CLIP.fullmatch(name)
            if clip is None or not rttm.exists():
                problem = f"{rttm} does not exist." if clip else f"'{name}' is not the name of a clip, VIDEO_c_01."
                yield Annotated(name, (), (), where, problem=problem)
                continue
            lines = list(read_rttm_lines(rttm))
            first, last = min(line.start for line in lines), max(line.end for line in lines)
            grid = 900.0 + 300.0 * (int(clip["number"]) - 1)
            padded = min(grid, first) - 1.0
            places = [Place(name, first, length=last - first)]
            places += [Place(name, padded, length=max(grid + 300.0, last) + 1.0 - padded)]
            places += [Place(name, grid if first >= grid - 1.0 else 0.0)]
            places = [Place(name, offsets[name])] if name in offsets else places
            yield Annotated(name, lines, (*places, Place(clip["video"], span=(first, last))), lines[0].where)


def ego4d(files: Sequence[Path]) -> Iterator[Annotated]:
    """Clips of Ego4D's audio-visual annotation: a file for each clip, or its part of the whole video."""
    for file in files[-1:]:  # of v1 and v2 the latter
        try:
            content = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise DataError(f"{file} is not valid JSON: {error}") from None
        entries = _listed(content)
        seen: set[str] = set()
        for entry in entries:
            name = str(entry.get("clip_uid") or entry.get("video_uid"))
            if name in seen:
                raise DataError(f"{file}: the clip '{name}' is there twice; keep one of the two.")
            seen.add(name)
            where = f"{file}: clip {name}"
            try:
                yield _clip(entry, name, where)
            except (KeyError, TypeError, ValueError) as error:
                kind = f"{type(error).__name__}: {error}"
                raise DataError(f"{where}: not as av_*.json of Ego4D has it ({kind}).") from None


def _listed(content: Any) -> list[dict[str, Any]]:
    """The clips of an av_*.json, or the entries with `voice_activity` of one that others made."""
    groups = list(content.values()) if isinstance(content, dict) else [content]
    entries = [entry for group in groups if isinstance(group, list) for entry in group if isinstance(entry, dict)]
    return [clip for entry in entries for clip in entry.get("clips", [entry])]


def _clip(entry: dict[str, Any], name: str, where: str) -> Annotated:
    if not entry.get("valid", True):
        return Annotated(name, (), (), where, problem="the annotation says that this clip is not valid.")
    people = [*(entry.get("persons") or ()), *([entry["camera_wearer"]] if entry.get("camera_wearer") else ())]
    voices = {(str(p["person_id"]), s["start_time"], s["end_time"]) for p in people for s in p["voice_segments"] or ()}
    voices |= {(str(s["speaker_id"]), s["start_time"], s["end_time"]) for s in entry.get("voice_activity") or ()}
    lines = [RttmLine(name, float(a), float(b), who, where) for who, a, b in sorted(voices, key=lambda v: v[1:])]
    places = [Place(stem) for key in ("clip_uid", "source_clip_uid") if (stem := entry.get(key))]
    video, start, end = (entry.get(key) for key in ("video_uid", "video_start_sec", "video_end_sec"))
    if video and start is not None and end is not None:
        places.append(Place(video, -start, (0.0, end - start)))
    elif video:
        places.append(Place(video))
    return Annotated(name, lines, tuple(places), where)


MSDWILD = Layout({s: f"**/{s.replace('_', '[._-]')}.rttm" for s in ("few_train", "few_val", "many_val")}, rttm_files)
VOXCONVERSE = Layout({s: f"**/{s}/*.rttm" for s in ("dev", "test")}, rttm_files, own_folders=True)
AVA_AVD = Layout({s: f"**/split/{s}.list" for s in ("train", "val", "test")}, ava_avd, prefer=("waves",))
EGO4D = Layout({s: f"**/av_{s}.json" for s in ("train", "val", "test")}, ego4d, otherwise=None)
CALLHOME = Layout({"all": "**/fullref.rttm"}, rttm_files)


def callhome(folder: Path, rttm_dir: str | None = None, annotations: str | None = None, empty: bool = False) -> Parts:
    """CALLHOME of the NIST 2000 evaluation; `rttm_dir` (as in lhotse's recipe) or `annotations`: its key's folder."""
    return CALLHOME(folder, rttm_dir or annotations, empty)


DIHARD2 = Layout(
    {s: f"**/single_channel/rttm/DH_{s.upper()}_*.rttm" for s in ("dev", "eval")},
    partial(rttm_files, uem="../uem/{stem}.uem"),
    own_folders=True,
)
