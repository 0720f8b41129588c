"""A worker of a pipeline for tests of what runs it: squares of numbers, in groups of three."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from stentor.data.cut import UnusableRecord
from stentor.data.record_table import Selection
from stentor.pipeline.journal import Journal
from stentor.pipeline.runner import JournalWriter, Pipeline
from stentor.pipeline.worker import Executor, Worker

GROUPS = [Selection(int, range(i, i + 3)) for i in range(0, 30, 3)]


class Squares(Worker):
    """Squares of numbers; those that end in 7 are rejected. The first groups take longest. At 13, `action` happens."""

    def __init__(self, action: Callable[[], object] = lambda: None, device: str | None = None):
        self.action, self.device = action, device

    def setup(self, device: str) -> None:
        """Refuse another device than the expected one."""
        assert self.device in (None, device)
        self.device = device

    def name(self, group):
        return str(group[0])

    def process(self, group):
        time.sleep(0.05 if group[0] < 6 else 0)
        if 13 in group:
            self.action()
        outputs = [{"id": str(n), "square": n * n} for n in group if n % 10 != 7]
        return outputs, [UnusableRecord(str(n), "seven", f"{n} ends in 7.") for n in group if n % 10 == 7]


def pipeline(path: Path, worker: Worker, executor: Executor, finish_groups: bool = False) -> Pipeline:
    """It keeps its outcomes in the journal of that path."""
    journal = Journal(path, {"seed": 1})
    return Pipeline(
        worker=worker,
        writer=JournalWriter(journal, lambda number: str(number) in journal),
        executor=executor,
        title="squaring",
        saved=lambda: f"{len(journal)} numbers are in {path}",
        unit="numbers",
        finish_groups=finish_groups,
    )


def outcomes(without: Collection[int] = ()) -> Iterator[dict]:
    """The lines of the journal at the end, without those of some numbers."""
    for group in GROUPS:
        kept = [n for n in group if n % 10 != 7 and n not in without]
        yield from [{"id": str(n), "record": {"id": str(n), "square": n * n}} for n in kept]
        yield from [{"id": str(n), "dropped": "seven", "message": f"{n} ends in 7."} for n in group if n % 10 == 7]


def die() -> None:
    os._exit(9)
