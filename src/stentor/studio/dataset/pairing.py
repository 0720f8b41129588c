"""Transcripts are given to their recordings: by name where they have one, and then never in order."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stentor.errors import DataError
from stentor.studio.dataset.unpacking import path_of
from stentor.studio.files import Record, name_from
from stentor.studio.uploaded_audio import shown
from stentor.text.recording_names import Found, RecordingNames
from stentor.text.transcript_formats import TranscriptEntry, stem


class Pairs(NamedTuple):
    """Transcripts by the recordings that they belong to."""

    of_uploads: list[list[TranscriptEntry]]
    """Those of each recording of the upload."""
    of_records: list[tuple[TranscriptEntry, Record]]
    """Those of recordings that the data set has."""
    left: list[tuple[TranscriptEntry, str]]
    """Those of no recording, and why."""
    guessed: frozenset[str]
    """Names, as they were written, that are not quite those of their recordings."""


def pair(names: Sequence[str], records: Sequence[Record], entries: Sequence[TranscriptEntry]) -> Pairs:
    """Give each transcript to a recording of the upload (`names`), or else to one of `records`, which have a `source`.

    Raises DataError for a name that several recordings of the upload share, and where transcripts without names are not
    as many as recordings without text.
    """
    written = list(dict.fromkeys(e.file for e in entries if e.file is not None))
    index, sources = RecordingNames(names), [str(r["source"]) for r in records]
    found = {name: index.find(name) for name in written}
    if several := [shown(name) for name, f in found.items() if len(f.places) > 1 and not f.guess]:
        raise DataError(
            f"Several recordings are named {', '.join(several[:5])}: rename them, or choose their folder, for each to "
            "get its text."
        )
    found = _unique(names, found)
    stored = RecordingNames(sources)
    late = _unique(sources, {name: _of_source(stored, name) for name, f in found.items() if not f.places})
    named = [e for e in entries if e.file is not None]
    # Subtitles of the only recording need not have its name.
    if len(names) == 1 and named and all(e.start is not None and not found[str(e.file)].places for e in named):
        found = dict.fromkeys(written, Found((0,), True))
    of_uploads: list[list[TranscriptEntry]] = [[] for _ in names]
    of_records, left = [], []
    for entry in named:
        upload, before = found[str(entry.file)].places, late.get(str(entry.file), Found()).places
        if upload:
            of_uploads[upload[0]].append(entry)
        elif len(before) == 1 and entry.start is None:
            of_records.append((entry, records[before[0]]))
        else:
            left.append((entry, _reason(entry, before)))
    plain, free = [e for e in entries if e.file is None], [texts for texts in of_uploads if not texts]
    if plain and len(plain) != len(free):
        raise DataError(
            f"Lines of text: {len(plain)}, recordings without a text: {len(free)}. Give one line for each, in the same "
            "order, or put the file's name in front (name, tab, text)."
        )
    for texts, entry in zip(free, plain):
        texts.append(entry)
    guessed = frozenset(n for n in written if found[n].guess or (not found[n].places and late[n].guess))
    return Pairs(of_uploads, of_records, left, guessed)


def _reason(entry: TranscriptEntry, before: Sequence[int]) -> str:
    if len(before) > 1:
        return f"the data set has several recordings named {path_of(str(entry.file))}."
    if before:
        return f"parts of {path_of(str(entry.file))} need the recording: choose it as well."
    return f"there is no recording named {path_of(str(entry.file))}."


def _of_source(stored: RecordingNames, written: str) -> Found:
    """Recordings of the data set, whose names hold letters, digits, - and _ only."""
    folder, mark, last = written.replace("\\", "/").rpartition("/")
    forms = (written, folder + mark + name_from(stem(last)), name_from(folder + mark + stem(last)))
    return min((f for f in map(stored.find, forms) if f.places), key=lambda f: f.guess, default=Found())


def _unique(names: Sequence[str], found: Mapping[str, Found]) -> dict[str, Found]:
    """Without names that may mean another recording: guesses where a recording has its own name or another guess, names
    in other folders than another of its name, and in other folders at all where some are in their recordings'."""
    claims = defaultdict(list)
    for written, places in found.items():
        for place in places.places:
            claims[place].append(written)
    lost = {w for w, f in found.items() if f.guess and len(f.places) > 1}
    depth = {
        w: _common(_parts(w)[:-1], _parts(names[f.places[0]])[:-1])
        for w, f in found.items()
        if f.places and _parts(w)[1:]
    }
    if any(depth.values()):
        lost |= {w for w, same in depth.items() if not same}
    for place, rivals in claims.items():
        guesses = {w for w in rivals if found[w].guess}
        if len(guesses) < len(rivals) or len({stem(w) for w in guesses}) > 1:
            lost |= guesses
        alike = defaultdict(list)
        for written in set(rivals) - guesses:
            alike[_parts(written)[-1]].append(written)
        for same in alike.values():
            near = {w: _common(_parts(w), _parts(names[place])) for w in same}
            best = [_parts(w) for w in same if near[w] == max(near.values())]
            fits = all(_common(path, max(best, key=len)) == len(path) for path in best)
            lost |= {w for w in same if not fits or near[w] < max(near.values())}
    return {written: Found() if written in lost else places for written, places in found.items()}


def _parts(name: str) -> list[str]:
    return name.strip().replace("\\", "/").strip("/").split("/")


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Parts at the end of two paths that are the same."""
    pairs = list(zip(reversed(one), reversed(other)))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
