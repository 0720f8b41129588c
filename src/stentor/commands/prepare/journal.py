"""Journal: the outcomes so far of a command that goes on after a kill; and files that appear complete or not at all."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stentor.data.atomic_write import atomic_path
from stentor.errors import ConfigError, without_secrets


class Journal:
    """JSON lines, each with the `id` of a record or a group, after a first line with the settings of the command.

    Raises ConfigError when the file belongs to a command with other settings. A line that a kill cut short is removed.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        self.offsets: dict[str, int] = {}
        """Of each id, the byte at which its line begins."""
        header = without_secrets(json.dumps({"settings": settings}, ensure_ascii=False)).encode() + b"\n"
        if not path.exists():
            path.write_bytes(header)
            return
        with open(path, "rb+") as file:
            first = file.readline()
            if not first.endswith(b"\n"):  # killed while the header was written
                file.seek(0)
                file.write(header)
                file.truncate()
                return
            if first != header:
                self._refuse(first, settings)
            offset = file.tell()
            for line in file:
                try:
                    name = json.loads(line)["id"]
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                self.offsets[name] = offset
                offset += len(line)
            file.truncate(offset)

    def _refuse(self, header: bytes, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(header)["settings"]
        except (ValueError, KeyError, TypeError):
            before = {}
        changes = [f"{k} was {before.get(k)!r} and is {v!r}" for k, v in settings.items() if before.get(k) != v]
        raise ConfigError(
            f"{self.path} was left by a command with other settings ({'; '.join(changes)}). Run that command again to "
            "go on, or delete the file to start anew."
        )

    def __contains__(self, name: str) -> bool:
        return name in self.offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        with open(self.path, "ab") as file:
            for line in lines:
                offset = file.tell()
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                self.offsets[line["id"]] = offset

    def lines(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The lines of these ids, in their order."""
        with open(self.path, "rb") as file:
            for name in names:
                file.seek(self.offsets[name])
                yield json.loads(file.readline())


def fingerprint(records: Iterable[Any]) -> str:
    """The number of records and a digest of them: another one when a record is added, taken away or changed."""
    digest, count = hashlib.sha256(), 0
    for record in records:
        digest.update(json.dumps(record, default=str).encode())
        count += 1
    return f"{count}:{digest.hexdigest()[:16]}"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file under a temporary name, then rename it: after a kill it is complete, or not there."""
    with atomic_path(path) as part, open(part, "w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    write_lines(path, [without_secrets(json.dumps(content, indent=indent, ensure_ascii=False)) + "\n"])


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    write_lines(path, (json.dumps(record, ensure_ascii=False) + "\n" for record in records))
