"""Signals: SIGTERM and SIGINT end a run cleanly."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from stentor.data.system import STOP_SIGNALS
from stentor.errors import Stopped

LONG_VERBS = {"train", "improve", "quickstart"}
"""Commands that resume."""


def stop_at_once() -> None:
    """Make SIGTERM and SIGINT end a training command with the exit code for "run it again", also while it imports,
    reads its data or builds its model, when there is nothing to save yet. Call this first."""
    if LONG_VERBS.isdisjoint(sys.argv[1:3]):
        return
    process = os.getpid()

    def handle(number: int, frame: Any) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, lambda *_: os._exit(Stopped.exit_code))
        if os.getpid() == process:  # and not in a process forked for its work
            os.write(2, b"stentor: Stopped by a signal. Nothing is lost: run the same command to resume.\n")
        raise SystemExit(Stopped.exit_code)

    for number in STOP_SIGNALS:
        signal.signal(number, handle)


@contextlib.contextmanager
def on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once on SIGTERM or SIGINT; a later SIGINT exits immediately. Only for the main thread."""
    came = False

    def handle(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            if number == signal.SIGINT:
                os._exit(130)
            return
        came = True
        act()

    before = {s: signal.signal(s, handle) for s in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
