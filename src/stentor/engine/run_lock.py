"""Run lock: one process at a time trains into a run folder."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from stentor.errors import ConfigError

LOCK = ".lock"
"""File of the run folder that is locked; its text says by whom."""


def run_locked(folder: Path) -> bool:
    """Whether some other process trains into a run folder."""
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
    return False


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which is made when it is not there. Raises ConfigError that names the other one.

    A record lock of the system: it ends with its process, however that ends, and forked data workers, which may outlive
    a killed run by seconds, do not inherit it. Where the file system has no locks, there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise ConfigError(
                f"{folder} is being trained already, by {file.read().strip() or 'another process'}: wait for it or "
                "stop it there, or choose another `name`."
            ) from None
        except OSError:
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        yield
