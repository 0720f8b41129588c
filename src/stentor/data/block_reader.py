"""Block reader: the bytes of a file at an address, in large blocks that are fetched ahead of the reader."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

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
"""Bytes below which the pieces of a block do not become smaller when connections break."""


class BlockReader(io.RawIOBase):
    """The bytes at an address in blocks of `BLOCK` bytes, `AHEAD` of them under way."""

    def __init__(self, path: Any):
        self.path = path
        facts = info(path)
        if facts["type"] == "directory":
            raise DataError(f"{name_of(path)} is a folder, not a file.")
        size = facts["size"]
        self.whole = read_whole(path) if size is None else None  # of unknown length: not in blocks
        self.size = len(self.whole) if self.whole is not None else int(size)
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
        if self.whole is not None:
            return 0, self.whole
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
    """The bytes from `start` to `end` of the file at an address. When a connection breaks, what is there is kept, and
    the rest is asked for in smaller pieces. Raises NotFound, DataError."""
    parts: list[bytes] = []
    size, broken = end - start, 0

    def piece() -> bytes:
        data = cast(bytes, filesystem(path).cat_file(key_of(path), start=start, end=min(start + size, end)))
        if len(data) > size:  # the server answers with the whole file
            data = data[start : start + size]
        if not data:
            raise ConnectionError(f"the answer ends at byte {start:,}")
        return data

    while start < end:
        try:
            data = retried(path, piece, attempts=1)
        except DataError as error:
            if error.__cause__ is None or final_error(error.__cause__, path, "read") is not None:
                raise
            broken += 1
            if broken == SAID_AFTER:
                print(f"Waiting for {name_of(path)} ({short(error.__cause__)}).", file=sys.stderr)
            if broken == ATTEMPTS:
                raise DataError(
                    str(error).replace("failed 1 times in a row", f"failed {broken} times in a row")
                ) from error
            time.sleep(min(LONGEST_WAIT, 0.1 * 2 ** (broken - 1)))
            size = max(SMALLEST, size // 2)
            continue
        parts.append(data)
        start, broken = start + len(data), 0
    return b"".join(parts)
