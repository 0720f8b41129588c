"""Block reader: the bytes of a file at an address, in large blocks that are fetched ahead of the reader."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from stentor.data.storage import (
    ATTEMPTS,
    BLOCK,
    LONGEST_WAIT,
    SAID_AFTER,
    filesystem,
    final_error,
    info,
    key_of,
    name_of,
    read_whole,
    retried,
    short,
)
from stentor.errors import DataError

AHEAD = 3
"""Blocks that are fetched ahead of the reader."""
SMALLEST = 2**18
"""Bytes that are asked for at least: fewer and fewer while connections break without a byte."""
PIECE = 2**17
"""Bytes that are taken from a connection at a time."""
PARTIAL = 206
"""HTTP status of an answer that is a part of the file."""


class BlockReader(io.RawIOBase):
    """The bytes at an address in blocks of `BLOCK` bytes, `AHEAD` of them under way."""

    def __init__(self, path: Any):
        self.path = path
        facts = info(path)
        if facts["type"] == "directory":
            raise DataError(f"{name_of(path)} is a folder, not a file.")
        size = facts["size"]
        self.content = read_whole(path) if size is None else None  # of unknown length: not in blocks
        self.size = len(self.content) if self.content is not None else int(size)
        self.place = 0
        self.pool = ThreadPoolExecutor(AHEAD)
        self.under_way: deque[tuple[int, Future[bytes]]] = deque()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}[whence]
        self.place = max(0, start + offset)
        return self.place

    def readinto(self, buffer: Any) -> int:
        if self.place >= self.size or not len(buffer):
            return 0
        start, block = self._block()
        data = memoryview(block)[self.place - start :][: len(buffer)]
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)

    def _block(self) -> tuple[int, bytes]:
        """The block that holds the place, and where it starts; those behind it are asked for."""
        if self.content is not None:
            return 0, self.content
        start = self.place - self.place % BLOCK
        if not any(at == start for at, _ in self.under_way):
            self._drop()
        while self.under_way and self.under_way[0][0] != start:
            self.under_way.popleft()[1].cancel()
        following = self.under_way[-1][0] + BLOCK if self.under_way else start
        while len(self.under_way) <= AHEAD and following < self.size:
            end = min(following + BLOCK, self.size)
            self.under_way.append((following, self.pool.submit(fetch, self.path, following, end)))
            following = end
        return start, self.under_way[0][1].result()

    def _drop(self) -> None:
        while self.under_way:
            self.under_way.popleft()[1].cancel()

    def close(self) -> None:
        if not self.closed:
            self._drop()
            self.pool.shutdown(wait=False, cancel_futures=True)
        super().close()


def fetch(path: Any, start: int, end: int) -> bytes:
    """The bytes from `start` to `end` of the file at an address. When a connection breaks, what has come stays, and the
    next one begins behind it. Raises NotFound, DataError."""
    parts: list[bytes] = []
    broken = 0
    while (at := start + sum(map(len, parts))) < end:
        until = min(end, at + max(SMALLEST, BLOCK >> broken))
        try:
            retried(path, partial(_receive, path, at, until, parts), attempts=1)
            broken = 0
        except DataError as error:
            if error.__cause__ is None or final_error(error.__cause__, path, "read") is not None:
                raise
            broken = 1 if start + sum(map(len, parts)) > at else broken + 1
            if broken == SAID_AFTER:
                print(f"Waiting for {name_of(path)} ({short(error.__cause__)}).", file=sys.stderr)
            if broken == ATTEMPTS:
                raise DataError(str(error).replace("1 times in a row", f"{broken} times in a row")) from error
            time.sleep(min(LONGEST_WAIT, 0.1 * 2 ** (broken - 1)))
    return b"".join(parts)


def _receive(path: Any, start: int, end: int, parts: list[bytes]) -> None:
    """Append bytes of a file to `parts` as they come. Raises what the file system raises, and ConnectionError for an
    answer without a byte."""
    from fsspec.asyn import sync

    system, before = filesystem(path), len(parts)
    if hasattr(system, "_call_s3"):
        sync(system.loop, _receive_s3, system, key_of(path), start, end, parts)
    elif hasattr(system, "set_session") and hasattr(system, "encode_url"):
        sync(system.loop, _receive_http, system, key_of(path), start, end, parts)
    else:
        parts.append(system.cat_file(key_of(path), start=start, end=end))
    if not any(parts[before:]):
        raise ConnectionError(f"the answer ends at byte {start:,}")


async def _receive_s3(system: Any, key: str, start: int, end: int, parts: list[bytes]) -> None:
    bucket, name, _ = system.split_path(key)
    answer = await system._call_s3("get_object", Bucket=bucket, Key=name, Range=f"bytes={start}-{end - 1}")
    async with answer["Body"] as body:
        while data := await body.read(PIECE):
            parts.append(data)


async def _receive_http(system: Any, key: str, start: int, end: int, parts: list[bytes]) -> None:
    session = await system.set_session()
    headers = {"Range": f"bytes={start}-{end - 1}"}
    async with session.get(system.encode_url(key), **{**system.kwargs, "headers": headers}) as answer:
        system._raise_not_found_for_status(answer, key)
        at = start if answer.status == PARTIAL else 0  # or it is the whole file
        async for data in answer.content.iter_chunked(PIECE):
            piece = data[max(0, start - at) : max(0, end - at)]
            at += len(data)
            if piece:
                parts.append(piece)
            if at >= end:
                return
