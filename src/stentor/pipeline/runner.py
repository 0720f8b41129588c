"""Prepare pipeline: groups of records through a worker to a writer, in order; after a kill the same command resumes.

A command determines its groups from metadata, so they are the same after any kill and for any number of processes. The
writer knows what is already done from its journal or its files; the executor runs the worker on the rest.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from stentor.data.atomic_write import atomic_path
from stentor.data.cut import Cut, UnusableRecord
from stentor.data.record_table import Selection
from stentor.data.system import STOP_SIGNALS
from stentor.dataloading.dataset_report import MAX_BAD
from stentor.errors import AudioError, DataError, Stopped
from stentor.pipeline.journal import Journal
from stentor.pipeline.progress import Progress
from stentor.pipeline.worker import Executor, Worker

NAMED = 20
"""Unusable records that an error names, and that a summary names of each reason."""


class Writer:
    """Stores the results of groups, in their order, and knows which are stored already."""

    def remaining(self, groups: Sequence[Any]) -> Sequence[Any]:
        """The groups, or what is left of them, that are still to be processed."""
        raise NotImplementedError

    def write(self, group: Any, outputs: list[Any], rejects: list[UnusableRecord]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Called after the last group, and after a failure or a signal."""


def unfinished(groups: Sequence[Selection[Any]], is_done: Callable[[Any], bool]) -> list[Selection[Any]]:
    """Groups without the items that are done."""
    rests = (group.where(lambda item: not is_done(item)) for group in groups)
    return [rest for rest in rests if len(rest)]


@dataclass(frozen=True)
class RecordWithFiles:
    """A manifest record with files that were made for it, which are written where the command runs."""

    record: dict[str, Any]
    files: Mapping[Path, bytes]

    def write(self) -> dict[str, Any]:
        """Write the files; the record."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as part:
                part.write_bytes(content)
        return self.record


Record = dict[str, Any] | RecordWithFiles
"""A manifest record; with its audio where that is no file yet."""
Results = tuple[list[Record], list[UnusableRecord]]
"""Results of a group: manifest records, and records of which none could be made."""


class JournalWriter(Writer):
    """Writer of manifest records into a journal, a line for each. Groups hold anything that `is_done` takes."""

    def __init__(self, journal: Journal, is_done: Callable[[Any], bool]):
        self.journal, self.is_done = journal, is_done

    def remaining(self, groups: Sequence[Selection[Any]]) -> Sequence[Selection[Any]]:
        return unfinished(groups, self.is_done) if len(self.journal) else groups

    def write(self, group: Any, outputs: list[Record], rejects: list[UnusableRecord]) -> None:
        records = [output.write() if isinstance(output, RecordWithFiles) else output for output in outputs]
        records = [{"id": record["id"], "record": record} for record in records]
        self.journal.add([*records, *({"id": r.id, "dropped": r.reason, "message": r.message} for r in rejects)])

    def close(self) -> None:
        self.journal.publish()


@dataclass(frozen=True)
class Pipeline:
    """Worker, writer and executor of a command, and how it speaks of its progress."""

    worker: Worker
    writer: Writer
    executor: Executor
    title: str
    saved: Callable[[], str]
    """Says where the results so far are, for the message after a signal."""
    unit: str = "records"
    resuming: str = "Resuming: {done:,} of {total:,} {unit} are already done."
    finish_groups: bool = False
    """After a signal the groups at hand are finished and written; otherwise they are given up."""

    def run(self, groups: Sequence[Any]) -> None:
        """Process and write all that remains. Raises `Stopped` after SIGTERM or SIGINT."""
        remaining = self.writer.remaining(groups)
        total = sum(map(len, groups))
        done = total - sum(map(len, remaining))
        if done:
            print(self.resuming.format(done=done, total=total, unit=self.unit), flush=True)
        with (
            Stop(self.saved, self.finish_groups) as stop,
            Progress(self.title, self.unit) as progress,
            closing(self.writer),
            closing(self.executor.map(self.worker, remaining, lambda: stop.signal is not None)) as results,
        ):
            progress.report(done, total)
            for (outputs, rejects), group in zip(results, remaining):
                self.writer.write(group, outputs, rejects)
                done += len(group)
                progress.report(done, total)
        if stop.signal is not None:
            raise stop.stopped()


@dataclass(frozen=True)
class RecordsInJournal:
    """Work that creates a record for each item, with a journal next to the file `path`."""

    path: Path
    settings: dict[str, Any]
    """Settings that the records depend on. A journal of other ones is refused."""
    title: str
    unit: str = "records"
    written: Callable[[Any], bool] = lambda item: True
    """Whether the files are there that belong to the record of an item in the journal."""

    def run(self, worker: Worker, executor: Executor, groups: Sequence[Selection[Any]]) -> Journal:
        """Have a worker process what is not done; the journal with the records. Raises `Stopped` after SIGTERM or
        SIGINT."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(self.path.with_name(f"{self.path.name}.part"), self.settings)
        total = sum(map(len, groups))
        Pipeline(
            worker=worker,
            writer=JournalWriter(journal, lambda item: item.id in journal and self.written(item)),
            executor=executor,
            title=self.title,
            saved=lambda: f"{len(journal):,} of {total:,} {self.unit} are in {journal.path}",
            unit=self.unit,
        ).run(groups)
        return journal


class Stop:
    """A context in which the first SIGTERM or SIGINT raises `Stopped` or, if `gently`, is noted in `signal`; the second
    one ends the process at once."""

    def __init__(self, saved: Callable[[], str], gently: bool = False):
        self.saved, self.gently = saved, gently
        self.signal: str | None = None

    def __enter__(self) -> Self:
        self.handlers: dict[int, Any] = {n: signal.signal(n, self._note) for n in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:  # nothing is waited for: processes end when they see that this one is gone
            print(f"stentor: {self.stopped()}", file=sys.stderr, flush=True)
            os._exit(Stopped.exit_code)
        self.signal = signal.Signals(number).name
        if not self.gently:
            raise self.stopped()

    def stopped(self) -> Stopped:
        return Stopped(f"Stopped by {self.signal}; {self.saved()}. Run the same command to resume.")


def reject(cut: Cut, error: AudioError) -> UnusableRecord:
    """A record whose audio cannot be used."""
    return UnusableRecord(cut.id, error.reason, f"{cut.id}: {error}")


def summarize(rejects: Sequence[UnusableRecord]) -> dict[str, dict[str, Any]]:
    """Summary of each reason, most frequent first: `count`, and as `first` the messages of the first records."""
    counts = Counter(reject.reason for reject in rejects)
    return {
        reason: {"count": count, "first": [r.message for r in rejects if r.reason == reason][:NAMED]}
        for reason, count in counts.most_common()
    }


def print_reasons(rejects: Sequence[UnusableRecord]) -> None:
    if rejects:
        counts = Counter(reject.reason for reject in rejects)
        print("unusable: " + ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common()))


def format_table(rows: Sequence[tuple[str, int, str]]) -> str:
    """Names, counts and notes in columns."""
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(f"{name:{width}}  {count:>8,}  {note}".rstrip() for name, count, note in rows)


def refuse_rejects(messages: Sequence[str], total: int) -> None:
    """Raise DataError when the records of these messages are over 1 % of all."""
    if len(messages) > MAX_BAD * total:
        raise DataError(f"{len(messages):,} of {total:,} records cannot be used. {first_of(messages)}")


def first_of(messages: Sequence[str]) -> str:
    more = f"\n  ... and {len(messages) - NAMED:,} more" if len(messages) > NAMED else ""
    return "The first are:\n  " + "\n  ".join(messages[:NAMED]) + more
