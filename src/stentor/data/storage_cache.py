"""Storage cache: files of other machines on this one's disk, as many as fit a limit, the least recently used go first.

`STENTOR_CACHE` names its folder (default: `stentor` in the user's cache folder), `STENTOR_CACHE_GB` its size (default:
100). All processes of a machine share it: a file is brought once, by one of them, and the others wait for it.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stentor.data.atomic_write import atomic_path
from stentor.data.storage import copy_files, copy_to, files_below, info, is_remote, key_of, name_of
from stentor.data.system import POSIX, lock
from stentor.errors import ConfigError, StentorError

FOLDER, LIMIT = "STENTOR_CACHE", "STENTOR_CACHE_GB"
DEFAULT_GB = 100.0
LOCKS = 64
"""Files whose locks say what is being brought; a file's name picks one."""
ABANDONED = 24 * 3600.0
"""Seconds after which a half-brought file is that of a process that was killed."""
REPEATS = 20
"""Files that are fetched again by one process before it says so."""
WHOLE = ".whole"
"""File of a folder that was brought whole."""
PINNED = 4
"""Files that a process has asked for last and that no process deletes: they may not have been opened yet. It keeps each
open, with a shared lock on POSIX; Windows deletes no file that is open."""

_known: dict[str, Path] = {}  # addresses that this process has asked for: one version in all of its life
_pins: deque[Any] = deque()
_repeats = 0
_held: list[Any] = []


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


def local_copy(path: Path) -> Path:
    """A local path with the contents of the file at an address, which is brought into the cache unless it is there; of
    a local path itself. Raises NotFound, DataError, StentorError where the disk is full."""
    if not is_remote(path):
        return path
    address = key_of(path)
    file = _known.get(address)
    if file is None or not _use(file):
        if file is not None:
            _tell_of_repeats()
        facts = info(path)
        key = _key(path, {"": facts})
        file = cache_folder() / "files" / (key + "".join(path.suffixes[-2:])[:20])
        with _lock(key):
            if not _use(file):
                with _storing(path, file, facts.get("size") or 0) as part:
                    copy_to(path, part)
                _use(file)
        _known[address] = file
    return file


def local_folder(path: Path, without: tuple[str, ...] = ()) -> Path:
    """As `local_copy`, of a folder with all that it holds, such as a model, but for files whose names begin with one of
    `without`. It stays while this process lives."""
    if not is_remote(path):
        return path
    listing = {name: facts for name, facts in files_below(path).items() if not name.startswith(without)}
    key = _key(path, listing)
    folder = cache_folder() / "files" / key
    with _lock(key):
        if not (folder / WHOLE).exists():
            with _storing(path, folder, sum(facts.get("size") or 0 for facts in listing.values())) as part:
                copy_files(listing, path, part)
                (part / WHOLE).touch()
        _use(folder / WHOLE, hold=True)
    return folder


def work_place(kind: str, address: Path) -> Path:
    """The folder on this machine where what belongs to an address is made: always the same."""
    digest = hashlib.blake2b(key_of(address).rstrip("/").encode(), digest_size=8).hexdigest()
    folder = cache_folder() / kind / digest
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (address.name or address.parts[0])


def prefetch(path: Path) -> None:
    """Have the file at an address brought into the cache in the background, one after the other. `local_copy` waits for
    it, and says what stands in the way."""
    if is_remote(path):
        _ahead(os.getpid()).submit(local_copy, path)


@functools.lru_cache(1)
def _ahead(process: int) -> ThreadPoolExecutor:
    """One thread for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(1, "storage")


def _tell_of_repeats() -> None:
    """Say once that files come again and again."""
    global _repeats
    _repeats += 1
    if _repeats == REPEATS:
        print(
            f"Files were deleted from the cache and fetched again {REPEATS} times: it holds {limit() / 1e9:g} GB, less "
            f"than what is read over and over. Raise {LIMIT}, or read shards as a stream (`stream: true`).",
            file=sys.stderr,
        )


def _key(path: Any, listing: dict[str, dict[str, Any]]) -> str:
    """A name for what lies at an address: another one when any file of it is another version."""
    parts = ("size", "ETag", "etag", "LastModified", "mtime", "last_commit")
    versions = [[name, *(str(facts.get(part)) for part in parts)] for name, facts in sorted(listing.items())]
    return hashlib.blake2b(repr([key_of(path), versions]).encode(), digest_size=16).hexdigest()


def _use(file: Path, hold: bool = False) -> bool:
    """Whether a file is there; it becomes the one that was used last, and this process holds it for a while, or to its
    end."""
    try:
        handle = open(file, "rb")  # noqa: SIM115 - it is kept open
        with contextlib.suppress(OSError):  # of file systems without locks
            _ = POSIX and lock(handle, shared=True, wait=True)
        with contextlib.suppress(PermissionError):  # another user's
            os.utime(file)
    except FileNotFoundError:
        return False
    (_held if hold else _pins).append(handle)
    while len(_pins) > PINNED:
        _pins.popleft().close()
    return True


@contextlib.contextmanager
def _storing(path: Any, target: Path, size: int) -> Iterator[Path]:
    """A temporary path for what comes from an address; it becomes `target` when it is complete."""
    make_room(size)
    try:
        with atomic_path(target) as part:
            yield part
    except OSError as error:
        if isinstance(error, StentorError):
            raise
        raise StentorError(
            f"{name_of(path)} cannot be brought into the cache {target.parent} ({error}): make room, lower {LIMIT}, or "
            f"name another folder in {FOLDER}."
        ) from error


def make_room(size: int) -> None:
    """Delete the least recently used files until `size` more bytes fit. Files that a process has just asked for stay;
    those that are open can be read to their end."""
    entries, total, allowed = [], size, limit()
    for entry in os.scandir(cache_folder() / "files"):
        with contextlib.suppress(FileNotFoundError):
            path = Path(entry.path)
            mark = path / WHOLE if entry.is_dir() else path
            if entry.name.endswith(".part"):
                if time.time() - entry.stat().st_mtime > ABANDONED:
                    _delete(path)
                continue
            bytes_ = sum(p.stat().st_size for p in path.rglob("*")) if entry.is_dir() else entry.stat().st_size
            entries.append((mark.stat().st_mtime_ns, bytes_, path, mark))
            total += bytes_
    for _, bytes_, path, mark in sorted(entries):
        if total <= allowed:
            break
        with contextlib.suppress(OSError):
            if _delete_unused(path, mark):
                total -= bytes_


def _delete_unused(path: Path, mark: Path) -> bool:
    """Delete a file, or a folder by its `mark`, unless a process holds it. Return whether it was deleted."""
    if not POSIX:
        mark.unlink()  # an OSError while it is open
        _delete(path)
        return True
    with mark.open("rb") as handle:
        if unused := lock(handle):
            _delete(path)
        return unused


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(key: str) -> Iterator[None]:
    """One process, and one thread of it, brings a file at a time."""
    from filelock import FileLock

    folder = cache_folder() / "locks"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / str(int(key, 16) % LOCKS)):
        yield
