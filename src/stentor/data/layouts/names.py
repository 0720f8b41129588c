"""Audio files by the names that tables give them: beside the table or in a usual folder, in any case and ending."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.storage import is_remote, is_web, join
from stentor.text.recording_names import PUT_BEFORE, RecordingNames
from stentor.text.transcript_formats import stem

FOLDERS = ("wavs", "wav", "clips", "audio", "audios", "recordings", "data")
"""Folders beside a table in which its audio is looked for, in this order."""
ADDED, OTHER = "with its ending added", "with another ending"
CUT = "without what Label Studio put before its name"


class AudioNames:
    """Audio files below `folder` by their names in a table. Each folder is listed once. How each file was found, where
    its name alone did not say it, is counted in `repaired`. No name leads out of the folder, but for absolute
    paths of files that exist."""

    sample = 20
    """Rows by which a layout is recognised."""
    given: tuple[str, ...] = ()
    """Names that alone count; there may be rows of many others."""

    def __init__(self, folder: Path, repaired: Counter[str]):
        self.folder, self.repaired = folder, repaired
        self._listed: dict[str, dict[str, str]] = {}

    def __call__(self, name: str) -> str:
        """The path of a file, relative to the folder; the name itself where there is no such file."""
        found, rule = self.find(name) or (name, "")
        if rule:
            self.repaired[f"the audio file was found {rule}"] += 1
        return found

    def find(self, name: str) -> tuple[str, str] | None:
        """A path, and how it was found ("": as it is written). None: there is no such file."""
        parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part != "/" and part[1:] != ":"]
        absolute = os.path.isabs(name) or ".." in parts
        if is_web(self.folder) or is_remote(name) or (absolute and os.path.exists(join(self.folder, name))):
            return name, ""
        tails = [parts[i:] for i in range(len(parts))] if ".." not in parts else []
        for tail in tails:
            for inside in ("", *FOLDERS):
                names, last = self._names(PurePosixPath(inside, *tail[:-1]).as_posix()), tail[-1].lower()
                cut = PUT_BEFORE.sub("", last, count=1)
                for key, how in ((last, ""), (f"{last}.", ADDED), (f"{_stem(last)}.", OTHER), (cut, CUT)):
                    if file := names.get(key):
                        places = ["without the leading folders of its path"] if tail != parts else []
                        places += [f"in the folder {inside}/"] if inside else []
                        places += [how or "in another case"] if file.rpartition("/")[2] != tail[-1] else []
                        return file, ", ".join(places) or ("" if file == "/".join(parts) else "in another case")
        return None

    def has(self, name: str) -> bool:
        """Whether what a cell holds is the name of an audio file that is there."""
        found = self.find(name) if " " not in name else None
        return found is not None and found[0].lower().endswith(AUDIO_SUFFIXES)

    def _names(self, home: str) -> dict[str, str]:
        """Files of a folder by their names in lower case, and by "stem." (the first that has an ending of audio)."""
        if home not in self._listed:
            folder, path = self.folder, PurePosixPath()
            for part in PurePosixPath(home).parts:  # of a folder in another case as well
                inside = _entries(folder)
                part = part if part in inside else next((n for n in inside if n.lower() == part.lower()), part)
                folder, path = folder / part, path / part
            files = {name.lower(): (path / name).as_posix() for name in _entries(folder)}
            stems = {f"{n.rpartition('.')[0]}.": f for n, f in reversed(files.items()) if n.endswith(AUDIO_SUFFIXES)}
            self._listed[home] = {**stems, **files}
        return self._listed[home]


class GivenNames(AudioNames):
    """Recordings that are known by name alone, in the place of a folder. Names stay as they are written."""

    sample = 20_000

    def __init__(self, names: Sequence[str]):
        super().__init__(Path(), Counter())
        self.given, self._names_of = tuple(names), RecordingNames(names)
        self._ends = {end for name in names for end in _ends(name)}
        self.lengths = sorted({len(form.split()) for n in names for form in (n, stem(n))}, reverse=True)
        """Numbers of words that names have."""

    def __call__(self, name: str) -> str:
        return name

    def has(self, name: str) -> bool:
        near = len(name) < 256 and (not self._ends.isdisjoint(_ends(name)) or not {*"%?#"}.isdisjoint(name))
        return near and bool(self._names_of.find(name).places)


def _ends(name: str) -> set[str]:
    """The last characters of a name with its ending and without, which most texts do not share with a name."""
    last = re.split(r"[/\\]", name.strip())[-1]
    plain = re.sub(r"[\s_-]+", "_", unicodedata.normalize("NFC", last)).casefold()
    return {plain[-2:], plain.rpartition(".")[0][-2:]}


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
