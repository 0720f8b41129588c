"""Routes for what a run's page links to: its report, held-out recordings, speech that it made.

Only files of the person's own projects folder are served, whatever a run's files name.
"""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from stentor.errors import ConfigError
from stentor.report.report import script
from stentor.report.sounds import audio_of
from stentor.studio.files import inside
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs
from stentor.studio.runs.jobs import Job
from stentor.studio.runs.progress import progress_of
from stentor.studio.server.routes import RouteResult, route

LONGEST = 60.0
"""Seconds of a recording that is played on a run's page."""
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}


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


ROUTES = [
    route("/studio/runs/{name}/report", report),
    route("/studio/runs/{name}/sound", sound),
    route("/studio/runs/{name}/spoken/{path:path}", spoken),
]
