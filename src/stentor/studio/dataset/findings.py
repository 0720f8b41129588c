"""Findings of `stentor prepare check` in a data set, recording by recording.

Decoding is the slow part: each file is heard once, in a thread, and what was measured is kept in `.sounds.jsonl` by the
file's name, time and size. The rules (stentor.data.outliers) then run over texts and measures each time that something
has changed, which takes milliseconds.
"""

import contextlib
import functools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stentor.audio.activity import speech_span
from stentor.audio.io import read
from stentor.data.cut import check_text_fields
from stentor.data.fields import list_field, seconds_field
from stentor.data.outliers import KINDS, CheckedRecord
from stentor.data.signal_stats import SignalStats, measure_file
from stentor.dataloading.dataset_report import outliers_by_kind
from stentor.errors import ConfigError, DataError
from stentor.studio import train_test_split
from stentor.studio.dataset.trimming import TrimSpan, trim_span
from stentor.studio.files import files_of, stamp
from stentor.studio.projects import DataSet, Record
from stentor.studio.texts import for_page, say

SOUNDS = ".sounds.jsonl"
"""Measures of a data set's files: kept for speed alone, made again when it is deleted."""
SAVED_EVERY = 1.0
"""Seconds between two savings of new measures."""
STATE = ("manifest.jsonl", "dataset.json", "train.jsonl", "held_out.jsonl")
"""Files beside `audio/` that an answer depends on."""
REMEMBERED = 8
"""Data sets whose measures stay in memory."""
SHOWN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "all": lambda row: True,
    "remarks": lambda row: bool(row["remarks"]),
    "unsure": lambda row: row["confidence"] is not None,
    "drafts": lambda row: row["draft"],
    "trim": lambda row: bool(row["cut"]) and not row["trimmed"],
    "trimmed": lambda row: row["trimmed"],
    "no_text": lambda row: not row["text"],
    "train": lambda row: row["side"] == "train",
    "held_out": lambda row: row["side"] == "held_out",
}
"""Whether a row is shown, by the choice of what to show."""
Key = tuple[str, int, int, float, float | None]
"""A part of a file: its name, its time and size, where the part starts and how many seconds it lasts."""


@dataclass
class DatasetFindings:
    """A data set as it was found."""

    rows: dict[str, dict[str, Any]]
    """By id, what is wrong first: `id number text seconds speaker language draft confidence side remarks measured`,
    seconds of silence to `cut` (or that were, if `trimmed`), as JSON."""
    spans: dict[str, TrimSpan]
    """Spans to trim recordings with silence at their ends to, by id."""
    measured: int
    """Recordings that were heard so far; remarks on the others are to come."""
    hours: float
    speakers: int
    languages: int
    kinds: dict[str, int]
    """Number of recordings by kind of remark."""
    divided: dict[str, Any] | None
    """`share by train held_out` of the division; None before the first."""
    missing: int
    """Recordings whose file is not there."""
    useless: str
    """Reason for which nothing can be learned from the recordings as they are, or empty."""

    def chosen(self, show: str = "all", find: str = "") -> list[str]:
        """Ids of the rows to show: one of `SHOWN` or a kind of remark, and with the words `find` in their text;
        `unsure` are those with a confidence, the least certain first. Raises ConfigError for another choice."""
        if show not in (*SHOWN, *KINDS):
            choices = ", ".join((*SHOWN, *KINDS))
            raise ConfigError(f"{show[:40]!r} is no choice of recordings: use one of {choices}.")
        fits = SHOWN.get(show, lambda row: any(remark["kind"] == show for remark in row["remarks"]))
        words = find.casefold().split()
        rows = [r for r in self.rows.values() if fits(r) and all(w in r["text"].casefold() for w in words)]
        return [row["id"] for row in (sorted(rows, key=lambda r: r["confidence"]) if show == "unsure" else rows)]

    def figures(self) -> dict[str, Any]:
        """All but the rows, as JSON."""
        shown = {name: value for name, value in vars(self).items() if name not in ("rows", "spans")}
        cut = sum(span.cut for span in self.spans.values())
        counts = {show: len(self.chosen(show)) for show in SHOWN}
        return {**shown, "cut": cut, "total": len(self.rows), "counts": counts}


def checked(dataset: DataSet) -> DatasetFindings:
    """Look at a data set; what was not heard before is heard from now on, in a thread, and counts as not `measured`.
    Raises StentorError for a manifest that cannot be read."""
    return _measurements(dataset.folder).checked()


class _Heard(NamedTuple):
    """Measures of a recording."""

    sound: SignalStats
    speech: tuple[float, float] | None
    """First and last second of speech; None without speech."""


@dataclass
class _Item:
    """A record with the file to hear; without one, its row says why."""

    record: Record
    row: CheckedRecord
    key: Key | None = None
    path: Path | None = None
    words: Sequence[dict[str, Any]] = ()
    """All words with times."""
    span: TrimSpan | None = None


class _Measurements:
    """The measures of one data set. Safe from several threads."""

    def __init__(self, dataset: DataSet):
        self.dataset = dataset
        self.file = dataset.folder / SOUNDS
        self.sounds = dict(_saved(self.file))
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.last: tuple[Any, DatasetFindings] | None = None

    def checked(self) -> DatasetFindings:
        files = _files(self.dataset)
        folder = self.dataset.folder
        seen = (files, *(stamp(folder / name) for name in STATE), len(self.sounds))
        if self.last is not None and self.last[0] == seen:
            return self.last[1]
        items = [self._item(record, files) for record in self.dataset.records()]
        with self.lock:
            waiting = [i for i in items if i.key and i.key not in self.sounds]
            if waiting and (self.thread is None or not self.thread.is_alive()):
                self.thread = threading.Thread(target=self._hear, args=(waiting,), name="studio-check", daemon=True)
                self.thread.start()
            for item in items:
                if item.key and item.key in self.sounds:
                    item.row.sound, speech = self.sounds[item.key]
                    item.span = trim_span(item.record, item.words, item.row.sound.seconds, speech)
        answer = _answer(self.dataset, items, len(waiting))
        if not waiting:
            self.last = seen, answer
        return answer

    def _item(self, record: Record, files: dict[str, tuple[int, int]]) -> _Item:
        """A record, checked as a run would check it: what is wrong with its fields is a remark on it."""
        row = CheckedRecord(record["id"], self.dataset.name)
        item = _Item(record, row)
        try:
            check_text_fields(record, "the record")
            start = seconds_field(record, "start", "the record") or 0.0
            seconds = seconds_field(record, "duration", "the record")
            words = list_field(record, "words", "the record")
            segments = list_field(record, "segments", "the record")
            item.words = [*words, *(w for s in segments for w in list_field(s, "words", "a segment"))]
            path = self.dataset.audio(record) if record["audio_path"] not in files else None
        except (DataError, ConfigError) as error:
            row.sound = SignalStats("wrong", str(error))
            return item
        row.text, row.speaker, row.declared = record.get("text"), record.get("speaker"), seconds or 0.0
        row.language = record.get("language") or record.get("language_id")
        row.times = [] if segments else words
        if path is None:
            path, times = self.dataset.folder / record["audio_path"], files[record["audio_path"]]
        elif (times := stamp(path)) is None:  # in a folder below, or a link: looked at one by one
            row.sound = SignalStats("missing", "its file was deleted or moved")
            return item
        item.key, item.path = (record["audio_path"], *times, start, seconds), path
        return item

    def _hear(self, waiting: Iterable[_Item]) -> None:
        """Measure files, one after the other, and keep what was measured."""
        new: list[tuple[Key, _Heard]] = []
        last = time.monotonic()
        for item in waiting:
            assert item.key and item.path
            speech = None
            try:
                sound = measure_file(item.path, item.key[3], item.key[4])
                if not sound.reason:
                    audio = read(item.path, sound.rate, item.key[3], item.key[4])
                    if (span := speech_span(audio, sound.rate)) is not None:
                        speech = span[0] / sound.rate, span[1] / sound.rate
            except Exception as error:  # a decoder's own fault: the recording is reported, the others continue
                sound = SignalStats("unreadable", f"{item.key[0]} cannot be decoded ({type(error).__name__}).")
            sound.message = sound.message.replace(str(item.path), item.key[0])
            new.append((item.key, _Heard(sound, speech)))
            with self.lock:
                self.sounds[item.key] = new[-1][1]
            if time.monotonic() - last > SAVED_EVERY:
                self._keep(new)
                new, last = [], time.monotonic()
        self._keep(new)

    def _keep(self, new: list[tuple[Key, _Heard]]) -> None:
        lines = "".join(json.dumps([*key, asdict(heard.sound), heard.speech]) + "\n" for key, heard in new)
        with contextlib.suppress(OSError), open(self.file, "a", encoding="utf-8") as file:  # deleted, or a full disk
            file.write(lines)


@functools.lru_cache(REMEMBERED)
def _measurements(folder: Path) -> _Measurements:
    return _Measurements(DataSet(folder))


def _saved(path: Path) -> Iterable[tuple[Key, _Heard]]:
    """Rows of a file of measures; other lines are skipped."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):
            name, changed, size, start, seconds, sound, speech = json.loads(line)
            heard = _Heard(SignalStats(**sound), (float(speech[0]), float(speech[1])) if speech else None)
            yield (str(name), int(changed), int(size), float(start), seconds), heard


def _files(dataset: DataSet) -> dict[str, tuple[int, int]]:
    """Time and size of the files of `audio/` by the path that a manifest names them with; no links."""
    with contextlib.suppress(OSError), os.scandir(dataset.folder / "audio") as entries:
        plain = [(e.name, e.stat(follow_symlinks=False)) for e in entries if e.is_file(follow_symlinks=False)]
        return {f"audio/{name}": (status.st_mtime_ns, status.st_size) for name, status in plain}
    return {}


def _was_cut(record: Record) -> float:
    return record["untrimmed"].get("duration", 0.0) - record.get("duration", 0.0) if len(files_of(record)) > 1 else 0.0


def _answer(dataset: DataSet, items: list[_Item], left: int) -> DatasetFindings:
    sides = dataset.sides()
    measured_rows = [i.row for i in items if i.key is None or i.row.sound.rate or i.row.sound.reason]
    numbers = {item.record["id"]: number for number, item in enumerate(items, 1)}
    files = {item.record["id"]: str(item.record["audio_path"]) for item in items}
    remarks: dict[str, list[dict[str, str]]] = {}
    worst: dict[str, tuple[int, float]] = {}
    kinds: Counter[str] = Counter()
    for place, (kind, suspicious) in enumerate(outliers_by_kind(measured_rows, {}).items()):
        for badness, row, detail in suspicious:
            if kind == "unusable":
                detail = for_page(row.sound.message).replace(files[row.id], f"No. {numbers[row.id]}")
            elif kind == "same_audio":
                twin = detail.removeprefix("same samples as ")
                detail = f"No. {numbers.get(twin, '?')}"
            remarks.setdefault(row.id, []).append({"kind": kind, "detail": detail})
            worst.setdefault(row.id, (place, -badness))
            kinds[kind] += 1
    rows = {}
    measured = {row.id for row in measured_rows}
    last = (len(KINDS), 0.0)
    for item in items:
        row, id = item.row, item.record["id"]
        rows[id] = {
            "id": id,
            "number": numbers[id],
            "text": row.text or "",
            "seconds": round(row.seconds, 2),
            "speaker": row.speaker or "",
            "language": row.language or "",
            "draft": bool(item.record.get("draft")),
            "confidence": confidence if isinstance(confidence := item.record.get("confidence"), float | int) else None,
            "side": sides.get(id),
            "remarks": remarks.get(id, []),
            "measured": id in measured,
            "trimmed": len(files_of(item.record)) > 1,
            "cut": round(item.span.cut if item.span else _was_cut(item.record), 2),
        }
    # What is wrong, then what has no text, then drafts; among equals as they were recorded.
    order = sorted(rows, key=lambda id: (worst.get(id, last), bool(rows[id]["text"]), not rows[id]["draft"]))
    guessed = any(item.record.get("label_source") == "pseudo" for item in items)
    why = "useless_labels" if guessed else "" if any(row["text"] for row in rows.values()) else "useless_no_text"
    share, by = dataset.division()
    counts = Counter(sides.values())
    division = {"share": share, "by": by, **{side: counts[side] for side in train_test_split.SIDES}}
    return DatasetFindings(
        rows={id: rows[id] for id in order},
        spans={item.record["id"]: item.span for item in items if item.span},
        measured=len(items) - left,
        hours=sum(row["seconds"] for row in rows.values()) / 3600,
        speakers=len({row["speaker"] for row in rows.values()} - {""}),
        languages=len({row["language"] for row in rows.values()} - {""}),
        kinds={kind: kinds[kind] for kind in KINDS if kinds[kind]},
        divided=division if sides else None,
        missing=sum(item.row.sound.reason == "missing" for item in items),
        useless=say(why) if items and why and not dataset.usable() else "",
    )
