"""Files that a browser sends: into the person's own folder piece by piece, then into a data set.

The routes (`ROUTES`, below) that page/upload.mjs and page/phrases.mjs talk to. A batch is named by the page (16
hexadecimal digits), and its files are numbered: no name that a browser sends becomes part of a path.
"""

import base64
import json
import queue
import re
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from stentor.data.layouts.transcripts import ENDINGS
from stentor.errors import ConfigError, StentorError, without_secrets
from stentor.studio.dataset import long_recordings, prompts
from stentor.studio.dataset.planning import Fate, Row
from stentor.studio.dataset.unpacking import MOST_BATCH, MOST_FILES, MOST_TEXT, SPARE, ending, path_of
from stentor.studio.dataset.uploads import add_uploads, planned_uploads
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import disk_errors, inside, label, read_json, write_json
from stentor.studio.phrases import checked_language, language_name
from stentor.studio.projects import Projects
from stentor.studio.server.routes import dataset_of, json_body, route
from stentor.studio.texts import say
from stentor.studio.uploaded_audio import MOST_BYTES, Upload, kind_of, shown
from stentor.web.body import TooLarge, chunks_in_thread

MOST_ASKED = 4 * 2**20
"""Bytes of the pasted lines and the like."""
KEPT = 24 * 3600.0
"""Seconds after which files that were sent and never taken are deleted, and other things that were left."""
MOST_SHOWN = 200
"""Sentences that are answered about what was not taken."""
_BATCH = re.compile(r"[0-9a-f]{16}")
_LEFT = ("upload-", "take-", "card-", "plan-", "run-", "deleted-")
"""Files that stay in a tmp folder when a process is killed in the middle."""
_taking: set[Path] = set()
"""Batches that are being put into a data set now."""
_lock = threading.Lock()


def receive(request: Request, projects: Projects) -> dict[str, Any]:
    """PUT: keep one file of a batch. Raises TooLarge beyond the limits of a file, of a batch and of the disk."""
    folder = _folder(projects, request.path_params["batch"])
    number = int(request.path_params["number"])
    if number >= MOST_FILES * 2:
        raise ConfigError(say("upload_too_many", most=MOST_FILES))
    name = path_of(request.query_params.get("name", ""))
    with disk_errors(projects.tmp):
        if not folder.exists():
            _tidy(projects)
        folder.mkdir(exist_ok=True)
        held = sum(p.stat().st_size for p in folder.glob("[0-9]*"))
        most = min(MOST_BATCH - held, _limit(name), shutil.disk_usage(folder).free - SPARE)
    part, path = folder / f"part-{number}", folder / str(number)
    try:
        with disk_errors(path), open(part, "wb") as file:
            for chunk in chunks_in_thread(request, most):
                file.write(chunk)
        with disk_errors(path):
            part.replace(path)
    except TooLarge:
        text = "upload_full" if most < _limit(name) else "upload_large"
        raise TooLarge(most, say(text, name=shown(name), most=f"{max(0, most) / 1e6:.0f}")) from None
    finally:
        part.unlink(missing_ok=True)
    write_json(folder / f"name-{number}.json", {"name": name})
    return {"size": path.stat().st_size, "kind": kind_of(path)}


def preview(request: Request, projects: Projects) -> dict[str, Any]:
    """POST as `take`: what that will do, and nothing is done."""
    given = _given(request, projects)
    plan = planned_uploads(*given.upload)
    first = sorted(plan.rows, key=lambda row: not (row.note or row.guess))
    fates = Counter(row.fate for row in plan.rows)
    return {
        "rows": [_shown_row(row) for row in first[:MOST_SHOWN]],
        "more": max(0, len(first) - MOST_SHOWN),
        "counts": {
            **{fate: fates[fate] for fate in get_args(Fate)},
            "silent": sum(row.fate == "new" and not row.text for row in plan.rows),
            "guess": sum(row.guess for row in plan.rows),
        },
        "remarks": [without_secrets(line) for line in [*plan.remarks, *plan.unused][:MOST_SHOWN]],
        "unfitting": plan.unfitting,
    }


def take(request: Request, projects: Projects) -> StreamingResponse:
    """POST {batch, files, pasted, language, speaker, confirmed}: put files of a batch (their numbers, in order) into a
    data set.

    Answers a JSON object a line: {"done", "of"} during the work, and at the end {"records", "filled", "refused"} or
    {"error"}. It continues when the page is closed.
    """
    given = _given(request, projects)
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    with _lock:  # sent again after a broken connection, while the first request is still running
        if given.folder in _taking:
            raise ConfigError(say("upload_busy"))
        _taking.add(given.folder)

    def work() -> None:
        try:
            done = add_uploads(
                *given.upload, on_clip=lambda clips, of: rows.put({"done": clips, "of": of}), confirmed=given.confirmed
            )
            rows.put(
                {
                    "records": len(done.records) - done.filled,
                    "filled": done.filled,
                    "refused": [without_secrets(line) for line in done.refused[:MOST_SHOWN]],
                    "more": max(0, len(done.refused) - MOST_SHOWN),
                }
            )
            shutil.rmtree(given.folder, ignore_errors=True)
        except StentorError as error:
            rows.put({"error": without_secrets(str(error))})
        except Exception as error:
            rows.put({"error": say("unexpected", kind=type(error).__name__)})
            raise
        finally:
            _taking.discard(given.folder)
            rows.put(None)

    # In a thread of its own, so that what was sent is taken even when the client has gone.
    threading.Thread(target=work, name="take").start()
    lines = (json.dumps(row).encode() + b"\n" for row in iter(rows.get, None))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


def long(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: what is being split for a data set, and (with `?models`) what can write first texts."""
    dataset = dataset_of(request, projects)
    answer: dict[str, Any] = {"works": long_recordings.works(projects, dataset.name)}
    if "models" in request.query_params:
        models = long_recordings.writers(projects)
        answer["models"] = [{"label": text, "choice": choice} for choice, (text, _) in models.items()]
    return answer


def split(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {batch, files, model, language, speaker}: begin to split the recordings of a batch."""
    dataset = dataset_of(request, projects)
    asked = _asked(request)
    folder = _folder(projects, str(asked.get("batch", "")))
    files = _files(folder, asked.get("files"))
    sound = [f for f in files if kind_of(f.path) is not None]
    refused = [say("not_audio", name=shown(f.name)) for f in files if f not in sound]
    if not sound and refused:
        raise ConfigError(" ".join(refused))
    speaker = label(_text(asked, "speaker"))
    id = long_recordings.start(projects, dataset.name, sound, _text(asked, "model") or "", _language(asked), speaker)
    shutil.rmtree(folder, ignore_errors=True)
    return {"id": id, "refused": refused}


def steer(request: Request, projects: Projects) -> dict[str, Any]:
    """POST: stop it, resume it, or remove it from the list."""
    steps = {"stop": long_recordings.stop, "resume": long_recordings.resume, "forget": long_recordings.forget}
    what = request.path_params["what"]
    if what not in steps:
        raise ConfigError(say("long_unknown"))
    steps[what](projects, request.path_params["id"])
    return long(request, projects)


def phrases(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the source in use and the others of the data set's language. Fast: the network is not touched."""
    dataset = dataset_of(request, projects)
    language = prompts.language_of(dataset)
    return {
        "source": prompts.source_of(dataset),
        "count": len(prompts.phrases_of(dataset)),
        "own": prompts.stored_phrases(dataset, "own"),
        "language": language_name(language),
        "wanted": prompts.WANTED,
        "sources": [source._asdict() for source in prompts.sources(language)],
    }


def choose(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {source, own, file: {name, data in base64}, count}: change what is read. Own phrases are those pasted and
    those of the file."""
    dataset = dataset_of(request, projects)
    asked = _asked(request)
    source, file, pasted = str(asked.get("source", "")), asked.get("file"), _text(asked, "own")
    own_phrases: list[str] | None = None
    if source == "own" and (pasted or file):
        own_phrases = prompts.own_list(pasted) if pasted else []
        if isinstance(file, dict):
            try:
                data = base64.b64decode(str(file.get("data", "")), validate=True)
            except ValueError:
                raise ConfigError(say("upload_unknown")) from None
            own_phrases += prompts.own_list(name=shown(str(file.get("name", ""))), data=data)
        own_phrases = list(dict.fromkeys(own_phrases))
    count = asked.get("count")
    number = count if isinstance(count, int) and not isinstance(count, bool) else prompts.WANTED
    return {"said": prompts.set_source(dataset, source, own_phrases, number), **phrases(request, projects)}


def _shown_row(row: Row) -> dict[str, Any]:
    shown_fields = {"name": row.name, "fate": row.fate, "seconds": row.seconds, "speaker": row.speaker}
    return {**shown_fields, "text": row.text[:200], "note": without_secrets(row.note), "guess": row.guess}


class _Given(NamedTuple):
    """Request of a page with the files of a batch."""

    folder: Path
    upload: tuple[DataSet, list[Upload], tuple[()], str, str | None, str | None]
    """Data set, files, no files that must be transcripts, pasted lines, language and speaker."""
    confirmed: bool


def _given(request: Request, projects: Projects) -> _Given:
    dataset, asked = dataset_of(request, projects), _asked(request)
    folder, pasted = _folder(projects, str(asked.get("batch", ""))), _text(asked, "pasted") or ""
    files = [] if pasted and asked.get("files") == [] else _files(folder, asked.get("files"))
    upload = (dataset, files, (), pasted, _language(asked), label(_text(asked, "speaker")))
    return _Given(folder, upload, asked.get("confirmed") is True)


def _folder(projects: Projects, batch: str) -> Path:
    if not _BATCH.fullmatch(batch):
        raise ConfigError(say("upload_unknown"))
    return inside(projects.tmp, f"upload-{batch}")


def _files(folder: Path, requested: Any) -> list[Upload]:
    """Files of a batch in the order that was asked for, which is the one that the person saw; without one, all by their
    numbers. Raises ConfigError for what is not there."""
    present = sorted(int(p.name) for p in folder.glob("[0-9]*") if p.name.isdecimal()) if folder.is_dir() else []
    if not present:
        raise ConfigError(say("upload_unknown" if requested else "upload_none"))
    numbers = requested if isinstance(requested, list) and requested else present
    if len(set(map(str, numbers))) < len(numbers) or any(n not in present or isinstance(n, bool) for n in numbers):
        raise ConfigError(say("upload_unknown"))
    names = {n: str(read_json(folder / f"name-{n}.json").get("name") or n) for n in numbers}
    return [Upload(folder / str(n), names[n]) for n in numbers]


def _limit(name: str) -> int:
    return MOST_TEXT if ending(name) in ENDINGS else MOST_BATCH if ending(name) == "zip" else MOST_BYTES


def _asked(request: Request) -> dict[str, Any]:
    return json_body(request, MOST_ASKED, say("upload_unknown"), empty=b"{}")


def _text(asked: dict[str, Any], key: str) -> str | None:
    value = asked.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _language(asked: dict[str, Any]) -> str | None:
    return checked_language(_text(asked, "language"))


def _tidy(projects: Projects) -> None:
    """Delete batches that were never taken, and the remains of killed processes."""
    for path in projects.tmp.iterdir():
        if path.name.startswith(_LEFT) and time.time() - path.stat().st_mtime > KEPT:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


ROUTES: list[Route] = [
    route("/studio/upload/{batch}/{number:int}", receive, methods=("PUT",)),
    route("/studio/preview/{dataset}", preview, methods=("POST",)),
    route("/studio/take/{dataset}", take, methods=("POST",)),
    route("/studio/long/{dataset}", long),
    route("/studio/long/{dataset}", split, methods=("POST",)),
    route("/studio/long/{dataset}/{id}/{what}", steer, methods=("POST",)),
    route("/studio/phrases/{dataset}", phrases),
    route("/studio/phrases/{dataset}", choose, methods=("POST",)),
]
