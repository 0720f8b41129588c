"""File systems of addresses, through fsspec: calls to servers that are made again while connections break, and what is
said when that does not help."""

from __future__ import annotations

import errno
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

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
"""Failed attempts (of 3 seconds) after which the waiting is reported."""
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
PACKAGES = {"s3": "'stentor[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
"""Package that fsspec needs for a kind of address."""
Result = TypeVar("Result")


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


def filesystem(path: Any, writing: bool = False) -> AbstractFileSystem:
    """fsspec's file system of an address, one for each process: connections do not survive a fork. Raises ConfigError
    where its package is missing."""
    import fsspec

    protocol = str(path).partition("://")[0].lower()
    # What lies there may be changed by other machines: folders are listed again.
    options: dict[str, Any] = {"use_listings_cache": False}
    if is_web(path):
        options["encoded"] = True  # or a signature would be encoded twice
    elif protocol in ("s3", "s3a"):
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}  # `retried` tries again
        options |= {} if writing else {"default_block_size": BLOCK}
    try:
        system = fsspec.filesystem(protocol, **options)
    except ImportError as error:
        fix = f"pip install {PACKAGES[protocol]}" if protocol in PACKAGES else error
        raise ConfigError(f"{name_of(path)} needs a package that is not installed: {fix}.") from None
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
    an attempt that came farther, the failed ones are counted from zero again.

    Raises NotFound where nothing lies at the address. For the rest: DataError where `doing` is "read", StentorError
    otherwise, with the cause and how to fix it.
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
    """Message when another attempt cannot help; None when it may."""
    cause: Any = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    status, kind = _status(cause), type(error).__name__
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
    refused = isinstance(error, OSError) and (isinstance(error, IsADirectoryError) or error.errno == errno.EINVAL)
    if refused or "Param" in kind:
        return _failure(doing, f"{problem}: {short(error)}.")
    return None


def _status(error: Any) -> int | None:
    """The HTTP status that an error names."""
    match error:
        case object(status=int(status)):
            return status
    return None


def _failure(doing: str, message: str) -> StentorError:
    return DataError(message) if doing == "read" else StentorError(message)


def short(error: BaseException) -> str:
    text = without_secrets(" ".join(str(error).split()))[:200].rstrip(".")
    return text or type(error).__name__


def info(path: Any) -> dict[str, Any]:
    """Facts of a server about an address: `size` in bytes (None: it does not say), `type` (file or directory), and what
    tells versions apart. Raises NotFound."""
    return retried(path, lambda: filesystem(path).info(key_of(path)))
