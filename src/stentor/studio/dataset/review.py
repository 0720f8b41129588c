"""Step 2: the findings of `stentor prepare check` in a data set, recording by recording, and the routes that
page/check_list.mjs talks to: what is wrong, and what a person does about it.

Decoding is the slow part: each file is heard once, in a thread, and what was measured is kept in `.sounds.jsonl` by the
file's name, time and size. The rules (stentor.data.outliers) then run over texts and measures each time that something
has changed, which takes milliseconds.
"""

import contextlib
import json
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from stentor.data.cut import check_text_fields
from stentor.data.fields import list_field, seconds_field
from stentor.data.outliers import KINDS, CheckedRecord
from stentor.data.signal_stats import SignalStats, measure_file
from stentor.dataloading.dataset_report import outliers_by_kind
from stentor.errors import ConfigError, DataError
from stentor.studio import train_test_split
from stentor.studio.files import stamp
from stentor.studio.projects import DataSet, Projects, Record
from stentor.studio.server.routes import dataset_of, json_body, route

MOST_ROWS = 200
"""Rows that are answered at a time."""
MOST_BYTES = 100_000
"""Bytes of the largest request."""
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
    """By id, what is wrong first: `id number text seconds speaker language draft confidence side remarks measured`, as
    JSON."""
    figures: dict[str, Any]
    """As JSON: `measured`, recordings that were heard so far (remarks on the others are to come), `hours`, numbers of
    `speakers` and `languages`, of recordings by the `kinds` of their remarks, and `share by train held_out` of the
    division in `divided` (null before the first)."""

    def chosen(self, show: str = "all", find: str = "") -> list[str]:
        """Ids of the rows to show: `all remarks unsure drafts no_text train held_out` or a kind of remark, and with the
        words `find` in their text; `unsure` are those with a confidence, the least certain first. Raises ConfigError
        for another choice."""
        if show not in (*SHOWN, *KINDS):
            choices = ", ".join((*SHOWN, *KINDS))
            raise ConfigError(f"{show[:40]!r} is no choice of recordings: use one of {choices}.")
        fits = SHOWN.get(show, lambda row: any(remark["kind"] == show for remark in row["remarks"]))
        words = find.casefold().split()
        rows = [r for r in self.rows.values() if fits(r) and all(w in r["text"].casefold() for w in words)]
        return [row["id"] for row in (sorted(rows, key=lambda r: r["confidence"]) if show == "unsure" else rows)]

    def counts(self) -> dict[str, int]:
        """Number of rows of each choice."""
        return {show: len(self.chosen(show)) for show in SHOWN}


def checked(dataset: DataSet) -> DatasetFindings:
    """Look at a data set; what was not heard before is heard from now on, in a thread, and counts as not `measured`.
    Raises StentorError for a manifest that cannot be read."""
    return _measurements(dataset).checked()


@dataclass
class _Item:
    """A record with the file to hear; without one, its row says why."""

    record: Record
    row: CheckedRecord
    key: Key | None = None
    path: Path | None = None


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
                    item.row.sound = self.sounds[item.key]
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
            path = self.dataset.audio(record) if record["audio_path"] not in files else None
        except (DataError, ConfigError) as error:
            row.sound = SignalStats("wrong", str(error))
            return item
        row.text, row.speaker, row.declared = record.get("text"), record.get("speaker"), seconds or 0.0
        row.language = record.get("language") or record.get("language_id")
        row.times = [] if record.get("segments") else words
        if path is None:
            path, times = self.dataset.folder / record["audio_path"], files[record["audio_path"]]
        elif (times := stamp(path)) is None:  # in a folder below, or a link: looked at one by one
            row.sound = SignalStats("missing", f"{record['audio_path']} is not there.")
            return item
        item.key, item.path = (record["audio_path"], *times, start, seconds), path
        return item

    def _hear(self, waiting: Iterable[_Item]) -> None:
        """Measure files, one after the other, and keep what was measured."""
        new: list[tuple[Key, SignalStats]] = []
        last = time.monotonic()
        for item in waiting:
            assert item.key and item.path
            try:
                sound = measure_file(item.path, item.key[3], item.key[4])
            except Exception as error:  # a decoder's own fault: the recording is reported, the others continue
                sound = SignalStats("unreadable", f"{item.key[0]} cannot be decoded ({type(error).__name__}).")
            sound.message = sound.message.replace(str(item.path), item.key[0])
            new.append((item.key, sound))
            with self.lock:
                self.sounds[item.key] = sound
            if time.monotonic() - last > SAVED_EVERY:
                self._keep(new)
                new, last = [], time.monotonic()
        self._keep(new)

    def _keep(self, new: list[tuple[Key, SignalStats]]) -> None:
        lines = "".join(json.dumps([*key, asdict(sound)]) + "\n" for key, sound in new)
        with contextlib.suppress(OSError), open(self.file, "a", encoding="utf-8") as file:  # deleted, or a full disk
            file.write(lines)


_known: OrderedDict[Path, _Measurements] = OrderedDict()
_known_lock = threading.Lock()


def _measurements(dataset: DataSet) -> _Measurements:
    with _known_lock:
        measurements = _known.pop(dataset.folder, None)
        # A data set that was deleted and made again has nothing of the old one.
        if measurements is None or (
            measurements.sounds
            and not measurements.file.exists()
            and not (measurements.thread and measurements.thread.is_alive())
        ):
            measurements = _Measurements(dataset)
        _known[dataset.folder] = measurements
        while len(_known) > REMEMBERED:
            _known.popitem(last=False)
        return measurements


def _saved(path: Path) -> Iterable[tuple[Key, SignalStats]]:
    """Rows of a file of measures; other lines are skipped."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):
            name, changed, size, start, seconds, sound = json.loads(line)
            yield (str(name), int(changed), int(size), float(start), seconds), SignalStats(**sound)


def _files(dataset: DataSet) -> dict[str, tuple[int, int]]:
    """Time and size of the files of `audio/` by the path that a manifest names them with; no links."""
    with contextlib.suppress(OSError), os.scandir(dataset.folder / "audio") as entries:
        plain = [(e.name, e.stat(follow_symlinks=False)) for e in entries if e.is_file(follow_symlinks=False)]
        return {f"audio/{name}": (status.st_mtime_ns, status.st_size) for name, status in plain}
    return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _answer(dataset: DataSet, items: list[_Item], left: int) -> DatasetFindings:
    sides = dataset.sides()
    measured_rows = [i.row for i in items if i.key is None or i.row.sound.rate or i.row.sound.reason]
    numbers = {item.record["id"]: number for number, item in enumerate(items, 1)}
    remarks: dict[str, list[dict[str, str]]] = {}
    worst: dict[str, tuple[int, float]] = {}
    kinds: Counter[str] = Counter()
    for place, (kind, suspicious) in enumerate(outliers_by_kind(measured_rows, {}).items()):
        for badness, row, detail in suspicious:
            if kind == "unusable":
                detail = row.sound.message
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
            "confidence": _number(item.record.get("confidence")),
            "side": sides.get(id),
            "remarks": remarks.get(id, []),
            "measured": id in measured,
        }
    # What is wrong, then what has no text, then drafts; among equals as they were recorded.
    order = sorted(rows, key=lambda id: (worst.get(id, last), bool(rows[id]["text"]), not rows[id]["draft"]))
    share, by = dataset.division()
    counts = Counter(sides.values())
    division = {"share": share, "by": by, **{side: counts[side] for side in train_test_split.SIDES}}
    figures = {
        "measured": len(items) - left,
        "hours": sum(row["seconds"] for row in rows.values()) / 3600,
        "speakers": len({row["speaker"] for row in rows.values()} - {""}),
        "languages": len({row["language"] for row in rows.values()} - {""}),
        "kinds": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
        "divided": division if sides else None,
    }
    return DatasetFindings({id: rows[id] for id in order}, figures)


def overview(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the ids of the rows to `show` (with the words `find` in their text), in the order that they are shown in,
    and the figures on top."""
    dataset, query = dataset_of(request, projects), request.query_params
    findings = checked(dataset)
    return {"order": findings.chosen(query.get("show", "all"), query.get("find", "")), **_figures(dataset, findings)}


def rows(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the rows with the given ids (`id`, many times); those that were removed meanwhile are left out."""
    ids = request.query_params.getlist("id")
    if len(ids) > MOST_ROWS:
        raise ConfigError(f"At most {MOST_ROWS} rows are answered at a time.")
    findings = checked(dataset_of(request, projects))
    return {"rows": [findings.rows[id] for id in ids if id in findings.rows]}


def edit(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, text}: correct a text. Without `text`, what stands there is right: it is no draft any more."""
    dataset, fields, id = _asked(request, projects)
    text = fields["text"] if "text" in fields else dataset.record(id).get("text", "")
    if not isinstance(text, str):
        raise ConfigError("The text of a recording is a string.")
    dataset.edit(id, text=text)
    return _row(dataset, id)


def move(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, side}: train on a recording, or hold it out, with all that must stay with it."""
    dataset, fields, id = _asked(request, projects)
    moved = dataset.move(id, str(fields.get("side")))
    return {**_row(dataset, id), "moved": moved}


def remove(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: take a recording out of the data set. It can be put back."""
    dataset, _, id = _asked(request, projects)
    dataset.remove([id])
    return _figures(dataset, checked(dataset))


def put_back(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: undo the removal of a recording."""
    dataset, _, id = _asked(request, projects)
    dataset.put_back([id])
    return _row(dataset, id)


def removed(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: what can be put back, the last first. POST: delete it for good."""
    dataset = dataset_of(request, projects)
    if request.method == "POST":
        dataset.forget_removed()
    records = dataset.removed()
    shown = [
        {"id": r["id"], "text": str(r.get("text") or ""), "seconds": r.get("duration") or 0.0}
        for r in records[:MOST_ROWS]
    ]
    return {"rows": shown, "removed": len(records)}


def _figures(dataset: DataSet, findings: DatasetFindings) -> dict[str, Any]:
    more = {"total": len(findings.rows), "counts": findings.counts(), "removed": len(dataset.removed())}
    return {**findings.figures, **more}


def _row(dataset: DataSet, id: str) -> dict[str, Any]:
    """A row after a change, with the figures. Raises ConfigError when it is gone."""
    findings = checked(dataset)
    if id not in findings.rows:
        dataset.record(id)  # says that it is not there
    return {"row": findings.rows[id], **_figures(dataset, findings)}


def _asked(request: Request, projects: Projects) -> tuple[DataSet, dict[str, Any], str]:
    """The data set, the fields of the body and the recording that these name (`id`). Raises ConfigError."""
    fields = json_body(request, MOST_BYTES, "The request is no JSON object.")
    if not isinstance(id := fields.get("id"), str):
        raise ConfigError("The request names no recording (id).")
    return dataset_of(request, projects), fields, id


ROUTES: list[Route] = [
    route("/studio/check/{dataset}", overview),
    route("/studio/check/{dataset}/rows", rows),
    route("/studio/check/{dataset}/edit", edit, ["POST"]),
    route("/studio/check/{dataset}/move", move, ["POST"]),
    route("/studio/check/{dataset}/remove", remove, ["POST"]),
    route("/studio/check/{dataset}/back", put_back, ["POST"]),
    route("/studio/check/{dataset}/removed", removed, ["GET", "POST"]),
]
