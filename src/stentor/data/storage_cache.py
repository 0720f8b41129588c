"""Storage cache: files of other machines on this one's disk, as many as fit a limit, the least recently used go first.

`STENTOR_CACHE` names its folder (default: `stentor` in the user's cache folder), `STENTOR_CACHE_GB` its size (default:
100). All processes of a machine share it: a file is brought once, by one of them, and the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stentor.data.storage import BLOCK, ConfigError, StentorError, info, key_of, name_of, open_read

FOLDER, LIMIT = "STENTOR_CACHE", "STENTOR_CACHE_GB"
DEFAULT_GB = 100.0
LOCKS = 64
"""Files whose locks say what is being brought; a file's name picks one."""
ABANDONED = 24 * 3600.0
"""Seconds after which a half-brought file is that of a process that was killed."""
PINNED = 4
"""Files that a process has asked for last and that nobody deletes: they may not have been opened yet."""

_known: dict[str, Path] = {}  # addresses that this process has asked for: one version in all of its life
_pins: deque[Any] = deque()
_guard = threading.Lock()


def cache_folder() -> Path:
    """The folder of the cache, which is made when it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get(FOLDER) or Path(base) / "stentor").expanduser()
    (folder / "files").mkdir(parents=True, exist_ok=True)
    return folder


def limit() -> int:
    """Bytes that the cache may hold."""
    text = os.environ.get(LIMIT) or str(DEFAULT_GB)
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise ConfigError(f"{LIMIT} must be a number of gigabytes, got {text}.") from None


def cached(path: Any) -> Path:
    """The local copy of the file at an address. Raises NotFound, DataError, StentorError where the disk is full."""
    address = key_of(path)
    file = _known.get(address)
    if file is None or not _use(file):
        facts = info(path)
        version = "|".join(str(facts.get(k)) for k in ("size", "ETag", "etag", "LastModified", "mtime", "last_commit"))
        key = hashlib.blake2b(f"{address}|{version}".encode(), digest_size=16).hexdigest()
        file = cache_folder() / "files" / (key + "".join(Path(path.path).suffixes[-2:])[:20])
        with _lock(key):
            if not _use(file):
                _bring(path, file, facts.get("size"))
                _use(file)
        _known[address] = file
    return file


def _use(file: Path) -> bool:
    """Whether a file is there; it becomes the one that was used last, and this process holds it for a while."""
    try:
        handle = open(file, "rb")  # noqa: SIM115 - it is kept open
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.utime(file)
    except FileNotFoundError:
        return False
    with _guard:
        _pins.append(handle)
        while len(_pins) > PINNED:
            _pins.popleft().close()
    return True


def _bring(path: Any, file: Path, size: int | None) -> None:
    """Copy the file at an address into the cache in one sequential read; it appears when it is complete."""
    make_room(size or 0)
    part = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open_read(path) as source, part.open("wb") as target:
            while data := source.read(BLOCK):
                target.write(data)
        os.replace(part, file)
    except OSError as error:
        if isinstance(error, StentorError):
            raise
        raise StentorError(
            f"{name_of(path)} cannot be brought into the cache {file.parent} ({error}): make room, lower {LIMIT}, or "
            f"name another folder in {FOLDER}."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def make_room(size: int) -> None:
    """Delete the least recently used files until `size` more bytes fit. Files that a process has just asked for stay;
    those that are open can be read to their end."""
    entries, total, allowed = [], size, limit()
    for entry in os.scandir(cache_folder() / "files"):
        with contextlib.suppress(FileNotFoundError):
            facts = entry.stat()
            if entry.name.endswith(".part") and time.time() - facts.st_mtime > ABANDONED:
                os.unlink(entry.path)
            elif not entry.name.endswith(".part"):
                entries.append((facts.st_mtime_ns, facts.st_size, entry.path))
            total += facts.st_size
    for _, bytes_, name in sorted(entries):
        if total <= allowed:
            break
        with contextlib.suppress(OSError), open(name, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
            total -= bytes_


@contextlib.contextmanager
def _lock(key: str) -> Iterator[None]:
    """One process, and one thread of it, brings a file at a time."""
    folder = cache_folder() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / str(int(key, 16) % LOCKS)).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
