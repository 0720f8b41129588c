"""Progress of a command on standard error, and lines beside it."""

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

EVERY = 30.0
"""Least seconds between the lines."""


class Progress:
    """A bar when standard error is a terminal; otherwise a line for every twentieth, with the time left."""

    def __init__(self, title: str, unit: str):
        self.title, self.unit, self.live = title, unit, sys.stderr.isatty()
        self.told = self.share = 0.0
        columns = TextColumn(title), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn()
        console = Console(stderr=True)
        self.bar = Bar(*columns, console=console, transient=True, speed_estimate_period=600, disable=not self.live)
        self.bar.add_task("", state="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def report(self, done: float, total: float) -> None:
        """So much is done of so much."""
        (task,), state = self.bar.tasks, f"{round(done, 1):,} of {round(total, 1):,} {self.unit}"
        self.bar.update(task.id, completed=done, total=total, state=state)
        elapsed, left = task.elapsed or 0.0, task.time_remaining
        if not self.live and self.share * total < done < total and elapsed >= self.told + EVERY:
            self.told, self.share = elapsed, done / total + 0.05
            self.print(f"{self.title}: {state}" + ("" if left is None else f", {left / 60:.1f} min left"), error=True)

    def print(self, text: str, error: bool = False) -> None:
        """A line on standard output, or with `error` on standard error, that leaves the bar intact."""
        if self.live and error:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self.live and sys.stdout.isatty():  # above the bar, not through it
            self.bar.stop()
            print(text, flush=True)
            self.bar.start()
        else:
            print(text, file=sys.stderr if error else sys.stdout, flush=True)
