"""Hides from Stentor what Python on Windows lacks. A folder on PYTHONPATH: every process that a test starts runs it.

Modules of `stentor` see other `os`, `sys`, `signal`, `subprocess` and `multiprocessing`, and cannot import `fcntl` and
the like. Packages that have code of their own for Windows see the real ones. Symbolic links fail for all.
"""

import builtins
import enum
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import types

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
PROCESSES = ("fork", "forkpty", "killpg", "setsid", "setpgid", "getpgid", "getpgrp", "wait", "waitid", "wait3", "wait4")
USERS = ("getuid", "geteuid", "getgid", "getegid", "chown", "fchown", "lchown")
FILES = ("pread", "pwrite", "preadv", "posix_fadvise", "posix_fallocate", "memfd_create", "statvfs", "sync", "mkfifo")
FLAGS = ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "WNOWAIT", "WEXITED", "P_PID")
SYSTEM = ("sched_getaffinity", "nice", "getpriority", "getloadavg", "uname", "sysconf", "fchmod", "openpty")


class View(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, real: types.ModuleType, hidden: set[str], **other: object):
        super().__init__(real.__name__)
        self.__dict__.update(
            {n: v for n, v in vars(real).items() if n not in hidden and not n.startswith("__")}, **other
        )


class Sys(types.ModuleType):
    """`sys`, whose names change, of another platform."""

    platform = "win32"

    def __getattr__(self, name: str) -> object:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(sys, name, value)


def opened(path, flags, *rest, **named):
    """Windows opens no folder."""
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, flags, *rest, **named)


def flushed(file):
    """Windows flushes only what is open for writing."""
    with builtins.open(f"/proc/self/fdinfo/{file}", encoding="ascii") as facts:
        flags = next(int(line.split()[1], 8) for line in facts if line.startswith("flags"))
    if not flags & (os.O_WRONLY | os.O_RDWR):
        raise OSError(9, "Bad file descriptor")
    os.fsync(file)


def killed(pid, number):
    """On Windows the process ends without a handler."""
    assert number != 0, "os.kill(pid, 0) ends a process on Windows"
    os.kill(pid, 9)


class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        for name in ("preexec_fn", "pass_fds", "start_new_session", "process_group", "user", "umask"):
            assert name not in options, f"{name} does nothing on Windows"
        assert options.pop("creationflags", 0) == 0
        super().__init__(*arguments, **options)


def renamed(self, target):
    """Windows renames nothing onto a file that is there."""
    if os.path.exists(target):
        raise FileExistsError(17, "File exists", str(target))
    os.rename(self, target)
    return self.with_segments(target) if sys.version_info >= (3, 12) else type(self)(target)


def no_link(*arguments, **options):
    raise OSError(1314, "A required privilege is not held by the client")


def context(name=None):
    if name not in (None, "spawn"):
        raise ValueError(f"cannot find context for {name!r}")
    return multiprocessing.get_context("spawn")


signals = enum.IntEnum("Signals", {s.name: s.value for s in signal.Signals if s.name in SIGNALS})
VIEWS = {
    "sys": Sys("sys"),
    "os": View(os, {*PROCESSES, *USERS, *FILES, *FLAGS, *SYSTEM}, open=opened, fsync=flushed, kill=killed, O_BINARY=0),
    "signal": View(signal, {n for n in vars(signal) if n.startswith("SIG") and n not in SIGNALS}, Signals=signals),
    "subprocess": View(subprocess, set(), Popen=Popen),
    "multiprocessing": View(multiprocessing, set(), get_all_start_methods=lambda: ["spawn"], get_context=context),
}
real_import = builtins.__import__


def imported(name, globals=None, locals=None, fromlist=(), level=0):
    if str((globals or {}).get("__package__")).partition(".")[0] == "stentor":  # also where __name__ is __main__
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in VIEWS:
            return VIEWS[name]
    return real_import(name, globals, locals, fromlist, level)


builtins.__import__ = imported
os.symlink = no_link
pathlib.Path.rename = renamed
multiprocessing.set_start_method("spawn")
