"""A progress bar for commands that go through files."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A bar on standard error when that is a terminal; otherwise nothing."""

    def __init__(self, files: int, doing: str):
        self.bar: Any = None
        self.seconds = 0.0
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("files"),
                TextColumn("{task.fields[minutes]:.1f} min of audio"), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task("", total=files, minutes=0.0)

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def window(self, seconds: float) -> None:
        """So many seconds of audio more are done."""
        self.seconds += seconds
        if self.bar:
            self.bar.update(self.task, minutes=self.seconds / 60)

    def file(self) -> None:
        """A file more is done."""
        if self.bar:
            self.bar.advance(self.task)

    def print(self, text: str, error: bool = False) -> None:
        """A line on standard output, or with `error` on standard error, that leaves the bar whole."""
        if self.bar and (error or sys.stdout.isatty()):
            # Above the bar, not through it.
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True) if error else self._above(text)
        else:
            print(text, file=sys.stderr if error else sys.stdout, flush=True)

    def _above(self, text: str) -> None:
        self.bar.stop()
        print(text, flush=True)
        self.bar.start()
