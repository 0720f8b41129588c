"""Streams: answers that end when their client goes."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from stentor.serve.errors import api_error, report

T = TypeVar("T")
R = TypeVar("R", bound=Response)
log = logging.getLogger("stentor.serve")
WARNING = "x-stentor-warning"
"""Header of an answer with sentences about what has no effect."""


async def unless_gone(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection. Raises ClientDisconnect then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for part in (task, gone):
            part.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def warned(response: R, warnings: Sequence[str]) -> R:
    """The answer with warnings in its header, which are logged as well."""
    if warnings:
        response.headers[WARNING] = " ".join(warnings)
        log.warning(" ".join(warnings))
    return response


class Stream(StreamingResponse):
    """Parts as they come; when the client goes, no more are made. What goes wrong on the way breaks the connection."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str):
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(parts, media_type=media_type, headers=unbuffered)
        self.parts = parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Starlette's own looks for a client that goes only at the next part, where the server is of a newer ASGI.
        async with aclosing(self.parts):
            await unless_gone(receive, self.stream_response(send))


def event_stream(events: AsyncGenerator[dict[str, Any], None]) -> Stream:
    """Server-sent events. What goes wrong on the way is the last one, `{"error": {...}}`."""
    return Stream(_encoded(events), "text/event-stream")


async def _encoded(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(events):
            async for event in events:
                yield _event(event)
    except Exception as error:
        report(error)
        yield _event(api_error(error).body())


def _event(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False, allow_nan=False)}\n\n".encode()
