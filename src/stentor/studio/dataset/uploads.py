"""Uploads into a data set: recordings with or without transcripts, and transcripts for recordings that it has.

`planned_uploads` says what will happen, which a page shows; `add_uploads` does just that, each recording saved as it is
read.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from stentor.data.layouts.transcripts import ENDINGS, Transcripts, read_transcripts
from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.studio.dataset.pairing import pair
from stentor.studio.dataset.planning import Known, Row, planned
from stentor.studio.dataset.unpacking import MOST_FILES, MOST_TEXT, contents, discard, path_of
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import Record, clean_text
from stentor.studio.phrases import checked_language
from stentor.studio.uploaded_audio import Upload, enterable, read, shown, source_name
from stentor.text.transcript_formats import MOST_PROBLEMS

MOST_LINES = 1_000_000
"""Lines of the longest transcript file."""


@dataclass(frozen=True)
class Import:
    """An upload, as it is planned and as it was done."""

    rows: list[Row]
    unused: list[str]
    """Sentences about files that are not used, and audio that was not read."""
    remarks: list[str]
    """Sentences about what was recognised in files, assumed and taken out."""
    unread: list[str]
    """Those of `unused` about tables."""
    records: Sequence[Record] = ()
    """Records that were added, after those of before that have their text now."""
    filled: int = 0
    """Number of those of before."""

    @property
    def refused(self) -> list[str]:
        """A sentence for each recording and transcript that is not taken, or not all of it."""
        return [row.note for row in self.rows if row.note] + self.unused

    @property
    def unfitting(self) -> str:
        """A sentence where transcripts came along of which none fits a recording; else nothing."""
        left = [row for row in self.rows if row.fate == "left"]
        if any(row.text and row.fate != "left" for row in self.rows) or not (left or self.unread):
            return ""
        if not left:
            return self.unread[0]
        recordings = [row for row in self.rows if row.upload is not None]
        texts, names = (", ".join(list(dict.fromkeys(r.name for r in rows))[:3]) for rows in (left, recordings))
        of = f"the recordings are named {names}" if names else "the data set has no recording of such a name"
        return f"No text fits a recording: the texts are for {texts}, and {of}."


def add_uploads(
    dataset: DataSet,
    audio: Sequence[Upload],
    transcripts: Sequence[Upload] = (),
    pasted: str = "",
    language: str | None = None,
    speaker: str | None = None,
    on_clip: Callable[[int, int], Any] = lambda done, of: None,
    confirmed: bool = False,
) -> Import:
    """Do what `planned_uploads` says, each recording saved as it is read; `on_clip` is called with (records done, of).

    Raises as `planned_uploads`, and DataError where transcripts came along and none fits, unless that is `confirmed`:
    then nothing was taken. Raises StentorError when the disk is full."""
    plan = planned_uploads(dataset, audio, transcripts, pasted, language, speaker)
    if plan.unfitting and not confirmed:
        raise DataError(f"{plan.unfitting} Nothing was added.")
    filled = dataset.edit_all({row.id: _fields(row) for row in plan.rows if row.fate == "text"})
    new = [row for row in plan.rows if row.fate == "new"]
    records, problems = list(filled), []
    for done, record in enumerate(_saved(dataset, new), 1):
        if isinstance(record, AudioError):
            problems.append(str(record))
        else:
            records.append(record)
        on_clip(done, len(new))
    discard([*audio, *transcripts])
    return replace(plan, unused=plan.unused + problems, records=records, filled=len(filled))


def planned_uploads(
    dataset: DataSet,
    audio: Sequence[Upload],
    transcripts: Sequence[Upload] = (),
    pasted: str = "",
    language: str | None = None,
    speaker: str | None = None,
) -> Import:
    """Plan for each recording and each transcript of an upload; nothing is changed.

    `pasted` are lines of text, as in a txt file. Recordings without a transcript get an empty text, for a person (or a
    model, see long_recordings.py) to fill in, or a later upload; those over a minute must come with times. A
    transcript without a recording in the upload belongs to the one of its name that the data set has. Raises DataError
    for transcripts that cannot be read or matched, ConfigError for too many files."""
    found = contents(audio, transcripts)
    if len(found.audio) > MOST_FILES:
        raise ConfigError(f"{len(found.audio)} files are too many for one upload: at most {MOST_FILES}.")
    if not found.audio and not found.texts and not pasted.strip():
        raise ConfigError("There is no recording in the upload: choose audio or video files.")
    records = [r for r in dataset.records() if r.get("source")]
    complete = [r for r in records if r.get("source_start") is None]
    paths = [path_of(upload.name) for upload in found.audio]
    texts, unread = _readings(found.texts, [*paths, *(str(r["source"]) for r in complete)])
    if pasted.strip():
        texts.append(parse("the pasted text", pasted.encode("utf-8", "replace"), paths))
    entries = [entry for read in texts for entry in read.entries]
    alike = {(e.file, e.text, e.start, e.end): e for e in reversed(entries) if e.file is not None}
    once = [e for e in entries if e.file is None or alike[(e.file, e.text, e.start, e.end)] is e]
    counts = Counter(shown(path) for path in paths)
    names = [shown(path) if counts[shown(path)] == 1 else path for path in paths]
    known = {(str(r.get("source_id")), r.get("source_start")): r for r in records}
    rows = planned(found.audio, names, pair(paths, complete, once), Known(known, language, speaker))
    tables = [problem for problem in unread if not re.match(r"[^:]*\.(?:txt|lab)\b", problem)]
    return Import(list(rows), found.unused + unread, [remark for read in texts for remark in read.remarks], tables)


def _readings(uploads: Sequence[Upload], names: Sequence[str]) -> tuple[list[Transcripts], list[str]]:
    """The transcripts of each file, and why those of files in a zip file or a folder are not used. Raises DataError
    for other files, and where no file in a folder can be read."""
    texts, plain, inside, problems = [], [], [], []
    for upload in uploads:
        name, folder = shown(upload.name), path_of(upload.name).rpartition("/")[0]
        try:
            with open(upload.path, "rb") as file:
                read = parse(name, file.read(MOST_TEXT + 1), names)
        except StentorError as error:
            (inside if folder else problems).append(str(error))
            continue
        if folder and any(e.file is None for e in read.entries):
            plain.append(f"{name} was not used: it does not name the recordings.")
        else:
            texts.append(_placed(read, name, folder, names))
    if problems or len(inside) == len(uploads) > 0:
        raise DataError("\n".join(problems or inside))
    return texts, plain + inside


def _placed(read: Transcripts, name: str, folder: str, recordings: Sequence[str]) -> Transcripts:
    """Transcripts of a file in a folder: names start there where it holds recordings, and the file's own does."""
    holds = any(recording.startswith(f"{folder}/") for recording in recordings)
    given = [f"{folder}/{e.file}" if folder and e.file and (holds or e.file == name) else e.file for e in read.entries]
    return Transcripts([replace(e, file=file) for e, file in zip(read.entries, given)], read.remarks)


def _fields(row: Row) -> Mapping[str, str]:
    given = {"text": row.text, "language": row.language, "speaker": row.speaker}
    return {key: value for key, value in given.items() if value}


def _saved(dataset: DataSet, rows: Sequence[Row]) -> Iterator[Record | AudioError]:
    """Save the recordings of rows, and answer each record as it is on the disk, or what is wrong with its audio."""
    for upload, parts in groupby(rows, lambda row: row.upload):
        if upload is None:
            continue
        file = upload
        try:
            for row in parts:
                try:
                    if row.start is None:
                        samples = read(upload, row.rate)
                    else:
                        file = enterable(upload)
                        samples = read(file, row.rate, row.start, row.seconds)
                    extra = {"source": source_name(row.name), "source_id": row.digest, "source_start": row.start}
                    yield dataset.add(samples, row.rate, row.text, row.language, row.speaker, **extra)
                except AudioError as error:
                    yield error
        finally:
            if file is not upload:
                file.path.unlink(missing_ok=True)


def parse(name: str, data: bytes, audio: Sequence[str] = ()) -> Transcripts:
    """The transcripts of a file, by its name's ending; a name without an ending means lines of text.

    `audio`: names of the recordings; lines that begin with them (Kaldi, LibriSpeech) are those recordings' lines.
    Raises DataError that lists what is wrong, each with its line, and for a format that is not taken, ConfigError for a
    file that is too large.
    """
    if len(data) > MOST_TEXT:
        raise ConfigError(f"{name} is larger than {MOST_TEXT // 2**20} MB: split it.")
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if ending and ending not in ENDINGS:
        raise DataError(
            f"{name} is no transcript that is taken: save it as txt, csv, tsv, jsonl, srt, vtt or TextGrid."
        )
    if data.count(b"\n") + data.count(b"\r") > MOST_LINES:
        raise ConfigError(f"{name} has more than {MOST_LINES} lines: split it.")
    read = read_transcripts(name, data, audio)
    problems, entries = [], []
    for entry in read.entries:
        try:
            entry = replace(entry, text=clean_text(entry.text), language=checked_language(entry.language))
        except ConfigError as error:
            problems.append(f"{entry.where}: {error}")
        entries += [entry] if entry.text else []
    if problems:
        raise DataError("\n".join(problems[:MOST_PROBLEMS]))
    if not entries:
        raise DataError(f"{name} holds no transcript.")
    return Transcripts(entries, read.remarks)
