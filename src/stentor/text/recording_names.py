"""Recordings by the names that transcripts give them: no file is looked for, only names are compared."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from stentor.text.transcript_formats import stem

_DEPTH = 8
"""Folders of a path that are compared."""
PUT_BEFORE = re.compile(r"^[0-9a-f]{3,8}-(?=.)")
"""Prefix that Label Studio gives to uploaded files."""
_LANGUAGE = re.compile(r"\.[a-z]{2,3}(-[A-Za-z]+)?(?=\.(srt|vtt)$)")
"""Language in the name of subtitles."""
_GIVEN = re.compile(r".*[?&](?:d|file|path)=|[?#].*")
"""Parts that an address (Label Studio's `/data/local-files/?d=a.wav`) has around the name of a file."""


class Found(NamedTuple):
    """Recordings that a name may mean."""

    places: tuple[int, ...] = ()
    """Their places among the names; several share what was written."""
    guess: bool = False
    """It is not the same name: it differs in case, in spaces against `_` and `-`, in the form of its characters, or by
    what Label Studio puts before it, or by the language of subtitles."""


class RecordingNames:
    """The names of recordings, as they were sent, with the folders that they have.

    A name is found by as much of the end of its path, or of the path that stands in an address, as is the same; with
    its ending, else without, else by its form without case, spaces and `_`.
    """

    def __init__(self, names: Sequence[str]):
        self._whole: dict[str, set[int]] = {}
        self._ends: list[dict[str, set[int]]] = [{}, {}, {}]
        for place, name in enumerate(names):
            path = _plain(name)
            self._whole.setdefault(path, set()).add(place)
            for ends, form in zip(self._ends, _forms(path), strict=True):
                for tail in _tails(form):
                    ends.setdefault(tail, set()).add(place)

    def find(self, written: str) -> Found:
        """The recordings that a name means; no place where there is none."""
        path = _plain(written)
        if path in self._whole:
            return Found(tuple(sorted(self._whole[path])))
        given = _plain(_GIVEN.sub("", unquote(path)))
        bare = PUT_BEFORE.sub("", given.rpartition("/")[2], count=1)
        same, like = (path, given), (path, given, bare, _LANGUAGE.sub("", given))
        for kind, paths in ((0, same), (1, same), (2, like)):
            for form in (list(_forms(p))[kind] for p in paths if p):
                for tail in _tails(form):
                    if tail in self._ends[kind]:
                        return Found(tuple(sorted(self._ends[kind][tail])), kind == 2)
        return Found()


def _plain(name: str) -> str:
    return name.strip().replace("\\", "/").removeprefix("file://").strip("/")


def _forms(path: str) -> Iterator[str]:
    """As it is, without its ending, and without case, spaces and the form of its characters."""
    folders, mark, last = path.rpartition("/")
    bare = folders + mark + stem(last)
    yield path
    yield bare
    yield re.sub(r"[\s_-]+", "_", unicodedata.normalize("NFC", bare)).casefold()


def _tails(path: str) -> Iterator[str]:
    """The ends of a path, the longest first."""
    parts = path.split("/")[-_DEPTH:]
    return ("/".join(parts[i:]) for i in range(len(parts)))
