"""Run lock: one process at a time trains into a run folder."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from stentor.data.storage import name_of, upload
from stentor.data.system import lock, stop_this_process
from stentor.errors import ConfigError, MissingData, StentorError

LOCK = ".lock"
"""Name of the lock file in the run folder; its text names the holder."""
RENEWED_EVERY = 10.0
"""Seconds after which a lock at an address is refreshed."""
PATIENCE = 40.0
"""Seconds in which a lock at an address that is not refreshed is that of a machine that was lost."""
FORGOTTEN = 900.0
"""Age in seconds from which on no process waits for that; clocks of machines differ less."""


def run_locked(folder: Path) -> bool:
    """Return whether another process trains into a run folder."""
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open("rb") as file:
        with contextlib.suppress(OSError):
            return not lock(file, shared=True, inherited=False)
    return False


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which is created if needed. Raises ConfigError naming another holder.

    It is a record lock of the system: it ends with its process in any case, and forked data workers, which may outlive
    a killed run by seconds, do not inherit it, unlike those of filelock. File systems without locks are not locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            if not lock(file, inherited=False):
                file.seek(1)  # Windows refuses to read the first byte, which is locked
                raise ConfigError(
                    f"{folder} is already being trained by {file.read().strip() or 'another process'}: wait for it "
                    "or stop it there, or choose another `name`."
                )
        except OSError:
            yield
            return
        file.seek(0)
        before = file.read()
        _write_lock(file, f"\n{_this_process()}\n")
        try:
            yield
        finally:  # a refused start leaves the run folder unchanged
            _write_lock(file, before)


def _write_lock(file: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk
        file.truncate(0)
        file.write(text)
        file.flush()


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


class AddressLock:
    """Lock of a run folder at an address: a file that a thread of its holder refreshes all the time. `taken_by` names
    another machine that has taken it meanwhile; then this process is asked to stop as by SIGTERM."""

    def __init__(self, address: Path, copy: Path):
        self.address, self.lock, self.copy = address, address / LOCK, copy
        """`copy`: the last written content, so that the next process of this machine recognises its own lock."""
        self.holder, self.taken_by = _this_process(), ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> "AddressLock":
        """Take the lock. Raises ConfigError naming another holder."""
        other = self._other()
        if other is not None and time.time() - other["time"] < FORGOTTEN:
            name = name_of(self.address)
            print(f"{name} is locked by {other['holder']}: waiting {PATIENCE:g} s for a sign of it.", flush=True)
            time.sleep(PATIENCE)
            if self._other() not in (other, None):
                raise ConfigError(
                    f"{name} is already being trained by {other['holder']}: wait for it or stop it there, or choose "
                    "another `name`."
                )
        try:
            self._write()
        except MissingData:
            raise ConfigError(f"{name_of(self.address)} cannot be written: there is no such bucket.") from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        with contextlib.suppress(StentorError):
            if self._other() is None:
                self.lock.unlink(missing_ok=True)

    def _other(self) -> dict[str, Any] | None:
        """Content of the address, unless it is empty or this machine has written it."""
        try:
            text = self.lock.read_text()
        except MissingData:
            return None
        if self.copy.exists() and self.copy.read_text() == text:
            return None
        try:
            content = json.loads(text)
            return {"holder": str(content["holder"]), "time": float(content["time"])}
        except (ValueError, TypeError, KeyError):  # of another program
            return {"holder": "a program that left no name", "time": 0.0}

    def _write(self) -> None:
        self.copy.write_text(json.dumps({"holder": self.holder, "time": time.time()}))
        upload(self.copy, self.lock)

    def _renew(self) -> None:
        while not self._stopping.wait(RENEWED_EVERY):
            with contextlib.suppress(StentorError):  # the connection may come back
                if (other := self._other()) is not None:
                    self.taken_by = other["holder"]
                    print(f"{name_of(self.address)} was taken over by {self.taken_by}: stopping here.", flush=True)
                    stop_this_process()
                    return
                if not str(self.address).startswith("hf://"):  # each file is a commit there
                    self._write()
