"""Block reader: the bytes of a file at an address, in large blocks that are fetched ahead of the reader."""

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from stentor.data.file_system import BLOCK, filesystem, is_web, key_of, retried

AHEAD = 3
"""Blocks that are fetched ahead of the reader."""
SMALLEST = 2**18
"""Bytes that are asked for at least: fewer and fewer while connections break."""
PIECE = 2**17
"""Bytes that are taken from a connection at a time."""
PARTIAL = 206
"""HTTP status of an answer that is a part of the file."""


class BlockReader(io.RawIOBase):
    """The `size` bytes at an address in blocks of `BLOCK` bytes, `AHEAD` of them under way."""

    def __init__(self, path: Any, size: int):
        self.path, self.size, self.place = path, size, 0
        self.pool = ThreadPoolExecutor(AHEAD)
        self.blocks: dict[int, Future[bytearray]] = {}
        """Those that are there or under way, by where they begin."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}[whence]
        self.place = max(0, start + offset)
        return self.place

    def readinto(self, buffer: Any) -> int:
        if self.place >= self.size or not len(buffer):
            return 0
        first = self.place % BLOCK
        data = memoryview(self._block(self.place - first))[first:][: len(buffer)]
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)

    def _block(self, start: int) -> bytearray:
        """The block that begins at `start`; those behind it are asked for, and others are let go."""
        wanted = range(start, min(self.size, start + (AHEAD + 1) * BLOCK), BLOCK)
        for at in self.blocks.keys() - set(wanted):
            self.blocks.pop(at).cancel()
        for at in wanted:
            if at not in self.blocks:
                self.blocks[at] = self.pool.submit(fetch, self.path, at, min(at + BLOCK, self.size))
        return self.blocks[start].result()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        super().close()


def fetch(path: Any, start: int, end: int) -> bytearray:
    """The bytes from `start` to `end` of the file at an address. When a connection breaks, what has come stays, and the
    next one begins behind it. Raises NotFound, DataError."""
    data, size = bytearray(), BLOCK

    def rest() -> None:
        nonlocal size
        while (at := start + len(data)) < end:
            until, size = min(end, at + size), max(SMALLEST, size // 2)
            _receive(path, at, until, data)
            size = BLOCK

    retried(path, rest, reached=lambda: len(data))
    return data


def _receive(path: Any, start: int, end: int, data: bytearray) -> None:
    """Append bytes of a file to `data` as they come. Raises what the file system raises, and ConnectionError for an
    answer without a byte."""
    from fsspec.asyn import sync

    system, key, before = filesystem(path), key_of(path), len(data)
    if is_web(path):
        sync(system.loop, _receive_http, system, key, start, end, data)
    elif key.startswith(("s3://", "s3a://")):
        sync(system.loop, _receive_s3, system, key, start, end, data)
    else:
        data += system.cat_file(key, start=start, end=end)
    if len(data) == before:
        raise ConnectionError(f"the answer ends at byte {start:,}")


async def _receive_s3(system: Any, key: str, start: int, end: int, data: bytearray) -> None:
    """The body is read by the coroutine that asks for it: between two of them, as the public `call_s3` would have it,
    what has come is lost with a connection that breaks."""
    bucket, name, _ = system.split_path(key)
    answer = await system._call_s3("get_object", Bucket=bucket, Key=name, Range=f"bytes={start}-{end - 1}")
    async with answer["Body"] as body:
        while piece := await body.read(PIECE):
            data += piece


async def _receive_http(system: Any, key: str, start: int, end: int, data: bytearray) -> None:
    session = await system.set_session()
    headers = {"Range": f"bytes={start}-{end - 1}"}
    async with session.get(system.encode_url(key), **{**system.kwargs, "headers": headers}) as answer:
        if answer.status == 404:
            raise FileNotFoundError(key)
        answer.raise_for_status()
        at = start if answer.status == PARTIAL else 0  # or it is the whole file
        async for piece in answer.content.iter_chunked(PIECE):
            data += piece[max(0, start - at) : max(0, end - at)]
            at += len(piece)
            if at >= end:
                return
