"""Listing counter: how many records were read so far, on a terminal, while the metadata of a large source is listed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

DELAY = 1.0
"""Seconds of listing after which the counter is shown, and between two of its figures."""


def with_counter(records: Iterable[T], name: str) -> Iterator[T]:
    """The records; on a terminal with a line on stderr that counts them and goes away at the end."""
    if not sys.stderr.isatty() or os.environ.get("LOCAL_RANK", "0") != "0":
        yield from records
        return
    from rich.console import Console
    from rich.status import Status

    status, shown = Status(name, console=Console(stderr=True)), time.monotonic()
    try:
        for number, record in enumerate(records, 1):
            if time.monotonic() - shown > DELAY:
                shown = time.monotonic()
                status.update(f"{name}: {number:,} records")
                status.start()
            yield record
    finally:
        status.stop()
