"""Remote path: what an address does otherwise than the `UPath` it is."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stentor.data import storage
from stentor.errors import MissingData


class RemotePath:
    """Mixed into the class of an address. Its file system is that of this process, also after a fork; servers are asked
    again when connections break, and what stands in the way is an error with a mend."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return storage.as_path, (str(self),)

    @property
    def fs(self) -> Any:
        return storage.filesystem(self)

    def _type(self) -> str | None:
        try:
            return str(storage.info(self)["type"])
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
        entries = storage.retried(self, lambda: self.fs.ls(storage.key_of(self), detail=False))
        names = sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries})
        folder = str(self).rstrip("/").rpartition("/")[2]
        yield from (self / name for name in names if name and name != folder)  # type: ignore[operator]

    def glob(self, pattern: str, **_: Any) -> Iterator[Any]:
        base = storage.key_of(self).rstrip("/")
        matches = storage.retried(self, lambda: self.fs.glob(f"{base}/{pattern}"))
        root = self.fs._strip_protocol(base).rstrip("/")
        yield from (self / m[len(root) + 1 :] for m in sorted(matches) if m != root)  # type: ignore[operator]

    def rglob(self, pattern: str, **_: Any) -> Iterator[Any]:
        yield from self.glob(f"**/{pattern}")

    def read_bytes(self) -> bytes:
        return storage.read_whole(self)

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *_: Any, encoding: str | None = None, **__: Any) -> Any:
        """For reading only: files at an address are written by `upload`."""
        if not set(mode) <= set("rbt"):
            raise NotImplementedError(f"{storage.name_of(self)}: files at an address are written by `upload`.")
        file = storage.open_read(self)
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8")

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Nothing: folders of object storage are there when they hold a file."""

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            storage.retried(self, lambda: self.fs.rm_file(storage.key_of(self)), "delete")
        except MissingData:
            if not missing_ok:
                raise


def rmtree(folder: Path) -> None:
    """Delete the folder at an address with all that it holds, if it is there."""
    with contextlib.suppress(MissingData):
        storage.retried(folder, lambda: storage.filesystem(folder, True).rm(str(folder), recursive=True), "delete")
