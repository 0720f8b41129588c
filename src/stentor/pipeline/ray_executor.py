"""Ray executor: the groups of a prepare pipeline on the nodes of a Ray cluster.

Workers are Ray actors. Only this process, the driver, decides what is done where and takes the results, in the order
of the groups; so a group that is done twice, because a node died, is written once.
"""

import contextlib
import heapq
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.config.plugins import load_plugins
from stentor.data.system import STOP_SIGNALS
from stentor.errors import ConfigError, StentorError, require
from stentor.pipeline.worker import Worker
from stentor.version import __version__

DEATHS = 3
"""Number of workers that may die on a group or a record before the group or record is considered the cause."""
AHEAD = 2
"""Number of groups that an actor has at a time, so that it does not wait for the driver."""
HELD = 4
"""Maximum number of started but unwritten groups per actor, which limits how far others run ahead of a slow one."""
GROWTH = 5.0
"""Seconds between two checks of the cluster's resources."""
WAITING = 60.0
"""Seconds without any worker after which a message is printed."""

NO_CLUSTER = "There is no Ray cluster at {}: start one there with `ray start --head`, or use --ray auto."


@dataclass(frozen=True)
class RayExecutor:
    """Actors of a Ray cluster, of one CPU and thread each, or with a share of a GPU.

    An actor whose process or node dies is replaced, and its groups are done again. A group on which `DEATHS` workers
    died is done record by record, and a record on which as many die is a reject (`Worker.crashed`). Raises ConfigError
    where there is no cluster, and for nodes without Stentor or with another version of it.
    """

    address: str
    """`auto`: the cluster that runs here (or that RAY_ADDRESS names), otherwise one for this command alone."""
    jobs: int | None = None
    """Actors; Ray's autoscaler is asked for them. None: as many as the cluster offers at the time."""
    gpus: float | None = None
    """GPUs of each actor, such as 0.25. None: 1 where `device` is a GPU, or is `auto` and the cluster has some."""
    device: str = "auto"
    plugins: Sequence[Path] = ()
    """Python files of this machine, which are sent to the actors."""

    def map(self, worker: Worker, groups: Sequence[Any], stopping: Callable[[], bool]) -> Generator[Any, None, None]:
        if not groups:
            return
        with connected(self.address, self.jobs):
            actors = _Actors(self, worker)
            try:
                yield from _Schedule(actors, worker, groups, stopping).results()
            finally:
                actors.close()


@contextlib.contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[None]:
    """A connection to the cluster, for its block; `cpus` is the least of one that is started here. Raises
    ConfigError."""
    require("ray", "--ray")
    if address != "auto":
        _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        ray.init(address, **settings)
    except ConnectionError:
        if address != "auto":
            raise ConfigError(NO_CLUSTER.format(address)) from None
        cores = max(os.cpu_count() or 1, cpus or 1)
        ray.init("local", num_cpus=cores, include_dashboard=False, **settings)
        print("No Ray cluster is running: started one on this machine for this command.", flush=True)
    finally:
        for number, handler in handlers.items():  # Ray has a handler of its own
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises ConfigError where nothing answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        raise ConfigError(f"--ray {address}: run the command on a node of the cluster, and write auto or HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        raise ConfigError(NO_CLUSTER.format(address)) from None


def load_sent_plugins(contents: dict[str, str]) -> None:
    """Load plug-ins of the driver's machine, whose contents came by their file names. Raises ConfigError."""
    folder = Path(tempfile.mkdtemp(prefix="stentor-plugins-"))
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    sys.path.insert(0, str(folder))  # before the driver's folder, where Ray finds the same names on this machine
    load_plugins([folder / name for name in contents])


def _actor_class() -> type:
    """A class inside a function is sent to the nodes as code, so that one without Stentor can say so."""

    class PrepareWorker:
        worker: Any

        def setup(self, worker: bytes, plugins: dict[str, str], version: str, device: str, folder: str) -> str | None:
            """Fault of this node, or None."""
            import importlib

            try:
                node_version = importlib.import_module("stentor").__version__
            except ImportError:
                return "has no Stentor"
            if node_version != version:
                return f"has Stentor {node_version}"
            import torch
            from ray import cloudpickle

            from stentor.pipeline.ray_executor import load_sent_plugins

            torch.set_num_threads(1)
            with contextlib.suppress(OSError):  # relative paths are the driver's, where this node has its folder
                os.chdir(folder)
            load_sent_plugins(plugins)
            self.worker = cloudpickle.loads(worker)
            self.worker.setup(device)
            return None

        def process(self, group: Any) -> Any:
            return self.worker.process(group)

    return PrepareWorker


@dataclass(eq=False)
class _Actor:
    handle: Any
    ready: bool = False
    refs: list[Any] = field(default_factory=list)
    """Its calls, in their order: it is at the first one."""


class _Actors:
    """The actors of a run: as many as are wanted, each known to work before it is given a group."""

    def __init__(self, executor: RayExecutor, worker: Worker):
        import ray
        from ray import cloudpickle

        self.executor, self.ray = executor, ray
        gpus, device = executor.gpus, executor.device
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {device}: with --ray the cluster places the workers; write auto, cpu or cuda.")
        if gpus is None:
            gpus = float(device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0))
        self.gpus = gpus
        self.remote: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_actor_class())
        plugins = {path.name: path.expanduser().read_text("utf-8") for path in map(Path, executor.plugins)}
        content = ray.put(cloudpickle.dumps(worker))
        self.setup = (content, plugins, __version__, "cuda" if gpus > 0 else "cpu", os.getcwd())
        self.all: list[_Actor] = []
        self.of: dict[Any, _Actor] = {}
        """The actor of each call."""
        self.looked = self.failures = 0.0
        self.num_wanted = 1
        self.began: float | None = time.monotonic()

    def grow(self, most: int) -> None:
        """Ask for actors, at most `most`: for what the cluster offers by now, where no number was asked for."""
        if time.monotonic() > self.looked + GROWTH:
            offered = self.ray.cluster_resources()
            share = offered.get("GPU", 0) / self.gpus if self.gpus else offered.get("CPU", 0)
            self.num_wanted = self.executor.jobs or max(1, int(min(share, offered.get("CPU", 0))))
            self.looked = time.monotonic()
        for _ in range(min(self.num_wanted, most) - len(self.all)):
            actor = _Actor(self.remote.remote())
            self.all.append(actor)
            self.submit(actor, actor.handle.setup, *self.setup)
        if self.began is not None and time.monotonic() > self.began + WAITING:
            print("stentor: waiting for the cluster to have resources for a worker.", file=sys.stderr, flush=True)
            self.began = None

    def submit(self, actor: _Actor, method: Any, *arguments: Any) -> Any:
        ref = method.remote(*arguments)
        actor.refs.append(ref)
        self.of[ref] = actor
        return ref

    def started(self, actor: _Actor, problem: str | None) -> None:
        """An actor has answered. Raises ConfigError for a node that it cannot work on."""
        if problem is not None:
            raise ConfigError(
                f"A node of the cluster {problem}, and this one has {__version__}: install the same on all nodes."
            )
        actor.ready, self.failures, self.began = True, 0, None

    def lost(self, actor: _Actor) -> None:
        """Take leave of an actor whose process or node is gone."""
        if actor not in self.all:
            return
        self.all.remove(actor)
        with contextlib.suppress(Exception):
            self.ray.kill(actor.handle)
        if not actor.ready:
            self.failures += 1
            if self.failures > DEATHS * self.num_wanted:
                raise StentorError(
                    f"{self.failures:.0f} workers died during set-up, perhaps because memory ran out: see Ray's logs "
                    "(/tmp/ray/session_latest/logs on the nodes)."
                )

    def close(self) -> None:
        for actor in self.all:
            with contextlib.suppress(Exception):
                self.ray.kill(actor.handle)


Unit = tuple[int, int]
"""Number of a group, and of one of its records; -1: the whole group."""


class _Schedule:
    """Location of each group: those that died with their actor come first again."""

    def __init__(self, actors: _Actors, worker: Worker, groups: Sequence[Any], stopping: Callable[[], bool]):
        self.actors, self.groups, self.stopping = actors, groups, stopping
        self.worker = worker
        self.next = self.begun = 0
        """The group whose result comes next, and the first one that was never given to an actor."""
        self.again: list[Unit] = []
        self.units: dict[Any, Unit] = {}
        """Body of each call of an actor."""
        self.done: dict[int, Any] = {}
        self.parts: dict[int, list[Any]] = {}
        """Results of the records of a group that is done record by record; None: not done yet."""
        self.deaths: Counter[Unit] = Counter()

    def results(self) -> Generator[Any, None, None]:
        while self.next < len(self.groups):
            stopped = self.stopping()
            if stopped:
                self._cancel()
            else:
                self._submit()
            if self.next in self.done:
                yield self.done.pop(self.next)
                self.next += 1
            elif stopped and not self.units:
                return
            else:
                self._collect()

    def _submit(self) -> None:
        """Give the actors what they have room for, and ask for more of them."""
        waiting = len(self.groups) - self.next
        self.actors.grow(waiting)
        ready = [actor for actor in self.actors.all if actor.ready]
        for load in range(AHEAD):
            for actor in ready:
                if len(actor.refs) == load and (unit := self._take(len(ready))) is not None:
                    ref = self.actors.submit(actor, actor.handle.process, self._group(unit))
                    self.units[ref] = unit

    def _take(self, actors: int) -> Unit | None:
        if self.again:
            return heapq.heappop(self.again)
        if self.begun == len(self.groups) or self.begun >= self.next + HELD * actors:
            return None
        self.begun += 1
        return self.begun - 1, -1

    def _group(self, unit: Unit) -> Any:
        group = self.groups[unit[0]]
        return group if unit[1] < 0 else self.worker.split(group)[unit[1]]

    def _cancel(self) -> None:
        """Take back what actors have not begun."""
        for actor in self.actors.all:
            for ref in actor.refs[1:]:
                self.actors.ray.cancel(ref)

    def _collect(self) -> None:
        """Wait until something is done, or for half a second."""
        refs = list(self.actors.of)
        if not refs:
            time.sleep(0.1)
            return
        finished, _ = self.actors.ray.wait(refs, timeout=0.5)
        for ref in finished:
            if ref in self.actors.of:
                self._finish(ref)

    def _finish(self, ref: Any) -> None:
        from ray.exceptions import RayError, RayTaskError, TaskCancelledError

        actor = self.actors.of[ref]
        try:
            result = self.actors.ray.get(ref)
        except TaskCancelledError:
            self._forget(actor, ref)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except RayError:
            if ref is actor.refs[0]:
                self._died(actor)
            else:  # what it did before it died may be there
                self._finish(actor.refs[0])
        else:
            unit = self._forget(actor, ref)
            if unit is None:
                self.actors.started(actor, result)
            else:
                self._store(unit, result)

    def _forget(self, actor: _Actor, ref: Any) -> Unit | None:
        """Strike a call off the lists; None: it was the set-up."""
        del self.actors.of[ref]
        actor.refs.remove(ref)
        return self.units.pop(ref, None)

    def _store(self, unit: Unit, result: Any) -> None:
        number, part = unit
        if part < 0:
            self.done[number] = result
            return
        self.parts[number][part] = result
        if None not in self.parts[number]:
            self.done[number] = self.worker.join(self.parts.pop(number))

    def _died(self, actor: _Actor) -> None:
        """The actor is gone: it was at the first of its calls; the others have only waited for it."""
        self.actors.lost(actor)
        for number, ref in enumerate(list(actor.refs)):
            if (unit := self._forget(actor, ref)) is not None:
                self.deaths[unit] += number == 0
                if self.deaths[unit] < DEATHS:
                    heapq.heappush(self.again, unit)
                else:
                    self._blame(unit)

    def _blame(self, unit: Unit) -> None:
        """A group on which workers died is done record by record, and such a record is left out."""
        group = self._group(unit)
        if unit[1] >= 0:
            self._store(unit, self.worker.crashed(group))
            return
        self.parts[unit[0]] = [None] * len(self.worker.split(group))
        for part in range(len(self.parts[unit[0]])):
            heapq.heappush(self.again, (unit[0], part))
