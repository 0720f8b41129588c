"""Audio files by the names that tables give them: beside the table or in a usual folder, in any case and ending."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path, PurePosixPath

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.storage import is_remote, is_web, join

FOLDERS = ("wavs", "wav", "clips", "audio", "audios", "recordings", "data")
"""Folders beside a table in which its audio is looked for, in this order."""
_UPLOAD = re.compile(r"[0-9a-f]{8}-")
"""The start that Label Studio puts before the name of an uploaded file."""


ADDED, OTHER = "with its ending added", "with another ending"
CUT = "without what Label Studio put before its name"


class AudioNames:
    """Audio files below `folder` by their names in a table. Each folder is listed once. How each file was found, where
    its name alone did not say it, is counted in `repaired`. No name leads out of the folder, but for absolute
    paths of files that exist."""

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
                cut = last[9:] if _UPLOAD.match(last) else ""
                for key, how in ((last, ""), (f"{last}.", ADDED), (f"{_stem(last)}.", OTHER), (cut, CUT)):
                    if file := names.get(key):
                        places = ["without the leading folders of its path"] if tail != parts else []
                        places += [f"in the folder {inside}/"] if inside else []
                        places += [how or "in another case"] if file.rpartition("/")[2] != tail[-1] else []
                        return file, ", ".join(places) or ("" if file == "/".join(parts) else "in another case")
        return None

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


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
