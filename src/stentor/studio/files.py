"""Names, paths and writing below the projects folder: the one place that decides where the studio reads and writes."""

import contextlib
import errno
import json
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stentor.data.system import lock, sync
from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError, StentorError

LONGEST_NAME = 64
_MOST_NAME_BYTES = 200
"""Limit of a name in UTF-8: disks take 255, and files next to a folder have longer names."""
LONGEST_TEXT = 5000
"""Characters of the longest transcript."""
LONGEST_LABEL = 100
"""Characters of the longest language, speaker or prompt id."""
Record = dict[str, Any]
"""A recording of a data set, as a line of a manifest has it."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


def is_name(name: object) -> bool:
    """Whether something can name a data set or a run: letters of any alphabet, digits, - and _, in composed characters
    (NFC). None begins with a dash, so none can be taken for an option of a command; no sign is invisible."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= LONGEST_NAME
        or len(name.encode("utf-8", "replace")) > _MOST_NAME_BYTES
    ):
        return False
    return name[0].isalnum() and all(map(_in_names, name)) and unicodedata.is_normalized("NFC", name)


def _in_names(sign: str) -> bool:
    """Letters, digits, and the marks that many alphabets write their vowels with."""
    return sign.isalnum() or sign in "-_" or unicodedata.category(sign) in ("Mn", "Mc")


def checked_name(name: str, what: str = "name") -> str:
    """The name in composed characters. Raises ConfigError for one that could not be a folder's name everywhere."""
    composed = unicodedata.normalize("NFC", name) if isinstance(name, str) else name
    if not is_name(composed):
        shown = str(name)[:80]
        raise ConfigError(
            f"{shown!r} cannot be the {what}: use 1 to {LONGEST_NAME} letters, digits, - and _, and begin with a "
            "letter or a digit."
        )
    return composed


def same_name(name: str) -> str:
    """Form of a name that is equal for names that a disk, or a person, may confuse."""
    return unicodedata.normalize("NFKC", name).casefold()


def name_from(text: str, otherwise: str = "recording") -> str:
    """A valid name that resembles a text, such as the name of an uploaded file."""
    composed = unicodedata.normalize("NFC", text)
    plain = "".join(sign if _in_names(sign) else "-" for sign in composed)
    short = (
        re.sub("-+", "-", plain).strip("-_")[:LONGEST_NAME].encode()[: _MOST_NAME_BYTES - 10].decode("utf-8", "ignore")
    )
    return short if is_name(short) else otherwise


def new_id() -> str:
    """A name that is never given again; names in order of time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def inside(root: Path, *parts: str) -> Path:
    """The path of something below `root`, links resolved. It need not exist.

    Raises ConfigError for what is not below it: `..`, absolute paths, links that lead out, NUL bytes, backslashes.
    """
    home = Path(root).resolve()
    for part in parts:
        pieces = str(part).split("/")
        if "\0" in str(part) or "\\" in str(part) or not all(pieces) or {".", ".."} & set(pieces):
            raise ConfigError(f"{str(part)[:120]!r} is not a path below {home.name}: give names without .. and \\.")
    path = home.joinpath(*parts).resolve()
    if path == home or not path.is_relative_to(home):
        raise ConfigError(f"{'/'.join(map(str, parts))[:120]!r} leads out of the folder {home.name}: it is not used.")
    return path


def clean_text(text: str) -> str:
    """A transcript on one line: composed characters (NFC), no control characters, single spaces.

    What looks like HTML stays as it is: it is escaped where it is shown. Raises ConfigError for one over 5000
    characters.
    """
    text = unicodedata.normalize("NFC", text.replace("\ufeff", ""))
    text = " ".join(text.split())
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs"))
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"A transcript of {len(text)} characters is too long: at most {LONGEST_TEXT}.")
    return text


def label(value: str | None) -> str | None:
    """A language, speaker or prompt id on one line; None for an empty one."""
    return None if value is None or not (text := clean_text(value)) else text[:LONGEST_LABEL]


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns what a disk refuses into one sentence for a person. Raises StentorError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StentorError(
                f"The disk with {path.name} is full: nothing was changed. Make room, then do the same again."
            ) from error
        why = error.strerror or error
        raise StentorError(f"{path.name} could not be written ({why}): check the folder.") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone with a folder, among threads and processes: for changes that read, then write. Waits.

    Not `filelock`, which would create a folder again that was deleted meanwhile.
    """
    with disk_errors(folder), open(folder / ".lock", "ab") as file:
        lock(file, wait=True)
        yield


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and onto the disk before this returns. Raises StentorError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with disk_errors(path):
        try:
            with open(part, "xb") as file:
                file.write(data)
                fsync(file)
            os.replace(part, path)
            sync(path.parent)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """As `write_bytes`, of plain data."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, onto the disk before this returns; what a killed process left of its last line is cut off.

    When the disk is full, the file is as it was before. Call it with the folder `locked`. Raises StentorError.
    """
    with disk_errors(path), open(path, "ab", buffering=0) as file:
        before = _whole_lines(path)
        file.truncate(before)
        rest = line.encode() + b"\n"
        try:
            while rest:
                rest = rest[file.write(rest) :]
            fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise


def stamp(path: Path) -> tuple[int, int] | None:
    """Time in nanoseconds and size of a file, which change with what is in it; None when it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when it is not there or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def mapping(yaml: str) -> dict[str, Any] | None:
    """The mapping in a YAML text; None for a text that is none."""
    from yaml import YAMLError

    with contextlib.suppress(YAMLError):
        if isinstance(tree := read_yaml(yaml), dict):
            return tree
    return None


def fsync(file: Any) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def _whole_lines(path: Path) -> int:
    """Bytes of a JSONL file up to the end of its last whole line. A last line without its newline is whole if it is
    JSON: it gets the newline."""
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return len(data)
    at = data.rfind(b"\n") + 1
    try:
        json.loads(data[at:])
    except ValueError:
        return at
    with open(path, "ab") as file:
        file.write(b"\n")
    return len(data) + 1


def record_line(record: Record) -> str:
    """A record as a line of a manifest, without its end."""
    return json.dumps(record, ensure_ascii=False)


def record_lines(records: Iterable[Record]) -> bytes:
    """A whole manifest."""
    return "".join(record_line(r) + "\n" for r in records).encode()


def read_records(path: Path) -> list[Record]:
    """Records of a file that only the studio writes; what is none is left out. None of a file that is not there."""
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("audio_path"), str) and "id" in record:
                records.append(record)
    return records


def files_of(record: Record) -> list[str]:
    """Names of the files that belong to a record: its own, and the one of before it was trimmed."""
    before = record.get("untrimmed")
    names = [record["audio_path"], before.get("audio_path") if isinstance(before, dict) else None]
    return [name for name in names if isinstance(name, str)]
