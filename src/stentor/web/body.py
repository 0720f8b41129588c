"""Bodies of requests, with a limit on their size and, for strangers, on their time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator

import anyio
from starlette.requests import Request

from stentor.errors import StentorError

SILENT, SLOWEST = 60.0, 4000
"""Seconds that a sender may be silent, and bytes a second of the slowest one, who has these seconds besides."""


class TooLarge(StentorError):
    """A request's body has more bytes than are taken."""

    def __init__(self, most: int, message: str = ""):
        super().__init__(message or f"This is larger than {most / 1e6:.0f} MB, which is the most that is taken here.")
        self.most = most


class TooSlow(StentorError):
    """A request's body comes too slowly."""


async def chunks(request: Request, most: int, timed: bool = False) -> AsyncGenerator[bytes, None]:
    """The body of a request as it comes. Raises TooLarge beyond `most` bytes, of which at most one chunk more is read,
    TooSlow where it is `timed`, and starlette's ClientDisconnect."""
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdecimal() else 0
    stream, received, began = request.stream(), 0, time.monotonic()
    while size <= most:
        left = min(SILENT, began + SILENT + received / SLOWEST - time.monotonic()) if timed else None
        try:
            chunk = await asyncio.wait_for(anext(stream, b""), left)
        except TimeoutError:
            raise TooSlow("The upload came too slowly: send it again, or a smaller file.") from None
        if not chunk:
            return
        received += len(chunk)
        size = max(size, received)
        if size <= most:
            yield chunk
    raise TooLarge(most)


async def read(request: Request, most: int, timed: bool = False) -> bytes:
    """The whole body of a request. Raises as `chunks`."""
    return b"".join([chunk async for chunk in chunks(request, most, timed)])


def chunks_in_thread(request: Request, most: int) -> Iterator[bytes]:
    """The same in a thread of the server: no second thread is waited for, of which uploads could take all."""
    source = chunks(request, most)
    while (chunk := anyio.from_thread.run(anext, source, None)) is not None:
        yield chunk
