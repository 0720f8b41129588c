"""Tar index: where the members of a tar file lie, from its headers alone; damage is reported, not raised.

Understands what tar writers write for plain files: POSIX ustar with its prefix, GNU long names, pax paths and sizes.
The standard library's tarfile gives no index of a file that is damaged or cut off: it stops, or raises.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stentor.data import system
from stentor.data.storage import as_path
from stentor.data.storage_cache import local_copy
from stentor.errors import AudioError

BLOCK = 512
FILES = (b"0", b"\0", b"7")
"""Types of members that are files."""


class ByteRange(NamedTuple):
    """Where a member's data lies in the tar file, in bytes."""

    offset: int
    size: int


@dataclass
class Index:
    """The members of a tar file that are wholly there, by name, in their order."""

    members: dict[str, ByteRange] = field(default_factory=dict)
    damage: str | None = None
    """Reason why nothing could be read beyond the last member ("is cut off inside of 'a.npy' ..."). None for a whole
    file."""
    truncated: bool = False
    """Whether the file ends too early."""


class _Damaged(Exception):
    """The rest of the file cannot be read."""


def index(path: Path | str) -> Index:
    """The members of an uncompressed tar file; one at an address is brought into the cache whole. Raises OSError when
    it cannot be opened or read."""
    tar = Index()
    with local_copy(as_path(path)).open("rb") as file:
        end = file.seek(0, 2)
        at = 0
        extended: dict[str, str] = {}  # path and size of the next member, from an extended header
        try:
            while True:
                file.seek(at)
                header = file.read(BLOCK)
                if len(header) < BLOCK:
                    # Without the end mark, a cut between two members looks like a whole file: `truncated` tells.
                    tar.truncated = True
                    if header or not at:
                        tar.damage = f"is cut off after {end:,} bytes, inside of a header"
                    else:
                        tar.damage = f"is cut off after {end:,} bytes: it has no end mark"
                    return tar
                if not header.strip(b"\0"):
                    return tar
                name, kind, size = _header(header, at)
                data = at + BLOCK
                if kind in (b"L", b"x"):
                    extended |= _extended(file.read(size), kind)
                elif kind not in (b"K", b"g"):
                    name, size = extended.get("path", name), int(extended.get("size", size))
                    if data + size > end:
                        tar.truncated = True
                        tar.damage = f"is cut off after {end:,} bytes, inside of '{name}'"
                        return tar
                    if kind in FILES:
                        tar.members.setdefault(name.removeprefix("./"), ByteRange(data, size))
                    extended = {}
                at = data + -(-size // BLOCK) * BLOCK
        except _Damaged as error:
            tar.damage = str(error)
            return tar


def _header(header: bytes, at: int) -> tuple[str, bytes, int]:
    """Name, type and size of a member."""
    try:
        checksum = _number(header[148:156])
        size = _number(header[124:136])
    except ValueError:
        checksum, size = -1, 0
    if checksum != sum(header) - sum(header[148:156]) + 8 * 0x20:
        kind = "is compressed" if not at and header[:2] == b"\x1f\x8b" else f"is damaged at byte {at:,}: no tar header"
        raise _Damaged(kind)
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    return name.decode("utf-8", "backslashreplace"), header[156:157], size


def _number(digits: bytes) -> int:
    if digits[0] & 0x80:  # base 256, for what octal digits cannot hold
        return int.from_bytes(digits[1:], "big")
    return int(digits.strip(b" \0") or b"0", 8)


def _extended(data: bytes, kind: bytes) -> dict[str, str]:
    """Path and size from a GNU long name or a pax header."""
    if kind == b"L":
        return {"path": data.partition(b"\0")[0].decode("utf-8", "backslashreplace")}
    fields: dict[str, str] = {}
    while data:
        length, _, record = data.partition(b" ")
        if not length.isdigit() or int(length) <= len(length) + 1:
            break
        key, _, value = record[: int(length) - len(length) - 2].partition(b"=")
        if key in (b"path", b"size"):
            fields[key.decode()] = value.decode("utf-8", "backslashreplace")
        data = data[int(length) :]
    return fields


def read_at(location: Mapping[str, int | str]) -> bytes:
    """The bytes at `{"path", "offset", "size"}`; fewer where the file ends early. Raises OSError without the file."""
    return system.read_at(_open(str(location["path"])), int(location["size"]), int(location["offset"]))


def read_member(location: Mapping[str, Any], name: str) -> bytes:
    """All bytes of a member; `name` stands in errors. Raises AudioError: `missing`, `truncated`."""
    try:
        data = read_at(location)
    except OSError as error:
        raise AudioError(f"{name} cannot be read: {error.strerror}.", "missing") from None
    if len(data) < location["size"]:
        raise AudioError(f"{name} is cut off: its tar file has become shorter.", "truncated")
    return data


_descriptors: dict[str, int] = {}
MOST_OPEN = 32


def _open(path: str) -> int:
    """A descriptor of the file, opened once: on network drives opening costs more than reading. Reads go by offset and
    move nothing, so that a worker process may use the files that its parent had open."""
    descriptor = _descriptors.pop(path, None)
    if descriptor is None:
        descriptor = system.open_to_read(local_copy(as_path(path)))
    while len(_descriptors) >= MOST_OPEN:
        os.close(_descriptors.pop(next(iter(_descriptors))))
    _descriptors[path] = descriptor  # the latest last
    return descriptor
