"""Work on groups of records: the worker, and what runs it on all groups, on this machine or elsewhere."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from stentor.config.plugins import load_plugins
from stentor.data.cut import UnusableRecord
from stentor.data.system import STOP_SIGNALS, can_fork
from stentor.errors import StentorError


class Worker:
    """Work on groups of records. It is serialised to each process. By default, groups are lists of items with an `id`,
    and results are (outputs, rejects)."""

    def setup(self, device: str) -> None:
        """Load everything that the groups need. Called once in each process, before its first group."""

    def process(self, group: Any) -> Any:
        """Return the result of a group, which must only depend on the group."""
        raise NotImplementedError

    def split(self, group: Any) -> list[Any]:
        """Return groups of one record each, to find the record that makes processes die."""
        return [[record] for record in group]

    def name(self, group: Any) -> str:
        """Return the id of the record of a group of one record."""
        return str(group[0].id)

    def join(self, results: Sequence[Any]) -> Any:
        """Join the results of the records of a group: lists, or pairs of lists."""
        if isinstance(results[0], list):
            return [each for result in results for each in result]
        return [o for outputs, _ in results for o in outputs], [r for _, rejects in results for r in rejects]

    def crashed(self, group: Any) -> Any:
        """Return the result of a group of one record that made every process die."""
        name = self.name(group)
        return [], [UnusableRecord(name, "crashed", f"{name}: every process that works on it dies.")]


class Executor(Protocol):
    """Runs a worker on all groups, in processes of this machine or on a cluster."""

    def map(self, worker: Worker, groups: Sequence[Any], stopping: Callable[[], bool]) -> Generator[Any, None, None]:
        """Yield the results in the order of the groups. Once `stopping()` is true, no new group is started and the
        results end after the started ones. Closing the generator releases the processes."""


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine, of one thread each; this process itself for one job or one group.

    Raises StentorError when a process dies. Processes ignore SIGTERM and SIGINT, which their parent obeys, and end
    when it ends.
    """

    jobs: int = 1
    devices: Sequence[str] = ("cpu",)
    """Names that `Worker.setup` is called with; the processes are dealt to them in turn."""
    plugins: Sequence[Path] = ()
    """Python files that a fresh process loads before it works."""
    fork: bool = False
    """Fork where that is safe (Linux): a process starts with what this one has imported and read. A GPU needs fresh
    processes."""

    def map(self, worker: Worker, groups: Sequence[Any], stopping: Callable[[], bool]) -> Generator[Any, None, None]:
        jobs = min(self.jobs, len(groups))
        if jobs > 1:
            yield from self._in_processes(worker, groups, stopping, jobs)
            return
        for number, group in enumerate(groups):
            if stopping():
                return
            if number == 0:
                worker.setup(self.devices[0])
            yield worker.process(group)

    def _in_processes(
        self, worker: Worker, groups: Sequence[Any], stopping: Callable[[], bool], jobs: int
    ) -> Generator[Any, None, None]:
        """Groups are submitted a few ahead, so that no process waits while a result is written."""
        fork = self.fork and can_fork()
        context = multiprocessing.get_context("fork" if fork else "spawn")
        devices = context.SimpleQueue()
        for number in range(jobs):
            devices.put(self.devices[number % len(self.devices)])
        remaining = iter(groups)
        pending: deque[Future[Any]] = deque()
        initargs = (worker, devices, () if fork else self.plugins)
        with ProcessPoolExecutor(jobs, context, initializer=_start_process, initargs=initargs) as pool:
            try:
                while True:
                    if not stopping():
                        pending.extend(pool.submit(_process, g) for g in islice(remaining, 2 * jobs - len(pending)))
                    if not pending:
                        return
                    future = pending.popleft()
                    if stopping() and future.cancel():
                        return  # later results are useless without it
                    yield future.result()
            except BrokenProcessPool:
                raise StentorError(
                    f"One of the {jobs} processes died, perhaps because memory ran out: run the same command again "
                    "to resume, with fewer processes."
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


_worker: Worker
_device: str | None
"""The device of this process, until the worker is set up."""


def _start_process(worker: Worker, devices: Any, plugins: Sequence[Path]) -> None:
    global _worker, _device

    import torch

    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    load_plugins(list(plugins))
    _worker, _device = worker, devices.get()


def _process(group: Any) -> Any:
    """Process a group. The set-up is here because errors of `_start_process` would not reach the parent."""
    global _device

    if _device is not None:
        _worker.setup(_device)
        _device = None
    return _worker.process(group)


def end_with_parent() -> None:
    """From now on, end when the parent ends, also when it is killed and cannot stop its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
