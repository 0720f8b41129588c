"""Journal: the results so far of a command, to resume it after a kill; and atomic file writes."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stentor.data.atomic_write import atomic_path
from stentor.data.cut import UnusableRecord
from stentor.data.storage import is_remote
from stentor.data.storage_cache import work_place
from stentor.errors import ConfigError, without_secrets

RecordT = TypeVar("RecordT")

PUBLISHED_EVERY = 60.0
"""Seconds between uploads of a journal in remote storage, and so the maximum loss after a kill."""


class OtherSettings(ConfigError):
    """A folder has results of other settings."""


def work_path(path: Path) -> Path:
    """Return the path of a file until it is complete: next to it, or in a local folder for remote storage."""
    if not is_remote(path):
        return path.with_name(f".{path.name}.part")
    folder = work_place("parts", path.parent)
    folder.mkdir(exist_ok=True)
    return folder / path.name


class Journal:
    """JSON lines, each with the `id` of a record or a group, after a first line with the settings of the command.

    If an id occurs twice, the second line counts. A journal in remote storage is a folder of files with some lines
    each, because remote files cannot be appended to; any machine can resume from them.

    Raises OtherSettings if the file is of a command with other settings. An incomplete last line is removed.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path, self.file = path, work_path(path) if is_remote(path) else path
        self.offsets: dict[str, int] = {}
        """Byte offset of the line of each id."""
        self.segments = 0
        """Number of files in remote storage."""
        if is_remote(path):
            parts = sorted(path.iterdir()) if path.is_dir() else []
            self.file.write_bytes(b"".join(part.read_bytes() for part in parts))
            self.segments = len(parts)
        self.published = self.file.stat().st_size if self.segments else 0
        """Bytes in remote storage, and the time of the last upload."""
        self.published_at = time.monotonic()
        self._read(settings)

    def _read(self, settings: dict[str, Any]) -> None:
        """Read the existing lines after checking the header."""
        path = self.file
        header = without_secrets(json.dumps({"settings": settings}, ensure_ascii=False)).encode() + b"\n"
        if not path.exists():
            path.write_bytes(header)
            return
        with open(path, "rb+") as file:
            first = file.readline()
            # Killed while the header was written, or ended before anything was done: there is nothing to lose.
            if not first.endswith(b"\n") or (first != header and not file.readline().endswith(b"\n")):
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
        raise OtherSettings(
            f"{self.path} is from a command with other settings ({'; '.join(changes)}). Run that command again to "
            "resume it, or delete the file to start again."
        )

    def __contains__(self, name: str) -> bool:
        return name in self.offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        with open(self.file, "ab") as file:
            for line in lines:
                offset = file.tell()
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                self.offsets[line["id"]] = offset
        if time.monotonic() > self.published_at + PUBLISHED_EVERY:
            self.publish()

    def publish(self) -> None:
        """Upload the lines since the last time if the journal is in remote storage."""
        self.published_at = time.monotonic()
        size = self.file.stat().st_size
        if not is_remote(self.path) or size == self.published:
            return
        with atomic_path(self.path / f"{self.segments:08d}.jsonl") as part, open(self.file, "rb") as file:
            file.seek(self.published)
            part.write_bytes(file.read())
        self.segments, self.published = self.segments + 1, size

    def lines(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the lines of these ids, in order."""
        with open(self.file, "rb") as file:
            for name in names:
                file.seek(self.offsets[name])
                yield json.loads(file.readline())

    def outcomes(self, names: Iterable[str]) -> tuple[list[dict[str, Any]], list[UnusableRecord]]:
        """Return the records created for these ids, and the unusable ones."""
        lines = list(self.lines(names))
        rejects = [UnusableRecord(line["id"], line["dropped"], line["message"]) for line in lines if "dropped" in line]
        return [line["record"] for line in lines if "record" in line], rejects


def remove_journal(path: Path) -> None:
    """Delete a journal when everything is done."""
    if not is_remote(path):
        path.unlink(missing_ok=True)
        return
    from stentor.data.storage import rmtree

    rmtree(path)
    shutil.rmtree(work_path(path).parent, ignore_errors=True)


def made_before(folder: Path, settings: dict[str, Any], what: str) -> dict[str, Any] | None:
    """Return the `summary.json` of a folder that is complete with these settings, and remove leftover journals. Raises
    OtherSettings if the folder has other `what`, and ConfigError if it has a manifest of another command, which would
    be overwritten, or is a file."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: give a folder as --to.")
    path = folder / "summary.json"
    if not path.is_file():
        if (folder / "manifest.jsonl").is_file() and not any(folder.glob("*.jsonl.part")):
            raise ConfigError(f"{folder} already has a manifest.jsonl of another command: give another --to.")
        return None
    summary: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if summary.get("settings") != settings:
        raise OtherSettings(f"{folder} has {what} of other settings: give another folder as --to.")
    for journal in folder.glob("*.jsonl.part"):
        remove_journal(journal)
    print(f"{folder} is already complete. To create it again, give another --to.", flush=True)
    return summary


class Fingerprint:
    """Number and digest of records, as a string that changes when a record is added, removed or changed. `describe`
    returns the relevant content of a record."""

    def __init__(self, describe: Callable[[Any], Any]):
        self.describe, self.digest, self.count = describe, hashlib.sha256(), 0

    def through(self, records: Iterable[RecordT]) -> Iterator[RecordT]:
        """Yield the records and add them to the digest."""
        for record in records:
            self.digest.update(json.dumps(self.describe(record), default=str).encode())
            self.count += 1
            yield record

    def __str__(self) -> str:
        return f"{self.count}:{self.digest.hexdigest()[:16]}"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file atomically: after a kill it is complete or missing. Creates its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part, open(part, "w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    write_lines(path, [without_secrets(json.dumps(content, indent=1, ensure_ascii=False)) + "\n"])


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    write_lines(path, (json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
