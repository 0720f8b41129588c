"""Routes of runs: the report, held-out recordings and made speech that a run's page links to, and live listening.

Only files of the person's own projects folder are served, whatever a run's files name.

Live is what a trained model hears while one speaks at the page (page/live.mjs), piece by piece. A page opens a stream
and gets its name, sends pieces of audio one after the other, each answered with the events that it brought
(`stentor.inference.stream`), and sends a last one when it stops or goes. A page that goes without a word is forgotten
after `IDLE` seconds.
"""

import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from stentor.errors import ConfigError
from stentor.inference.stream.base import Event
from stentor.inference.stream.stream import Stream
from stentor.report.pages import script
from stentor.report.sounds import audio_of
from stentor.studio.files import inside
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs, try_model
from stentor.studio.runs.jobs import Job
from stentor.studio.runs.progress import progress_of
from stentor.studio.server.routes import RouteResult, body, json_body, route
from stentor.studio.texts import say

LONGEST = 60.0
"""Seconds of a recording that is played on a run's page."""
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}
IDLE = 60.0
"""Seconds without a piece after which a stream is forgotten."""
MOST = 8
"""Streams at a time; beyond them the one that was silent longest is forgotten."""
MOST_BYTES = 4_000_000
"""Limit of a piece: 40 s at 48 kHz. A page sends what it has gathered, up to a quarter of this."""
RATES = range(8000, 192_001)


def report(request: Request, projects: Projects) -> RouteResult:
    """A run's report.html, in an origin of its own.

    Transcripts are in it. They are escaped, it may load nothing, and no script but our own runs in it; and should all
    of that fail, it still is a stranger to the studio: no cookie, no storage, no request that would be answered.
    """
    path = _job(request, projects).folder / "report.html"
    if not path.is_file() or path.is_symlink():
        raise ConfigError("This run has no report yet: it is written when the run has finished.")
    policy = (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
        f"script-src 'sha256-{script()[1]}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {**_HEADERS, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    return Response(path.read_bytes(), media_type="text/html", headers=headers)


def sound(request: Request, projects: Projects) -> RouteResult:
    """A recording that the run was asked about (`?set=NAME&id=ID`), as 16 kHz WAV, at most a minute of it.

    What a run writes about a recording always has its duration.
    """
    job = _job(request, projects)
    record = _record(job, request.query_params.get("set", ""), request.query_params.get("id", ""))
    path = _file_of(projects, record.get("audio_path"))
    part = {"audio_path": str(path), "start": float(record.get("start") or 0.0), "channel": record.get("channel")}
    if record.get("duration"):
        part["duration"] = min(float(record["duration"]), LONGEST)
    wav = audio_of(part)
    if wav is None:
        raise ConfigError("This recording cannot be read any more.")
    return Response(wav, media_type="audio/wav", headers=_HEADERS)


def spoken(request: Request, projects: Projects) -> RouteResult:
    """A file of speech that the run made (`samples/step-000400/SET/ID.wav`)."""
    job = _job(request, projects)
    path = inside(job.training, request.path_params["path"])
    if not path.is_relative_to((job.training / "samples").resolve()) or path.suffix != ".wav" or not path.is_file():
        raise ConfigError("There is no such recording.")
    return FileResponse(path, media_type="audio/wav", headers=_HEADERS)


def _job(request: Request, projects: Projects) -> Job:
    return jobs.find(projects, request.path_params["name"])


def _record(job: Job, name: str, id: str) -> dict[str, Any]:
    followed = progress_of(job.training)
    with followed.lock:
        for (_, set_name), steps in followed.samples.items():
            for row in steps[max(steps)] if set_name == name else ():
                if str(row.get("id")) == id and isinstance(row.get("record"), dict):
                    return row["record"]
    raise ConfigError("There is no such recording.")


def _file_of(projects: Projects, path: Any) -> Path:
    """The file, links resolved, if it is one of the person's own."""
    if isinstance(path, str) and "\0" not in path:
        resolved = (projects.folder / path).resolve()
        if resolved.is_relative_to(projects.folder) and resolved.is_file():
            return resolved
    raise ConfigError("This recording is not in the projects folder: it cannot be played here.")


@dataclass
class LiveStream:
    """One page that listens."""

    person: Projects
    stream: Stream
    last: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class LiveStreams:
    """The streams of all pages, by their names."""

    def __init__(self) -> None:
        self.streams: dict[str, LiveStream] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def add(self, live: LiveStream) -> str:
        with self._lock:
            self._forget(MOST - 1)
            name = secrets.token_urlsafe(16)
            self.streams[name] = live
            if self._timer is None:
                self._look()
        return name

    def get(self, name: str, person: Projects, remove: bool) -> LiveStream:
        """A person's own stream. Raises ConfigError where it is none or forgotten."""
        with self._lock:
            live = self.streams.get(name)
            if live is None or live.person is not person:
                raise ConfigError(say("live_gone"))
            live.last = time.monotonic()
            if remove:
                del self.streams[name]
        return live

    def _forget(self, most: int) -> None:
        newest = sorted(self.streams.items(), key=lambda item: -item[1].last)[:most]
        late = time.monotonic() - IDLE
        self.streams = {name: live for name, live in newest if live.last >= late or live.lock.locked()}

    def _look(self) -> None:
        """Look again while there is a stream."""
        with self._lock:
            self._forget(MOST)
            self._timer = threading.Timer(IDLE, self._look) if self.streams else None
            if self._timer is not None:
                self._timer.daemon = True
                self._timer.start()


STREAMS = LiveStreams()
"""Streams of this process."""


def _open(request: Request, projects: Projects) -> RouteResult:
    fields = json_body(request, 10_000, say("live_gone"))
    run, language, rate = (fields.get(key) for key in ("run", "language", "rate"))
    if not isinstance(run, str) or not isinstance(language, str | None) or rate not in RATES:
        raise ConfigError(say("live_gone"))
    trial = try_model.trial(projects, run)
    models = try_model.MODEL_CACHE
    with models.lock:
        stream = models.get(trial.export, try_model.device(projects)).stream(int(rate), language or None)
    return {"name": STREAMS.add(LiveStream(projects, stream)), "policy": stream.recogniser.policy}


def _feed(request: Request, projects: Projects) -> RouteResult:
    """The events of a piece, 16-bit little-endian samples of one channel; `last` ends the stream."""
    last = "last" in request.query_params
    live = STREAMS.get(request.path_params["name"], projects, last)
    data = body(request, MOST_BYTES)
    samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 2**15
    # One model computes at a time, as with clips.
    with live.lock, try_model.MODEL_CACHE.lock:
        events: list[Event] = live.stream.feed(samples)
        if last:
            events += live.stream.finish()
        live.last = time.monotonic()
    return {"events": events}


ROUTES = [
    route("/studio/runs/{name}/report", report),
    route("/studio/runs/{name}/sound", sound),
    route("/studio/runs/{name}/spoken/{path:path}", spoken),
    route("/studio/live", _open, ["POST"]),
    route("/studio/live/{name}", _feed, ["POST"]),
]
