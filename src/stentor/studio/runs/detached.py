"""Detached commands, which outlive the studio: a folder each, with a supervisor (supervisor.py), a lock and the state.

    FOLDER/run.lock     locked (flock) by the supervisor and the command as long as either lives
    FOLDER/stop         there since somebody asked it to stop
    FOLDER/output.txt   all that it printed, without secrets
    FOLDER/ending.json  when it was last started, its process and, afterwards, its exit code and last words

The lock is the system's: it disappears with the last process that inherited it, whatever was killed and whatever is
left on the disk. So nothing stale stays behind, and a folder has one command at a time. Windows has no lock that is
inherited: there the supervisor, or the command, is known by its number and the moment in which it began.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stentor.data.system import KILLED, KILLED_ON_WINDOWS, NEW_GROUP, POSIX, kill_group, lock
from stentor.errors import ConfigError, StentorError, without_secrets
from stentor.studio.files import disk_errors, read_json, stamp, write_bytes
from stentor.studio.runs.supervisor import ENDING_BYTES, process_start
from stentor.studio.texts import for_page, say

STENTOR = (sys.executable, "-m", "stentor")
"""`stentor`, as a command."""
State = Literal["running", "stopping", "stopped", "failed", "finished"]
STOPPED = 75
"""Exit code of a command that saved everything because it was asked to stop."""
_BY_REQUEST = (None, -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT, KILLED, KILLED_ON_WINDOWS)
"""Exit codes of a command that ended because it was asked to."""
_PATIENCE = 1.0
"""Seconds that a start waits for a lock which somebody who only looks may hold for a moment."""


@dataclass(frozen=True)
class Ending:
    """State of a folder's command."""

    alive: bool
    exit: int | None
    """Its exit code; negative for a signal. None while it runs, when it was never started, and when it ended without
    one (its supervisor was killed, or the machine was switched off)."""
    message: str
    """Its error paragraph, or the last line that it printed; empty while it runs."""
    started: float
    """Seconds since 1970; 0.0 when it never was."""
    stop_requested_at: float | None
    """When somebody asked it to stop for the last time since it was started, in seconds since 1970."""

    @property
    def state(self) -> State:
        if self.alive:
            return "running" if self.stop_requested_at is None else "stopping"
        if self.exit == 0:
            return "finished"
        stopped = self.exit == STOPPED or (self.stop_requested_at is not None and self.exit in _BY_REQUEST)
        return "stopped" if stopped else "failed"

    @property
    def reason(self) -> str:
        """Cause of its failure, for a person."""
        if self.exit is None:
            return say("work_vanished")
        if self.exit == KILLED:
            return say("work_out_of_memory")
        if self.exit < 0:
            with contextlib.suppress(ValueError):
                return say("work_signal", signal=signal.Signals(-self.exit).name)
        return for_page(self.message) or say("work_silent")


@contextlib.contextmanager
def exclusive(folder: Path, busy: str) -> Iterator[int]:
    """Hold a folder that exists alone: answers the lock, for `launch`. Raises ConfigError(`busy`) while its command
    lives, among threads and processes."""
    with disk_errors(folder):
        handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + _PATIENCE
        while not lock(handle) or (not POSIX and _lives(folder)):
            if time.monotonic() > until:
                raise ConfigError(busy)
            time.sleep(0.02)
        yield handle
    finally:
        os.close(handle)


def launch(folder: Path, command: Sequence[str], handle: int, cwd: Path) -> None:
    """Start a command, such as `[*STENTOR, "publish", "model", ...]`, in `cwd`; it and its supervisor inherit the lock
    of `exclusive`. Its output follows the earlier one. Raises StentorError when the disk is full or nothing starts.

    A command that cannot be started at all ends at once, with exit code 127 and the reason. No secret may be among the
    arguments: all users of a machine see them. It inherits the environment.
    """
    state_path = folder / "ending.json"
    before = state_path.read_bytes() if state_path.is_file() else None
    write_bytes(folder / "ending.json", json.dumps({"started": time.time()}).encode().ljust(ENDING_BYTES))
    try:
        with disk_errors(folder):
            (folder / "stop").unlink(missing_ok=True)
            process = subprocess.Popen(
                [sys.executable, "-m", "stentor.studio.runs.supervisor", str(folder), str(handle), *command],
                cwd=cwd,
                # Nothing that lies in the projects folder is ever imported.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **NEW_GROUP,
                **({"pass_fds": (handle,)} if POSIX else {}),
            )
        while not POSIX and read_json(state_path).keys() == {"started"} and process.poll() is None:
            time.sleep(0.02)  # until the supervisor has left its number
    except StentorError:
        if before is not None:  # how the last attempt ended is still how things stand
            write_bytes(folder / "ending.json", before)
        raise
    # A child that is not waited for stays in the process table.
    threading.Thread(target=process.wait, daemon=True).start()


def alive(folder: Path) -> bool:
    """Whether the supervisor or the command lives: whether their lock is held."""
    if not POSIX:
        return _lives(folder)
    try:
        handle = os.open(folder / "run.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle, shared=True)
    finally:
        os.close(handle)


def _lives(folder: Path) -> bool:
    """As `alive`, by the processes' numbers and the moments in which they began."""
    state = read_json(folder / "ending.json")
    processes = state.get("supervisor"), [state.get("pid"), state.get("born")]
    return any(p and isinstance(p[0], int) and process_start(p[0]) == p[1] for p in processes)


def ending(folder: Path) -> Ending:
    """State of a folder's command. Never raises."""
    running = alive(folder)  # before the files are read: what ended since is then told the next time, never half
    state = read_json(folder / "ending.json")
    code, started, requested = state.get("exit"), state.get("started"), stamp(folder / "stop")
    return Ending(
        running,
        code if isinstance(code, int) and not running else None,
        str(state.get("said") or "") if not running else "",
        float(started) if isinstance(started, (int, float)) else 0.0,
        requested[0] / 1e9 if requested else None,
    )


def tail(path: Path, lines: int = 200) -> str:
    """The last lines of a text file, at most 64 KiB, without secrets; empty when it is not there."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65536))
            data = file.read()
    except OSError:
        return ""
    text = data.decode("utf-8", "replace").splitlines()
    if size > 65536:
        text = text[1:]
    return without_secrets("\n".join(text[-lines:]))


def process(folder: Path) -> int | None:
    """The number of the command's process, while that process lives. Its number alone would not do: numbers are used
    again, so the moment in which it began must be the same as well."""
    state = read_json(folder / "ending.json")
    pid = state.get("pid")
    if not isinstance(pid, int) or pid <= 1 or state.get("born") != process_start(pid) or not alive(folder):
        return None
    return pid


def end(folder: Path, kill: bool = False) -> None:
    """Ask the command to save everything and stop (SIGTERM; on Windows through its supervisor), or `kill` it,
    losing what is not saved. Nothing happens to one that has ended. Raises StentorError when this user may not."""
    if not alive(folder):
        return
    with contextlib.suppress(StentorError):  # a full disk must not keep anything from being stopped
        write_bytes(folder / "stop", b"")
    until = time.monotonic() + _PATIENCE
    while "pid" not in read_json(folder / "ending.json") and time.monotonic() < until:
        time.sleep(0.02)  # the supervisor has just been started
    pid = process(folder)
    if pid is None:
        return
    try:
        if POSIX:
            os.kill(pid, -KILLED if kill else signal.SIGTERM)
        elif kill:
            kill_group(pid)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise StentorError(f"{folder.name} was started by another user: it cannot be stopped from here.") from None
