"""Storage: paths that are local files or addresses (`s3://`, `gs://`, `hf://`, `https://`), through fsspec.

A local path is a plain `pathlib.Path`. An address is a `UPath`, which has the same interface (`/`, `.name`,
`.exists()`, `.iterdir()`, `.glob()`, `.open()`); its files are read in large blocks ahead of the reader
(`open_read`), brought whole into the cache (stentor.data.storage_cache), and written whole (`upload`). Connections that
break are made again and continue where they were.
"""

import contextlib
import functools
import glob
import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, cast

from pydantic import PlainSerializer, WrapValidator

from stentor.data.block_reader import BlockReader
from stentor.data.file_system import BLOCK, NotFound, filesystem, info, is_remote, is_web, key_of, name_of, retried
from stentor.errors import ConfigError, DataError, MissingData

AT_ONCE = 8
"""Files that are copied at a time."""
Item = TypeVar("Item")


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


class RemotePath:
    """Mixed into the class of an address. Its file system is that of this process, also after a fork; servers are asked
    again when connections break, and failures are errors that say how to fix them."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return as_path, (str(self),)

    @property
    def fs(self) -> Any:
        return filesystem(self)

    def _type(self) -> str | None:
        try:
            return str(info(self)["type"])
        except MissingData:
            return None

    def exists(self, **_: Any) -> bool:
        return self._type() is not None

    def is_file(self, **_: Any) -> bool:
        return self._type() == "file"

    def is_dir(self, **_: Any) -> bool:
        return self._type() == "directory"

    def is_absolute(self) -> bool:
        return True

    def resolve(self, strict: bool = False) -> Any:
        return self

    def iterdir(self) -> Iterator[Any]:
        entries = retried(self, lambda: self.fs.ls(key_of(self), detail=False))
        names = sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries})
        folder = str(self).rstrip("/").rpartition("/")[2]
        yield from (self / name for name in names if name and name != folder)  # type: ignore[operator]

    def glob(self, pattern: str, **_: Any) -> Iterator[Any]:
        base = key_of(self).rstrip("/")
        matches = retried(self, lambda: self.fs.glob(f"{base}/{pattern}"))
        root = self.fs._strip_protocol(base).rstrip("/")
        yield from (self / m[len(root) + 1 :] for m in sorted(matches) if m != root)  # type: ignore[operator]

    def rglob(self, pattern: str, **_: Any) -> Iterator[Any]:
        yield from self.glob(f"**/{pattern}")

    def read_bytes(self) -> bytes:
        return read_whole(self)

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *_: Any, encoding: str | None = None, **__: Any) -> Any:
        """For reading only: files at an address are written by `upload`."""
        if not set(mode) <= set("rbt"):
            raise NotImplementedError(f"{name_of(self)}: files at an address are written by `upload`.")
        file = open_read(self)
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8")

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Nothing: folders of object storage are there when they hold a file."""

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            retried(self, lambda: self.fs.rm_file(key_of(self)), "delete")
        except MissingData:
            if not missing_ok:
                raise


@functools.cache
def _class_of(protocol: str) -> Any:
    """The class of the addresses of a protocol."""
    from fsspec.registry import known_implementations
    from upath.registry import get_upath_class, register_implementation

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
    background while one is used, and a block whose connection breaks continues where it was. Raises NotFound, or
    FileNotFoundError of a local path; DataError, also from reads."""
    if not is_remote(path):
        return open(path, "rb")
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


def rmtree(folder: Path) -> None:
    """Delete the folder at an address with all that it holds, if it is there."""
    with contextlib.suppress(MissingData):
        retried(folder, lambda: filesystem(folder, True).rm(str(folder), recursive=True), "delete")


def at_once(call: Callable[[Item], Any], items: Iterable[Item]) -> None:
    """A call for each item, some of them at a time. Raises what the first one raises that fails."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(call, items))


def copy_files(names: Iterable[str], source: Path, target: Path) -> None:
    """Copy files of a folder into another one; one of them is at an address."""
    copy = upload if is_remote(target) else copy_to
    at_once(lambda name: copy(source / name, target / name), names)
