"""Effects of an upload on a data set, recording by recording, before anything is stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from stentor.errors import AudioError
from stentor.studio.dataset.pairing import Pairs
from stentor.studio.dataset.unpacking import path_of
from stentor.studio.files import Record
from stentor.studio.uploaded_audio import Upload, checked, fingerprint
from stentor.text.transcript_formats import TranscriptEntry

WHOLE = 60.0
"""Seconds of the longest recording that becomes one record; longer ones have subtitles or are split at pauses."""
OVERLAP = 0.25
"""Seconds that two subtitles may overlap: what is more is two people at once, whose words cannot be separated."""
_CLIPPED = 0.1
"""Seconds beyond a recording's end from which on a clipped subtitle is reported."""
Fate = Literal["new", "text", "same", "kept", "refused", "left"]
"""A record will be added, or get its text; it has this text, or another one, which stays; the recording, or the
transcript, cannot be used."""


@dataclass(frozen=True)
class Row:
    """A recording or a part of it, with its transcript."""

    name: str
    fate: Fate
    text: str = ""
    seconds: float | None = None
    speaker: str | None = None
    language: str | None = None
    note: str = ""
    """Sentence about what cannot be used or will be clipped."""
    guess: bool = False
    """The transcript has only a similar name."""
    start: float | None = None
    """Seconds at which a part begins."""
    upload: Upload | None = None
    digest: str = ""
    """Fingerprint of the upload."""
    rate: int = 0
    id: str = ""
    """Record that will get the text."""


class Known(NamedTuple):
    """Records of the data set, and the language and speaker of all that is added."""

    records: Mapping[tuple[str, float | None], Record]
    """Records by the fingerprint of their upload and the second at which they begin in it."""
    language: str | None
    speaker: str | None


def planned(audio: Sequence[Upload], names: Sequence[str], pairs: Pairs, known: Known) -> Iterator[Row]:
    """The rows of recordings that were uploaded, of texts for those that the data set has, and of what fits nothing."""
    first: dict[str, str] = {}
    for upload, name, entries in zip(audio, names, pairs.of_uploads, strict=True):
        guess = any(e.file in pairs.guessed for e in entries)
        try:
            if not upload.path.is_file() or upload.path.stat().st_size == 0:
                raise AudioError(f"{name} is empty.", "empty")
            digest = fingerprint(upload.path)
            if first.setdefault(digest, name) != name:
                raise AudioError(f"{name} is the same recording as {first[digest]}.", "again")
            seconds, rate = checked(upload)
        except AudioError as error:
            yield Row(name, "refused", entries[0].text if entries else "", note=str(error))
            continue
        whole = Row(name, "new", "", seconds, known.speaker, known.language, "", guess, None, upload, digest, rate)
        yield from _rows(whole, entries, known)
    filled: set[str] = set()
    for entry, record in pairs.of_records:
        row = Row(str(record["source"]), "text", "", record.get("duration"), guess=entry.file in pairs.guessed)
        yield _again(row, entry) if record["id"] in filled else _late(_with(row, entry), entry, record, known)
        filled.add(record["id"])
    for entry, reason in pairs.left:
        name = path_of(entry.file or "")
        yield Row(name, "left", entry.text, speaker=entry.speaker, note=f"{entry.where}: {reason}")


def _rows(whole: Row, entries: Sequence[TranscriptEntry], known: Known) -> Iterator[Row]:
    """The rows of one recording: itself with the first transcript of all of it, or the parts that have times."""
    seconds = whole.seconds or 0.0
    timed = [(e.start, seconds if e.end is None else e.end, e) for e in entries if e.start is not None]
    timed.sort(key=lambda part: part[0])
    crossed = _crossed([(start, end) for start, end, _ in timed])
    for number, (begin, until, entry) in enumerate(timed):
        start, end = round(begin, 3), min(until, seconds)
        row = replace(_with(whole, entry), start=start, seconds=end - start)
        if number in crossed:
            note = f"it overlaps another subtitle ({start:g} to {end:g} s): two at once."
        elif start >= seconds:
            note = f"{start:g} s is not in {whole.name}, which lasts {seconds:.1f} s."
        elif end - start > WHOLE:
            note = f"{start:g} to {end:g} s lasts over {WHOLE:g} s."
        else:
            clipped = f"{entry.where}: it is clipped where {whole.name} ends ({seconds:.1f} s)."
            record = known.records.get((whole.digest, start))
            new = replace(row, note=clipped if until > seconds + _CLIPPED else "")
            yield new if record is None else _late(row, entry, record, known)
            continue
        yield replace(row, fate="refused", note=f"{entry.where}: {note}")
    untimed = [e for e in entries if e.start is None]
    if not timed:
        yield _whole(whole, untimed.pop(0) if untimed else None, known)
    yield from (_again(whole, entry) for entry in untimed)


def _whole(row: Row, entry: TranscriptEntry | None, known: Known) -> Row:
    row, record = _with(row, entry) if entry else row, known.records.get((row.digest, None))
    if record is not None and entry is not None:
        return _late(row, entry, record, known)
    if record is not None:
        note = f"{row.name} is in the data set already: its text can be changed in Check."
    elif (row.seconds or 0.0) > WHOLE:
        note = (
            f"{row.name} lasts {row.seconds:.0f} s, which is too long to train on as a whole: bring subtitles, or let "
            "it be split at its pauses (Long recordings, below)."
        )
    else:
        return row
    return replace(row, fate="refused", note=note)


def _crossed(spans: Sequence[tuple[float, float]]) -> set[int]:
    """Places of those that overlap another, of spans in the order of their starts."""
    reach, last, crossed = -1.0, 0, set()
    for i, (start, end) in enumerate(spans):
        if start < reach - OVERLAP:
            crossed |= {i, last}
        if end > reach:
            reach, last = end, i
    return crossed


def _late(row: Row, entry: TranscriptEntry, record: Record, known: Known) -> Row:
    """A transcript for a recording that the data set has."""
    old = str(record.get("text") or "").strip()
    if old == row.text:
        return replace(row, fate="same")
    if old:
        note = f"{entry.where}: {row.name} has another text already, which stays. It can be changed in Check."
        return replace(row, fate="kept", note=note)
    speaker = entry.speaker or (None if record.get("speaker") else known.speaker)
    return replace(row, fate="text", id=str(record["id"]), speaker=speaker, language=entry.language)


def _with(row: Row, entry: TranscriptEntry) -> Row:
    speaker, language = entry.speaker or row.speaker, entry.language or row.language
    return replace(row, text=entry.text, speaker=speaker, language=language)


def _again(row: Row, entry: TranscriptEntry) -> Row:
    note = f"{entry.where}: {row.name} has another transcript already."
    return replace(_with(row, entry), fate="left", note=note, upload=None)
