"""Signals: SIGTERM and SIGINT end a run in good order."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when SIGTERM or SIGINT comes, once; a later SIGINT exits at once. Only for the main thread."""
    came = False

    def handle(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            if number == signal.SIGINT:
                os._exit(130)
            return
        came = True
        act()

    before = {s: signal.signal(s, handle) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
