"""Uploads into a data set: recordings with or without transcripts, each saved as it is read.

A transcript is given to its recording by name, or in order.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stentor.data.layouts.transcripts import READERS
from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import Record, clean_text
from stentor.studio.phrases import checked_language
from stentor.studio.uploaded_audio import Upload, checked, enterable, fingerprint, read, shown, source_name
from stentor.text.transcript_formats import MOST_PROBLEMS, TranscriptEntry, decoded, key, plain_lines, stem

MOST_TEXT = 20 * 2**20
"""Bytes of the largest transcript file."""
MOST_LINES = 1_000_000
"""Lines of the longest transcript file."""
TRANSCRIPTS = ("txt", "lab", *READERS)
"""Endings of the transcripts that are read."""
MOST_FILES = 2000
"""Audio files of one upload."""
WHOLE = 60.0
"""Seconds of the longest recording that becomes one record; longer ones have subtitles or are split at pauses."""
OVERLAP = 0.25
"""Seconds that two subtitles may overlap: what is more is two people at once, whose words cannot be separated."""


@dataclass
class Imported:
    """Result of an upload."""

    refused: list[str]
    """A sentence for each file or transcript that was not taken."""
    taken: list[tuple[str, list[Record]]] = field(default_factory=list)
    """Name of each file of which something was taken, with its records."""

    @property
    def records(self) -> list[Record]:
        return [record for _, records in self.taken for record in records]


def add_uploads(
    dataset: DataSet,
    audio: Sequence[Upload],
    transcripts: Sequence[Upload] = (),
    pasted: str = "",
    language: str | None = None,
    speaker: str | None = None,
    on_clip: Callable[[int, int], Any] = lambda done, of: None,
) -> Imported:
    """Take uploaded recordings with their transcripts into a data set, each saved as it is read.

    `pasted` are lines of text, as in a txt file: one for each recording, in the order of `audio`. Recordings without a
    transcript get an empty text, for a person (or a model, see long_recordings.py) to fill in; those over a minute must
    come with times. A file that is refused is reported and the others are taken; what the data set has already from the
    same file is not taken again. `on_clip` is called with (clips done, of). Raises DataError for transcripts that
    cannot be read or matched (then nothing was taken), ConfigError for too many files, StentorError when the disk is
    full."""
    if len(audio) > MOST_FILES:
        raise ConfigError(f"{len(audio)} files are too many for one upload: at most {MOST_FILES}.")
    if not audio:
        raise ConfigError("There is no recording in the upload: choose wav, flac, mp3, ogg or m4a files.")
    matched, left = match([a.name for a in audio], list(_entries(audio, transcripts, pasted)))
    done = Imported([f"{entry.where}: there is no recording named {shown(entry.file or '')}." for entry in left])
    known = {(r.get("source_id"), r.get("source_start")) for r in dataset.records()}
    count, of = 0, sum(max(1, len(entries)) for entries in matched)
    for upload, entries in zip(audio, matched, strict=True):
        records: list[Record] = []
        try:
            for record in _taken(dataset, upload, entries, language, speaker, done.refused, known):
                records.append(record)
                on_clip(min(count + len(records), of), of)
        except AudioError as error:
            done.refused.append(str(error))
        if records:
            done.taken.append((shown(upload.name), records))
        count += max(1, len(entries))
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
                extra = {"source": source_name(name), "source_id": digest, "source_start": start}
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


def parse(name: str, data: bytes, audio: Sequence[str] = ()) -> list[TranscriptEntry]:
    """The entries of a transcript file, by its name's ending; a name without an ending means lines of text.

    `audio`: names of the recordings; lines that begin with them (Kaldi, LibriSpeech) are those recordings' lines.
    Raises DataError that lists what is wrong, each with its line, and for a format that is not taken, ConfigError for a
    file that is too large.
    """
    if len(data) > MOST_TEXT:
        raise ConfigError(f"{name} is larger than {MOST_TEXT // 2**20} MB: split it.")
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if ending and ending not in TRANSCRIPTS:
        raise DataError(
            f"{name} is no transcript that is taken: save it as txt, csv, tsv, jsonl, srt, vtt or TextGrid."
        )
    text = decoded(name, data)
    if text.count("\n") + text.count("\r") > MOST_LINES:
        raise ConfigError(f"{name} has more than {MOST_LINES} lines: split it.")
    entries_of = READERS.get(ending) or partial(plain_lines, stems={key(a) for a in audio})
    problems: list[str] = []
    entries = []
    for entry in entries_of(name, text):
        if isinstance(entry, TranscriptEntry):
            entry = _checked(entry)
        if isinstance(entry, str):
            problems.append(entry)
            if len(problems) == MOST_PROBLEMS:
                break
        elif entry.text:
            entries.append(entry)
    if problems:
        raise DataError("\n".join(problems))
    if not entries:
        raise DataError(f"{name} holds no transcript.")
    if ending in ("srt", "vtt", "textgrid"):
        entries = [replace(e, file=stem(name)) for e in entries]
    return entries


def _checked(entry: TranscriptEntry) -> TranscriptEntry | str:
    """The entry with its text and language as they are kept, or what is wrong with it."""
    try:
        entry = replace(entry, text=clean_text(entry.text), language=checked_language(entry.language))
    except ConfigError as error:
        return f"{entry.where}: {error}"
    if entry.start is None and entry.end is not None:
        entry = replace(entry, start=0.0)
    times = [t for t in (entry.start, entry.end) if t is not None]
    try:
        fine = all(math.isfinite(t) and t >= 0 for t in times)
    except OverflowError:
        fine = False
    if not fine:
        return f"{entry.where}: start and end must be seconds from the beginning."
    if entry.start is not None and entry.end is not None and entry.end <= entry.start:
        return f"{entry.where}: the end ({entry.end:g} s) is not after the start ({entry.start:g} s)."
    return entry


def match(
    audio: Sequence[str], entries: Sequence[TranscriptEntry]
) -> tuple[list[list[TranscriptEntry]], list[TranscriptEntry]]:
    """Give each transcript to its recording: by name where the entries have one, else in order. Answers the transcripts
    of each recording, and those without a recording.

    Raises DataError when entries without names are not as many as recordings, and for names that two recordings share.
    """
    named = [e for e in entries if e.file is not None]
    places = {key(name): i for i, name in enumerate(audio)}
    if named and len(places) < len(audio):
        counts = Counter(key(a) for a in audio)
        doubled = sorted({stem(a) for a in audio if counts[key(a)] > 1})
        raise DataError(
            f"Several recordings are named {', '.join(doubled[:5])}: rename them, for each to get its text."
        )
    matched: list[list[TranscriptEntry]] = [[] for _ in audio]
    left = []
    for entry in named:
        place = places.get(key(str(entry.file)))
        (left if place is None else matched[place]).append(entry)
    # Subtitles of the only recording need not have its name.
    if len(audio) == 1 and not matched[0] and all(e.start is not None for e in named):
        matched, left = [named], []
    plain, free = [e for e in entries if e.file is None], [texts for texts in matched if not texts]
    if plain and len(plain) != len(free):
        raise DataError(
            f"There are {len(plain)} lines of text for {len(free)} recordings: give one line for each, in the same "
            "order, or put the file's name in front (name, tab, text)."
        )
    for texts, entry in zip(free, plain):
        texts.append(entry)
    return [sorted(texts, key=lambda e: e.start or 0.0) for texts in matched], left
