"""JSON routes of the studio's own, beside Gradio's: what must be fluid on the page does not go through its queue.

A route is a plain function `(request, projects) -> answer`. It runs in a thread, and `projects` is the folder of the
person who asks: the server (server.py) has put it there, so no route can reach another's.
"""

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stentor.errors import ConfigError, StentorError, without_secrets
from stentor.studio.projects import DataSet, Projects
from stentor.studio.texts import for_page, say
from stentor.web.body import TooLarge, read

HEADER = "X-Stentor"
"""A header that a form or an image of another site cannot send: requests that change something must carry it."""
PROJECTS = "stentor.projects"
"""Where a request's scope holds the person's `Projects`."""
RouteResult = dict[str, Any] | list[Any] | Response | None


def route(path: str, function: Callable[[Request, Projects], RouteResult], methods: Sequence[str] = ("GET",)) -> Route:
    """A route below `/studio/`. What the function answers becomes JSON, unless it is a Response; a StentorError becomes
    status 400 (413 for a body that is too large) with `{"error": sentence}`, anything else 500."""

    async def endpoint(request: Request) -> Response:
        if request.method not in ("GET", "HEAD") and HEADER not in request.headers:
            return _problem(f"This request lacks the header {HEADER}: it did not come from the studio's page.", 403)
        try:
            answer = await run_in_threadpool(function, request, request.scope[PROJECTS])
        except TooLarge as error:
            return _problem(str(error), 413)
        except StentorError as error:
            return _problem(str(error), 400)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
            return _problem(say("unexpected", kind=type(error).__name__), 500)
        if isinstance(answer, Response):
            return answer
        return JSONResponse(answer if answer is not None else {}, headers={"Cache-Control": "no-store"})

    return Route(path, endpoint, methods=list(methods))


def dataset_of(request: Request, projects: Projects) -> DataSet:
    """The data set that a route's path names. Raises ConfigError."""
    return projects.dataset(request.path_params["dataset"])


def body(request: Request, most: int) -> bytes:
    """The body of a request, inside a route's function. Raises TooLarge beyond `most` bytes, of which at most one chunk
    more is read."""
    return anyio.from_thread.run(read, request, most)


def json_body(request: Request, most: int, problem: str, empty: bytes = b"") -> dict[str, Any]:
    """The JSON object in the body of a request (`empty` stands for an empty body). Raises ConfigError(`problem`) for
    anything else, TooLarge as `body`."""
    try:
        fields = json.loads(body(request, most) or empty)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ConfigError(problem)
    return fields


def _problem(sentence: str, status: int) -> Response:
    return JSONResponse({"error": for_page(sentence)}, status, headers={"Cache-Control": "no-store"})
