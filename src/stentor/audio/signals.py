"""Signals while a library in C calls back into Python."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_later() -> Iterator[None]:
    """SIGINT and SIGTERM are handled when the block is left: what a handler raises in a function that C calls is lost,
    and a part of the audio with it."""
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        yield
        return
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            if (handler := signal.getsignal(number)) is not None:  # not of another language
                handlers[number] = handler
                signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
