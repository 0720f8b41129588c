"""Uploads into a data set: recordings with or without transcripts, each saved as it is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.studio.dataset.transcript_entry import TranscriptEntry, key, stem
from stentor.studio.dataset.transcripts import MOST_BYTES as MOST_TEXT
from stentor.studio.dataset.transcripts import match, parse
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import Record, name_from
from stentor.studio.uploaded_audio import Upload, checked, enterable, fingerprint, read, shown

MOST_FILES = 2000
"""Audio files of one upload."""
WHOLE = 60.0
"""Seconds of the longest recording that becomes one record; longer ones are split (see split.py) or have subtitles."""
OVERLAP = 0.25
"""Seconds that two subtitles may overlap: what is more is two people at once, whose words cannot be told apart."""


@dataclass
class Imported:
    """What became of an upload."""

    records: list[Record] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """A sentence for each file or transcript that was not taken."""
    taken: list[tuple[str, list[Record]]] = field(default_factory=list)
    """Name of each file of which something was taken, with its records."""


def add_uploads(
    dataset: DataSet,
    audio: Sequence[Upload],
    transcripts: Sequence[Upload] = (),
    pasted: str = "",
    language: str | None = None,
    speaker: str | None = None,
    on_clip: Callable[[int, int], None] | None = None,
) -> Imported:
    """Take uploaded recordings with their transcripts into a data set, each saved as it is read.

    `pasted` are lines of text, as in a txt file: one for each recording, in the order of `audio`. Recordings without a
    transcript get an empty text, for a person (or a model, see split.py) to fill in; those over a minute must come with
    times. A file that is refused is told and the others are taken; what the data set has already from the same file is
    not taken again. `on_clip` is told (clips done, of). Raises DataError for transcripts that cannot be read or matched
    (then nothing was taken), ConfigError for too many files, StentorError when the disk is full.
    """
    if len(audio) > MOST_FILES:
        raise ConfigError(f"{len(audio)} files are too many for one upload: at most {MOST_FILES}.")
    if not audio:
        raise ConfigError("There is no recording in the upload: choose wav, flac, mp3, ogg or m4a files.")
    matched = match([a.name for a in audio], list(_entries(audio, transcripts, pasted)))
    done = Imported()
    for entry in matched.left:
        done.refused.append(f"{entry.where}: there is no recording named {shown(entry.file or '')}.")
    clips: dict[int, list[TranscriptEntry]] = {i: [] for i in range(len(audio))}
    for i, entry in matched.clips:
        clips[i].append(entry)
    known = {(r.get("source_id"), r.get("source_start")) for r in dataset.records()}
    count, of = 0, sum(max(1, len(entries)) for entries in clips.values())
    for i, upload in enumerate(audio):
        records: list[Record] = []
        try:
            for record in _taken(dataset, upload, clips[i], language, speaker, done.refused, known):
                records.append(record)
                if on_clip:
                    on_clip(min(count + len(records), of), of)
        except AudioError as error:
            done.refused.append(str(error))
        if records:
            done.records += records
            done.taken.append((shown(upload.name), records))
        count += max(1, len(clips[i]))
        if on_clip:
            on_clip(count, of)
    return done


def _entries(audio: Sequence[Upload], transcripts: Sequence[Upload], pasted: str) -> Iterator[TranscriptEntry]:
    names = [a.name for a in audio]
    stems = {key(name) for name in names}
    problems = []
    for upload in transcripts:
        name = shown(upload.name)
        try:
            with open(upload.path, "rb") as file:
                entries = parse(name, file.read(MOST_TEXT + 1), names)
        except StentorError as error:
            problems.append(str(error))
            continue
        # A text file of a recording's own name is that recording's text, on as many lines as it likes.
        if name.lower().endswith((".txt", ".lab")) and key(name) in stems:
            text = " ".join(e.text for e in entries)
            entries = [replace(entries[0], text=text, file=stem(name), start=None, end=None)]
        yield from entries
    if problems:
        raise DataError("\n".join(problems))
    if pasted.strip():
        yield from parse("the pasted text", pasted.encode("utf-8", "replace"), names)


def _taken(
    dataset: DataSet,
    upload: Upload,
    entries: list[TranscriptEntry],
    language: str | None,
    speaker: str | None,
    refused: list[str],
    known: set[tuple[str | None, float | None]],
) -> Iterator[Record]:
    """Save what one file holds, and answer each record as it is on the disk. Raises AudioError for the whole file;
    what is wrong with a part of it is put into `refused`."""
    name = shown(upload.name)
    if not upload.path.is_file() or upload.path.stat().st_size == 0:
        raise AudioError(f"{name} is empty.", "empty")
    digest = fingerprint(upload.path)
    if (digest, None) in known and not any(e.start is not None for e in entries):
        raise AudioError(f"{name} is in the data set already: its text can be changed in Check.", "again")
    file = enterable(upload)
    try:
        seconds, rate = checked(file)
        if seconds > WHOLE and not any(e.start is not None for e in entries):
            raise AudioError(
                f"{name} lasts {seconds:.0f} s, which is too long to train on as a whole: bring subtitles, or let it "
                "be split at its pauses (Long recordings, below).",
                "too_long",
            )
        source = name_from(name.rpartition(".")[0] or name)
        for entry in _parts(name, entries, seconds, refused):
            start = None if entry.start is None else round(entry.start, 3)
            if (digest, start) in known:
                refused.append(f"{entry.where or name}: the data set has this part of {name} already.")
                continue
            try:
                if entry.start is None or entry.end is None:
                    samples = read(file, rate)
                else:
                    samples = read(file, rate, entry.start, entry.end - entry.start)
                extra = {"source": source, "source_id": digest, "source_start": start}
                record = dataset.add(
                    samples, rate, entry.text, entry.language or language, entry.speaker or speaker, **extra
                )
            except AudioError as error:
                refused.append(str(error))
                continue
            known.add((digest, start))
            yield record
    finally:
        if file is not upload:
            file.path.unlink(missing_ok=True)


def _parts(name: str, entries: list[TranscriptEntry], seconds: float, refused: list[str]) -> Iterator[TranscriptEntry]:
    """The entries of one recording that can be taken, those with times in order and within the recording."""
    untimed = [e for e in entries if e.start is None]
    for entry in untimed[1:] or (untimed if len(untimed) < len(entries) else []):
        refused.append(f"{entry.where}: {name} has another transcript already.")
    if not entries or (untimed and len(untimed) == len(entries)):
        yield untimed[0] if untimed else TranscriptEntry("")
        return
    timed = sorted((e for e in entries if e.start is not None), key=lambda e: e.start or 0.0)
    reach, last, crossed = -1.0, 0, set()
    for i, entry in enumerate(timed):
        if (entry.start or 0.0) < reach - OVERLAP:
            crossed |= {i, last}
        end = seconds if entry.end is None else entry.end
        if end > reach:
            reach, last = end, i
    for i, entry in enumerate(timed):
        start, end = entry.start or 0.0, min(seconds if entry.end is None else entry.end, seconds)
        if i in crossed:
            refused.append(f"{entry.where}: it overlaps another subtitle ({start:g} to {end:g} s): two at once.")
        elif start >= seconds:
            refused.append(f"{entry.where}: {start:g} s is not in {name}, which lasts {seconds:.1f} s.")
        elif end - start > WHOLE:
            refused.append(f"{entry.where}: {start:g} to {end:g} s lasts over {WHOLE:g} s.")
        else:
            yield replace(entry, start=start, end=end)
