"""Storage: paths that are local files or addresses (`s3://`, `gs://`, `hf://`, `https://`), through fsspec.

A local path is a plain `pathlib.Path`. An address is a `UPath`, which has the same interface (`/`, `.name`,
`.exists()`, `.iterdir()`, `.glob()`, `.open()`); its files are read in large blocks ahead of the reader
(`open_read`), brought whole into the cache (stentor.data.storage_cache), and written whole (`upload`). Connections that
break are made again and go on where they were.
"""

from __future__ import annotations

import errno
import functools
import glob
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

from pydantic import PlainSerializer, WrapValidator

from stentor.errors import ConfigError, DataError, MissingData, StentorError, without_secrets

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BLOCK = 8 * 2**20
"""Bytes of one request of a sequential read."""
ATTEMPTS = 10
"""Attempts in a row without a byte, with longer and longer waits (51 seconds in all), after which a read fails."""
LONGEST_WAIT = 26.0
"""Seconds between two attempts, at most."""
SAID_AFTER = 5
"""Failed attempts (of 3 seconds) after which the waiting is told."""
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
AT_ONCE = 8
"""Files that are copied at a time."""
PACKAGES = {"s3": "'stentor[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
"""What fsspec needs for a kind of address."""
Result = TypeVar("Result")
Item = TypeVar("Item")


class NotFound(MissingData, FileNotFoundError):
    """Nothing lies at an address. It is an `OSError` too: code for local files need not know where a file lies."""

    def __init__(self, message: str, path: Path):
        super().__init__(message, path)
        self.strerror = "nothing is there"


def is_remote(path: Any) -> bool:
    """Whether a path or a text is an address (`s3://...`) and no local path."""
    match = None if isinstance(path, Path) else ADDRESS.match(str(path))
    return match is not None and match[1].lower() != "file"


def is_web(path: Any) -> bool:
    """Whether a path or a text is an address of a web server, which lists no folders and takes no files."""
    return str(path).lower().startswith(("http://", "https://"))


def as_path(text: Any) -> Path:
    """A local path as `pathlib.Path`, an address as `UPath` with the same interface. Nothing is asked of a server.
    Raises ConfigError for an address of a kind that is not known."""
    if isinstance(text, Path):
        return text
    if not is_remote(text):
        return Path(str(text).removeprefix("file://"))
    if not isinstance(text, str):  # already one
        return cast("Path", text)
    protocol = text.partition("://")[0].lower()
    return cast("Path", _class_of(protocol)(protocol + text[len(protocol) :]))


@functools.cache
def _class_of(protocol: str) -> Any:
    """The class of the addresses of a protocol."""
    from fsspec.registry import known_implementations
    from upath.registry import get_upath_class, register_implementation

    from stentor.data.remote_path import RemotePath

    base = get_upath_class(protocol) if protocol in known_implementations else None
    if base is None:
        raise ConfigError(f"{protocol}:// is no kind of address that is known: s3, gs, hf and https are.")
    address = type("Address", (RemotePath, base), {"__slots__": ()})
    register_implementation(protocol, address, clobber=True)  # paths made of it, such as its parent, are of it too
    return address


def _validated(value: Any, handler: Callable[[Any], Any]) -> Any:
    if not is_remote(value):
        return handler(value)
    try:
        return as_path(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


StoragePath = Annotated[Path, WrapValidator(_validated), PlainSerializer(str, return_type=str, when_used="json")]
"""Type of the fields of sections, and of options of verbs, that may name an address."""


def join(folder: Path, written: str) -> Path:
    """A path as it is written in a file of `folder`: an address, an absolute path, or one that starts in `folder`."""
    return as_path(written) if is_remote(written) else folder / written


def full_path(path: str) -> str:
    """A path from the root, as it is spelled most shortly, or an address."""
    return path if is_remote(path) else os.path.abspath(path)


def find_paths(pattern: str) -> list[Path]:
    """The files that a pattern names, `**` for any folders, in order of their names."""
    if not is_remote(pattern):
        return [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if i > 2 and glob.has_magic(part)), None)
    if first is None:
        return [path] if (path := as_path(pattern)).exists() else []
    return list(as_path("/".join(parts[:first])).glob("/".join(parts[first:])))


def filesystem(path: Any, writing: bool = False) -> AbstractFileSystem:
    """fsspec's file system of an address, one for each process: connections do not survive a fork. Raises ConfigError
    where its package is missing."""
    import fsspec

    protocol = str(path).partition("://")[0].lower()
    # What lies there may be changed by other machines: folders are listed anew.
    options: dict[str, Any] = {"use_listings_cache": False}
    if is_web(path):
        options["encoded"] = True  # or a signature would be encoded twice
    elif protocol in ("s3", "s3a"):
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}  # `retried` tries again
        options |= {} if writing else {"default_block_size": BLOCK}
    try:
        system = fsspec.filesystem(protocol, **options)
    except ImportError as error:
        mend = f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else error
        raise ConfigError(f"{name_of(path)} needs a package that is not installed: {mend}.") from None
    if "default_block_size" in options:
        system.retries = 1  # a block is asked for again in smaller pieces; parts of uploads as they are
    return system


def key_of(path: Any) -> str:
    """An address as its fsspec file system takes it."""
    text = str(path)
    return quote(text, safe="%/:=&?~#+!$,;'@()*[]") if is_web(text) else text


def name_of(path: Any) -> str:
    """An address for messages: without signature, user and password."""
    text = without_secrets(str(path))
    return text.partition("?")[0] if is_remote(path) else text


def retried(
    path: Any, call: Callable[[], Result], doing: str = "read", reached: Callable[[], int] = lambda: 0
) -> Result:
    """The result of a call to a server, made again while connections break. `reached` says how far it has come: after
    an attempt that came farther, the failed ones are counted anew.

    Raises NotFound where nothing lies at the address. For the rest: DataError where `doing` is "read", StentorError
    otherwise, with what stands in the way and the mend.
    """
    failures, before = 0, reached()
    while True:
        try:
            return call()
        except (StentorError, TypeError, AttributeError, NameError):
            raise
        except Exception as error:  # each file system has its own
            if (final := final_error(error, path, doing)) is not None:
                raise final from error
            failures = 1 if reached() > before else failures + 1
            before = reached()
            if failures == SAID_AFTER:
                print(f"Waiting for {name_of(path)} ({short(error)}).", file=sys.stderr)
            if failures == ATTEMPTS:
                raise _failure(
                    doing,
                    f"{name_of(path)} cannot be {_DONE[doing]}: the connection failed {failures} times in a row "
                    f"({short(error)}). Check the network and the address, then run the same command again.",
                ) from error
        time.sleep(min(LONGEST_WAIT, 0.1 * 2 ** (failures - 1)))


_DONE = {"read": "read", "write": "written", "delete": "deleted"}


def final_error(error: BaseException, path: Any, doing: str) -> StentorError | None:
    """What to say when another attempt cannot help; None when it may."""
    cause: Any = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    status, kind = getattr(cause, "status", None), type(error).__name__
    problem = f"{name_of(path)} cannot be {_DONE[doing]}"
    if status in (401, 403) or isinstance(error, PermissionError) or "Credential" in kind or kind == "ProfileNotFound":
        return _failure(
            doing,
            f"{problem}: access is denied ({short(error)}). Check the credentials (docs/storage.md says where each "
            "kind of storage looks for them) and their permissions.",
        )
    if isinstance(error, FileNotFoundError):
        # fsspec's HTTP says so of every failure.
        if type(cause).__module__.partition(".")[0] == "aiohttp" and status not in (404, 410):
            return None
        return NotFound(f"{name_of(path)} does not exist: check the bucket and the path.", path)
    if isinstance(error, NotImplementedError):
        return ConfigError(f"{problem}: this kind of storage does not allow it.")
    if isinstance(error, IsADirectoryError) or getattr(error, "errno", None) == errno.EINVAL or "Param" in kind:
        return _failure(doing, f"{problem}: {short(error)}.")
    return None


def _failure(doing: str, message: str) -> StentorError:
    return DataError(message) if doing == "read" else StentorError(message)


def short(error: BaseException) -> str:
    text = without_secrets(" ".join(str(error).split()))[:200].rstrip(".")
    return text or type(error).__name__


def info(path: Any) -> dict[str, Any]:
    """What a server says of an address: `size` in bytes (None: it does not say), `type` (file or directory), and what
    tells versions apart. Raises NotFound."""
    return retried(path, lambda: filesystem(path).info(key_of(path)))


def files_below(path: Any) -> dict[str, dict[str, Any]]:
    """The files in the folder at an address and in its folders, by their names from there, with what `info` says of
    them. Raises NotFound where there are none."""
    if is_web(path):
        raise ConfigError(f"{name_of(path)}: web servers list no folders; take s3://, gs:// or hf://, or a local copy.")
    root = key_of(path).rstrip("/")
    system = filesystem(path)
    listing = retried(path, lambda: system.find(root, detail=True))
    start = len(system._strip_protocol(root)) + 1
    files = {name[start:]: facts for name, facts in listing.items() if name[start:] and not name.endswith("/")}
    if not files:
        raise NotFound(f"{name_of(path)} does not exist: check the bucket and the path.", path)
    return files


def read_whole(path: Any) -> bytes:
    """All bytes of a small file, of an address in one request. Raises NotFound, DataError."""
    if not is_remote(path):
        return Path(path).read_bytes()
    return retried(path, lambda: cast("bytes", filesystem(path).cat_file(key_of(path))))


def open_read(path: Any) -> BinaryIO:
    """A file for reading bytes, from front to back or by `seek`. Of an address, the next blocks are fetched in the
    background while one is used, and a block whose connection breaks goes on where it was. Raises NotFound, or
    FileNotFoundError of a local path; DataError, also from reads."""
    if not is_remote(path):
        return open(path, "rb")
    from stentor.data.block_reader import BlockReader

    facts = info(path)
    if facts["type"] == "directory":
        raise DataError(f"{name_of(path)} is a folder, not a file.")
    size = facts["size"]
    # What has no known length does not come in blocks.
    file: Any = io.BytesIO(read_whole(path)) if size is None else BlockReader(path, int(size))
    return cast("BinaryIO", io.BufferedReader(file, buffer_size=2**20))


def copy_to(path: Any, file: Path) -> None:
    """Copy a file to a local one, whose folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_read(path) as source, file.open("wb") as target:
        while data := source.read(BLOCK):
            target.write(data)


def upload(local: Path, remote: Path) -> None:
    """Copy a local file to an address, where it appears whole or not at all. Raises StentorError, and ConfigError for a
    kind of storage that cannot be written."""
    if is_web(remote):
        raise ConfigError(f"{name_of(remote)} cannot be written: write to a folder or to s3://, gs:// or hf://.")
    retried(remote, lambda: filesystem(remote, True).put_file(str(local), key_of(remote)), "write")


def at_once(call: Callable[[Item], Any], items: Iterable[Item]) -> None:
    """A call for each item, some of them at a time. Raises what the first one raises that fails."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(call, items))


def copy_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy files of a folder into another one; one of them is at an address."""
    copy = upload if is_remote(target) else copy_to
    at_once(lambda name: copy(source / name, target / name), names)
