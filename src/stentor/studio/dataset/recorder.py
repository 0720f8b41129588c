"""The rows of step 1: phrases to read, what was recorded of each, and the routes that page/speak.js talks to.

A row is a phrase of the data set's script, or, after them, an empty one for words of one's own. It is known by its key:
the phrase's `prompt_id`, or `own-1`, `own-2`, ... The key is the `prompt` of the row's record, so a script that grows
or is exchanged takes no recording away from its phrase.

Rule for two pages that record the same row: one record a row, the last take wins, as in a redo. The earlier one is
replaced, and a person who replaces a take that their page had not shown gets a message.
"""

import contextlib
import copy
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from stentor.errors import AudioError, ConfigError
from stentor.studio.dataset.prompts import language_of, phrases_of, prompt_id
from stentor.studio.dataset.recordings import REMARKS, Levels, Remark, listen
from stentor.studio.files import clean_text, disk_errors, locked, read_json, write_json
from stentor.studio.projects import DataSet, Projects, Record
from stentor.studio.server.routes import body, dataset_of, route
from stentor.studio.uploaded_audio import Upload, checked, kind_of, read

TEN = 10
"""Rows that are added at a time."""
MOST_ROWS = 10_000
MOST_BYTES = 30_000_000
"""Bytes of the largest take."""
LONGEST = 180.0
"""Seconds of the longest take: 17 MB at 48 kHz. The page ends one after two minutes."""
LONGEST_PHRASE = 1000
"""Characters of a phrase: more than a minute of reading."""
_KEY = re.compile(r"[0-9a-f]{12}|own-[1-9][0-9]{0,4}")
_MARK = re.compile(r"[A-Za-z0-9-]{0,64}")


class PhraseRows:
    """The rows of a data set as they are on the disk, read once."""

    def __init__(self, dataset: DataSet):
        self.dataset = dataset
        self.language = language_of(dataset)
        self.script = {prompt_id(text, self.language): text for text in phrases_of(dataset)}
        self.records = {str(r["prompt"]): r for r in dataset.records() if r.get("prompt")}
        self.notes = read_json(dataset.folder / "rows.json")
        """Beside the manifest: `shown`, edited `texts` of rows that are not recorded, and what was `heard` in takes
        (nothing of it is trained on). A part that is damaged is made again."""
        for part in ("texts", "heard"):
            if not isinstance(self.notes.get(part), dict):
                self.notes[part] = {}
        self.texts, self.heard = self.notes["texts"], self.notes["heard"]
        keys = list(self.script)[:MOST_ROWS]
        self.keys = [*keys, *(f"own-{i}" for i in range(1, MOST_ROWS - len(keys) + 1))]

    @property
    def shown(self) -> int:
        """Number of rows that the page shows: ten and what was asked for, and every recorded one."""
        last = max((i for i, key in enumerate(self.keys, 1) if key in self.records), default=0)
        asked = self.notes.get("shown")
        return min(MOST_ROWS, max(TEN, asked if isinstance(asked, int) else 0, -(-last // TEN) * TEN))

    def row(self, key: str, number: int | None = None) -> dict[str, Any]:
        """One row, as JSON: the text is the record's, else as it was edited, else the phrase's."""
        record, phrase = self.records.get(key), self.script.get(key, "")
        shown: dict[str, Any] = {"key": key, "phrase": phrase, "text": str(self.texts.get(key) or phrase)}
        if number is not None:
            shown["number"] = number
        if record is not None:
            version, levels = _version(record), self.heard.get(key)
            seconds = record.get("duration", 0.0)
            shown |= {"text": record.get("text", ""), "id": record["id"], "take": version, "seconds": seconds}
            if isinstance(levels, dict) and levels.get("version") == version:
                remarks = [(name, Remark(name, values)) for name, values in levels["remarks"] if name in REMARKS]
                shown["remarks"] = [{"key": name, "sentence": remark.sentence} for name, remark in remarks]
                shown |= {"level": levels["level"], "peak": levels["peak"]}
        return shown

    def page(self, offset: int = 0, count: int | None = None) -> dict[str, Any]:
        """Rows from `offset` on (at most `count`, and those that are shown), with the progress."""
        shown = self.shown
        last = shown if count is None else min(shown, offset + count)
        rows = [self.row(self.keys[i], i + 1) for i in range(offset, last)]
        return {"rows": rows, "shown": shown, "script": len(self.script), "language": self.language, **self.progress()}

    def progress(self) -> dict[str, Any]:
        """Number of recorded rows, and their seconds in total."""
        done = [self.records[key] for key in self.keys if key in self.records]
        return {"recorded": len(done), "seconds": sum(r.get("duration", 0.0) for r in done)}


def rows(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the shown rows, or `count` of them from `offset` on."""
    query = request.query_params
    return PhraseRows(dataset_of(request, projects)).page(
        _number(query, "offset", 0, MOST_ROWS) or 0, _number(query, "count", 1, MOST_ROWS)
    )


def more(request: Request, projects: Projects) -> dict[str, Any]:
    """POST: ten rows more than the page has (`shown`), which are answered. What is shown already stays shown."""
    have = _number(request.query_params, "shown", 0, MOST_ROWS) or 0
    with _changed(dataset_of(request, projects)) as rows:
        rows.notes["shown"] = min(MOST_ROWS, max(rows.shown, have + TEN))
    return rows.page(have)


def take(request: Request, projects: Projects) -> dict[str, Any]:
    """POST with a WAV file as the body: save a recording of row `row`, whose text is `text`.

    `mark` is the page's own name of this take: sent again after a broken connection, it is not saved twice. `replaces`
    is the take of this row that the page knows of. Answers the row, the progress, and `replaced` when a take was
    replaced that the page did not know of.
    """
    query = request.query_params
    key, text, mark = _key(query), _text(query.get("text", "")), query.get("mark", "")
    if not _MARK.fullmatch(mark):
        raise ConfigError("The mark of a take is up to 64 letters, digits and -.")
    dataset = dataset_of(request, projects)
    audio, rate = _decoded(projects, body(request, MOST_BYTES))
    measured = listen(audio, rate)
    with _changed(dataset) as rows:
        old = rows.records.get(key)
        again = bool(mark) and old is not None and (rows.heard.get(key) or {}).get("mark") == mark
        if not again:
            if old is None:
                record = dataset.add(audio, rate, text, prompt=key)
            else:
                record = dataset.redo(old["id"], audio, rate)
            if record.get("text") != text:
                record = dataset.edit(record["id"], text=text)
            rows.records[key] = record
            figures = {"level": round(measured.level, 1), "peak": round(measured.peak, 1), "remarks": measured.remarks}
            rows.heard[key] = {"version": _version(record), "mark": mark, **figures}
            rows.texts.pop(key, None)
    replaced = not again and old is not None and _version(old) != query.get("replaces")
    return {"row": rows.row(key), "replaced": replaced, **rows.progress()}


def edit(request: Request, projects: Projects) -> dict[str, Any]:
    """POST with a text as the body: what is said in row `row`. An empty text brings the phrase of the script back."""
    key = _key(request.query_params)
    text = _text(body(request, 4 * LONGEST_PHRASE).decode("utf-8", "replace"))
    with _changed(dataset_of(request, projects)) as rows:
        text = text or rows.script.get(key, "")
        record = rows.records.get(key)
        if record is None:
            rows.texts.pop(key, None)
            if text != rows.script.get(key, ""):
                rows.texts[key] = text
        elif record.get("text") != text:
            rows.records[key] = rows.dataset.edit(record["id"], text=text)
    return {"row": rows.row(key), **rows.progress()}


def remove(request: Request, projects: Projects) -> dict[str, Any]:
    """POST: take a row's recording out of the data set; its text stays on the row."""
    key = _key(request.query_params)
    with _changed(dataset_of(request, projects)) as rows:
        record = rows.records.pop(key, None)
        if record is not None:
            rows.dataset.remove([record["id"]])
            rows.heard.pop(key, None)
            if record.get("text", "") != rows.script.get(key, ""):
                rows.texts[key] = record.get("text", "")
    return {"row": rows.row(key), **rows.progress()}


def audio(request: Request, projects: Projects) -> FileResponse:
    """GET: a recording of a data set, for every player of the page. Ranges work, so players can seek."""
    dataset = dataset_of(request, projects)
    path = dataset.audio(dataset.record(request.path_params["id"]))
    if not path.is_file():
        raise ConfigError("The file of this recording is not there any more.")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
    return FileResponse(path, media_type="audio/wav", headers=headers)


ROUTES: list[Route] = [
    route("/studio/speak/{dataset}/rows", rows),
    route("/studio/speak/{dataset}/more", more, ["POST"]),
    route("/studio/speak/{dataset}/take", take, ["POST"]),
    route("/studio/speak/{dataset}/text", edit, ["POST"]),
    route("/studio/speak/{dataset}/remove", remove, ["POST"]),
    route("/studio/audio/{dataset}/{id}", audio),
]


@contextlib.contextmanager
def _changed(dataset: DataSet) -> Iterator[PhraseRows]:
    """The rows of a data set, for a change of them; their notes are saved when they are others afterwards. The data set
    locks its own folder for each change; this lock makes looking and changing one."""
    with locked(dataset.folder / "audio"):
        rows = PhraseRows(dataset)
        before = copy.deepcopy(rows.notes)
        yield rows
        if rows.notes != before:
            write_json(dataset.folder / "rows.json", rows.notes)


def _decoded(projects: Projects, data: bytes) -> tuple[Any, int]:
    """(float32 mono [samples], sampling rate in Hz) of a WAV file's bytes. Raises AudioError for anything else."""
    path = projects.tmp / f"take-{secrets.token_hex(8)}.wav"
    try:
        with disk_errors(projects.folder):
            path.write_bytes(data)
        upload = Upload(path, "The recording")
        if data and kind_of(path) != "wav":
            raise AudioError("The recording is no WAV file: it was not saved.", "unreadable")
        seconds, rate = checked(upload)
        if seconds > LONGEST:
            raise AudioError(f"The recording lasts {seconds:.0f} s: at most {LONGEST:.0f} s are kept.", "too_long")
        return read(upload, rate), rate
    except AudioError as error:
        # A microphone that is muted gives zeros, which no reader of ours takes.
        if error.reason == "silent":
            raise AudioError(Remark("silent", {"level": Levels().level}).sentence, "silent") from None
        raise
    finally:
        path.unlink(missing_ok=True)


def _key(query: Mapping[str, str]) -> str:
    key = query.get("row", "")
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{key[:40]!r} is no row of the list.")
    return key


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """A whole number of the query; None when it is not given."""
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name} is a number from {least} to {most}, not {text[:40]!r}.")
    return int(text)


def _text(text: str) -> str:
    text = clean_text(text)
    if len(text) > LONGEST_PHRASE:
        raise ConfigError(f"A phrase of {len(text)} characters is too long to read aloud: at most {LONGEST_PHRASE}.")
    return text


def _version(record: Record) -> str:
    """Changes with each take of a record."""
    return str(record["audio_path"]).rpartition("/")[2]
