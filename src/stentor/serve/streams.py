"""Streams: answers that end when their client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi.responses import Response

from stentor.serve.errors import api_error, report
from stentor.serve.responses import server_sent

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection."""


async def unless_gone(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection. Raises ClientGone then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for part in (task, gone):
            part.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventResponse(Response):
    """Server-sent events as they come. What goes wrong on the way is the last event, `{"error": {...}}`."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Any, None], close: Callable[[], None]):
        """`close` is called in the end, however it ends."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events, self.close = events, close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def work() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async with aclosing(self.events) as events:
                    async for event in events:
                        await self._send(send, event)
            except Exception as error:
                await self._failed(send, error)
            await send({"type": "http.response.body", "body": b""})

        try:
            with suppress(ClientGone):
                await unless_gone(receive, work())
        finally:
            self.close()

    async def _send(self, send: Any, event: Any) -> None:
        await send({"type": "http.response.body", "body": server_sent(event).encode(), "more_body": True})

    async def _failed(self, send: Any, error: Exception) -> None:
        report(error)
        await self._send(send, api_error(error).body())


class AudioResponse(EventResponse):
    """Audio as it comes. What goes wrong on the way breaks the connection, as audio has no place for it."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str, close: Callable[[], None]):
        self.media_type = media_type
        super().__init__(parts, close)

    async def _send(self, send: Any, event: bytes) -> None:
        await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _failed(self, send: Any, error: Exception) -> None:
        raise error
