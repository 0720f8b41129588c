"""SIGTERM and SIGINT: what is at hand is finished the first time, nothing the second time."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from stentor.errors import Stopped


class Stop:
    """A context in which the first signal raises `Stopped` or, with `gently` set, is noted in `signal`; the second one
    ends the process at once."""

    def __init__(self, said: str):
        self.said = said
        """What the message says after the signal's name."""
        self.gently = False
        self.signal: str | None = None

    def __enter__(self) -> Stop:
        self.before: dict[int, Any] = {n: signal.signal(n, self._note) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:  # nothing is waited for: helper processes see that this one is gone
            print(f"stentor: {self.stopped()}", file=sys.stderr, flush=True)
            os._exit(Stopped.exit_code)
        self.signal = signal.Signals(number).name
        if not self.gently:
            raise self.stopped()

    def stopped(self) -> Stopped:
        return Stopped(f"Stopped by {self.signal}; {self.said}. Run the same command to go on.")
