"""Differences between operating systems: locks, processes, signals and file access. Windows lacks `fcntl`, process
groups, positioned reads and flushing of folders; all other modules call this one."""

import _thread
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

POSIX = fcntl is not None
STOP_SIGNALS = tuple(s for s in signal.Signals if s.name in ("SIGTERM", "SIGINT", "SIGBREAK"))
"""Signals that ask a process to stop. Windows delivers SIGTERM to no other process; it has SIGBREAK."""
KILLED, KILLED_ON_WINDOWS = -9, 15
"""Exit codes of a process that was ended with SIGKILL, and with `kill_group` on Windows."""
CHILD: dict[str, Any] = {} if POSIX else {"creationflags": vars(subprocess).get("CREATE_NEW_PROCESS_GROUP", 0)}
"""Options of `subprocess.Popen` for a process that `ask_to_stop` can reach."""
NEW_GROUP: dict[str, Any] = (
    {"start_new_session": True}
    if POSIX
    else {"creationflags": CHILD["creationflags"] | vars(subprocess).get("CREATE_NO_WINDOW", 0)}
)
"""Options for a process that outlives the terminal and that Ctrl-C does not reach."""
_STOP = vars(signal).get("CTRL_BREAK_EVENT", signal.SIGTERM)
_reading = threading.Lock()


def ask_to_stop(process: "subprocess.Popen[Any]") -> None:
    """Ask a process that was started with `CHILD` to save and stop."""
    process.send_signal(_STOP)


def kill_group(pid: int) -> None:
    """End the process group `pid`, on Windows that process and those that it started, immediately. Nothing happens when
    it has ended."""
    if POSIX:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        return
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def can_fork() -> bool:
    """Whether child processes can be forked safely. macOS can fork, but its frameworks fail in the child."""
    import multiprocessing

    return sys.platform == "linux" and "fork" in multiprocessing.get_all_start_methods()


def usable_cores() -> float:
    """Number of cores that this process may use, from its affinity and the quota of its control group."""
    usable = float(len(os.sched_getaffinity(0))) if sys.platform == "linux" else float(os.cpu_count() or 1)
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        most, period = quota.read_text(encoding="utf-8").split()
        if most != "max":
            usable = min(usable, int(most) / int(period))
    return usable


def stop_this_process() -> None:
    """As if SIGTERM had arrived: the main thread runs its handler. Call it from another thread."""
    if POSIX:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        _thread.interrupt_main(signal.SIGTERM)


def lock(file: IO[Any] | int, shared: bool = False, wait: bool = False, inherited: bool = True) -> bool:
    """Lock an open file until it is closed, against all other openings of it. Return whether the lock was obtained.

    On POSIX, several openings can share the lock, and child processes that inherit the file hold it as well, unless
    `inherited` is false: the lock then belongs to this process. On Windows a lock always belongs to one process and is
    never shared. Raises OSError where the file system has no locks.
    """
    number = file if isinstance(file, int) else file.fileno()
    if fcntl is None:
        from filelock import lock_descriptor

        return lock_descriptor(number, blocking=wait)
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        (fcntl.flock if inherited else fcntl.lockf)(number, how)
    except (BlockingIOError, PermissionError):
        return False
    return True


def open_to_read(path: "Path | str") -> int:
    """Descriptor of a file, for `read_at`."""
    return os.open(path, os.O_RDONLY | vars(os).get("O_BINARY", 0))


def read_at(file: int, size: int, offset: int) -> bytes:
    """At most `size` bytes of an open file, from any thread and in any process that inherited it."""
    if POSIX:
        return os.pread(file, size, offset)
    with _reading:
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk. Windows has no such call for folders."""
    if not POSIX and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_folder(path: Path, target: Path) -> None:
    """Make `path` a symbolic link to a folder, which is relative to its parent, or a copy of it where links need a
    privilege (Windows) or the file system has none."""
    part = path.with_name(f".{path.name}.tmp")
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part)
    part.unlink(missing_ok=True)
    try:
        if not POSIX:
            raise OSError
        part.symlink_to(target)
    except OSError:
        shutil.copytree(path.parent / target, part)
        shutil.rmtree(path, ignore_errors=True)
    part.replace(path)
