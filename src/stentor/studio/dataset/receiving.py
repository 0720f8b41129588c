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
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from stentor.errors import ConfigError, StentorError, without_secrets
from stentor.studio.dataset import long_recordings, prompts
from stentor.studio.dataset.uploads import MOST_FILES, MOST_TEXT, TRANSCRIPTS, add_uploads
from stentor.studio.dataset_folder import label
from stentor.studio.files import disk_errors, inside, read_json, write_json
from stentor.studio.phrases import checked_language, language_name
from stentor.studio.projects import Projects
from stentor.studio.server.routes import dataset_of, json_body, route
from stentor.studio.texts import say
from stentor.studio.uploaded_audio import MOST_BYTES, Upload, kind_of, shown
from stentor.web.body import TooLarge, chunks_in_thread

MOST_BATCH = 4 * 2**30
"""Bytes of all files of one upload."""
SPARE = 200 * 2**20
"""Bytes that are left free on the disk."""
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
    name = shown(request.query_params.get("name", ""))
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
        raise TooLarge(most, say(text, name=name, most=f"{max(0, most) / 1e6:.0f}")) from None
    finally:
        part.unlink(missing_ok=True)
    write_json(folder / f"name-{number}.json", {"name": name})
    return {"size": path.stat().st_size, "kind": kind_of(path)}


def take(request: Request, projects: Projects) -> StreamingResponse:
    """POST {batch, files, pasted, language, speaker}: put files of a batch (their numbers, in order) into a data set.

    Answers a JSON object a line: {"done", "of"} during the work, and at the end {"taken", "refused"} or {"error"}. It
    continues when the page is closed.
    """
    dataset = dataset_of(request, projects)
    asked = _asked(request)
    folder = _folder(projects, str(asked.get("batch", "")))
    # By the endings of their names: what a recording really is, is looked at later.
    files = _files(folder, asked.get("files"))
    audio, texts = [f for f in files if not _is_text(f.name)], [f for f in files if _is_text(f.name)]
    language, speaker = _language(asked), label(_text(asked, "speaker"))
    pasted = _text(asked, "pasted") or ""
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    with _lock:  # sent again after a broken connection, while the first request is still running
        if folder in _taking:
            raise ConfigError(say("upload_busy"))
        _taking.add(folder)

    def progress(clips: int, of: int) -> None:
        rows.put({"done": clips, "of": of})

    def work() -> None:
        try:
            done = add_uploads(dataset, audio, texts, pasted, language, speaker, progress)
            rows.put(
                {
                    "taken": [_about(name, records) for name, records in done.taken],
                    "refused": [without_secrets(line) for line in done.refused[:MOST_SHOWN]],
                    "more": max(0, len(done.refused) - MOST_SHOWN),
                    "records": len(done.records),
                }
            )
            shutil.rmtree(folder, ignore_errors=True)
        except StentorError as error:
            rows.put({"error": without_secrets(str(error))})
        except Exception as error:
            rows.put({"error": say("unexpected", kind=type(error).__name__)})
            raise
        finally:
            _taking.discard(folder)
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


def _about(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "records": len(records),
        "seconds": sum(r.get("duration", 0.0) for r in records),
        "texts": [r.get("text", "")[:200] for r in records[:3]],
    }


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


def _is_text(name: str) -> bool:
    return name.rpartition(".")[2].lower() in TRANSCRIPTS and "." in name


def _limit(name: str) -> int:
    return MOST_TEXT if _is_text(name) else MOST_BYTES


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
    route("/studio/take/{dataset}", take, methods=("POST",)),
    route("/studio/long/{dataset}", long),
    route("/studio/long/{dataset}", split, methods=("POST",)),
    route("/studio/long/{dataset}/{id}/{what}", steer, methods=("POST",)),
    route("/studio/phrases/{dataset}", phrases),
    route("/studio/phrases/{dataset}", choose, methods=("POST",)),
]
