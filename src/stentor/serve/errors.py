"""Errors in the shape of OpenAI's, whatever raised them: `{"error": {"message", "type", "param", "code"}}`."""

import errno
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from stentor.errors import AudioError, StentorError, without_secrets
from stentor.web.body import TooLarge, TooSlow

log = logging.getLogger("stentor.serve")

CODES = {401: "invalid_api_key", 408: "timeout", 413: "file_too_large", 429: "rate_limit_exceeded"}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
BUSY = 1
"""Seconds after which a client may try again, at least."""


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


RESPONSES: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
"""For the OpenAPI page."""


class QueueClosed(StentorError):
    """The server is stopping."""

    def __init__(self) -> None:
        super().__init__("The server is stopping: send the request again in a minute.")


class ApiError(Exception):
    """A request that is answered with an error. `param` is the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or CODES.get(status)
        self.headers = {} if retry_after is None else {"retry-after": str(max(BUSY, retry_after))}

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = without_secrets(str(self))
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


@contextmanager
def blaming(field: str | None, fields: Mapping[str, str] | None = None, path: Path | None = None) -> Iterator[None]:
    """Context that blames errors of its block on a field of the request: the one of `fields` whose word is in the
    sentence, or `field`. The sentence does not show `path`. Raises ApiError."""
    try:
        yield
    except StentorError as error:
        message = str(error) if path is None else str(error).replace(f"{path}/", "")
        param = next((param for word, param in (fields or {}).items() if word in message), field)
        raise ApiError(400, message, param) from None


def api_error(error: BaseException) -> ApiError:
    """Error body for a client."""
    match error:
        case ApiError():
            return error
        case QueueClosed():
            return ApiError(503, str(error), retry_after=60)
        case AudioError():
            return ApiError(400, str(error), "file", f"audio_{error.reason}")
        case TooLarge():
            most = f"{error.most / 2**20:g} MiB"
            return ApiError(413, f"The upload is larger than {most}, the most that this server takes.")
        case TooSlow():
            return ApiError(408, str(error))
        case StentorError():
            return ApiError(400, str(error))
        case HTTPException():
            message = {404: "There is nothing at this address.", 405: "This address does not take this method."}
            problem = ApiError(error.status_code, message.get(error.status_code, str(error.detail)))
            problem.headers.update(error.headers or {})
            return problem
        case TimeoutError():
            return ApiError(408, "This took too long: send a shorter recording, or try again when fewer are waiting.")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return ApiError(503, "The server's disk is full: try again later.", retry_after=60)
        case OSError(errno=errno.EMFILE | errno.ENFILE | errno.EAGAIN | errno.ENOMEM):
            return ApiError(503, "The server has too much to do: try again later.", retry_after=10)
    return ApiError(500, f"Unexpected failure ({type(error).__name__}).")


def response(error: BaseException) -> JSONResponse:
    """The answer to a request that raised an error."""
    problem = api_error(error)
    return JSONResponse(problem.body(), problem.status, problem.headers)


def report(error: BaseException) -> None:
    """Log what is no fault of the request: its kind and place, not its message, which may hold what was sent."""
    if api_error(error).status >= 500 and not isinstance(error, ApiError | QueueClosed):
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        log.error("%s at %s", type(error).__name__, place, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)


async def answer(request: Request, error: Exception) -> JSONResponse:
    """For the app: the framework has answers of its own to HTTPException. Other errors reach the `Guard`."""
    return response(error)
