"""Outputs of a command in a folder: a record of what made each file, and which are to be made again.

The record is the hidden file `RECORD` in the folder: JSON lines with the files of an input, their digests, and the
input and the options that made them. A line is written before its files get their names: after a kill, each file is
whole and in the record. A file with a digest that is not there was made by another program or version, or edited.
"""

import errno
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stentor.data.storage import full_path
from stentor.errors import ConfigError, without_secrets
from stentor.inference.declarations import given
from stentor.inference.load import find_export
from stentor.text.languages import checked_language

RECORD = ".stentor-outputs.jsonl"
OTHERS = "it was not made by this command, or was edited"


def digest(content: Any) -> str:
    """Digest of bytes, or of anything that JSON takes."""
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True, default=str).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def identity(value: Any, model: bool = False) -> Any:
    """An option, with the digest of the names, sizes and times of the files that it names. A model is its export, or
    the revision in the Hub's cache."""
    if isinstance(value, list):
        return [identity(part) for part in value]
    if not isinstance(value, (str, Path)):
        return value
    text, path = without_secrets(str(value)), Path(str(value).removeprefix("@"))
    with suppress(ConfigError):  # reported when it is loaded
        path = find_export(value) if model else path
    if not os.path.exists(path):
        return text
    if model and not os.path.exists(value):  # the name of the copy tells its contents
        return f"{text}@{path.name}"
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return f"{full_path(text)} {digest(stamps)}"


def make_folder(out: str | Path) -> Path:
    """The folder of `--out`. Raises ConfigError when it cannot be made or written to, before any work is done."""
    folder, verb = Path(out), "made"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        verb = "written to"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"The folder {folder} of --out cannot be {verb} ({error.strerror})"
        raise ConfigError(f"{problem}: check the path and its permissions.") from error
    return folder


class Outputs:
    """The outputs of a command in a folder. `facts`: what an output depends on besides the options, by its name without
    suffix: its `source`, and digests. Raises ConfigError as `make_folder` does."""

    def __init__(self, folder: str | Path, command: str, options: Any, facts: Mapping[str, Mapping[str, Any]]):
        self.folder, self.facts, values = make_folder(folder), facts, vars(options)
        effective = [(field.name, declared) for field, declared in given(options) if not declared.neutral]
        chosen = {name: identity(values[name], declared.model) for name, declared in effective if not declared.output}
        with suppress(ConfigError):  # of a language that is not known, as the command says
            chosen |= {"language": checked_language(chosen["language"])} if "language" in chosen else {}
        self.settings = {"command": command, **chosen}
        self.force, parts = values["force"], {name: values.get(name) for name in ("channel", "track")}
        self.part = "".join(f".{name}{value}" for name, value in parts.items() if value is not None)
        """Name of the part of a recording, before the suffix."""
        self.kept: set[str] = set()
        """Files that stay as they are."""
        self.made: dict[tuple[str, str], dict[str, Any]] = {}
        """Facts and options that made a file, by its name and digest."""
        with suppress(FileNotFoundError):
            for text in (self.folder / RECORD).read_text("utf-8").splitlines():
                with suppress(ValueError):  # an incomplete line, whose files did not get their names
                    line = json.loads(text)
                    self.made |= dict.fromkeys(line["files"].items(), line["made_with"])

    def file(self, name: str, suffix: str) -> str:
        """The output of a name, with the part of the recording."""
        return f"{name}{self.part}.{suffix}"

    def plan(self, suffixes: Sequence[str], skip: bool, unit: str = "files") -> set[str]:
        """The names of which outputs are to be made. With `skip`, those with outputs of the same options are not;
        reasons are printed with counts. Raises ConfigError for files of another source, and without `skip` for all
        files of other options or programs, which would be replaced."""
        todo, again, clashes = set[str](), Counter[str](), dict[str, str]()
        for name in self.facts:
            whys = {self.file(name, suffix): self.difference(name, suffix, skip) for suffix in suffixes}
            if not self.force:
                self.kept |= {file for file, why in whys.items() if why == OTHERS}
                clashes |= {f: why for f, why in whys.items() if why and (not skip or why.startswith("source"))}
            if not skip or any(why is not None and file not in self.kept for file, why in whys.items()):
                todo.add(name)
                again.update({why for why in whys.values() if why and why != OTHERS})
        if clashes:
            (file, why), *more = sorted(clashes.items())
            first = f"{self.folder / file}{f' and {len(more)} more' * bool(more)}"
            raise ConfigError(f"{first} would be replaced, but {why}: give another --out, or --force to replace it.")
        if again and skip:
            reasons = ", ".join(f"{why} ({count})" for why, count in again.items())
            print(f"{sum(again.values())} of {len(self.facts)} {unit} are done again: {reasons}.", file=sys.stderr)
        if self.kept:
            first = f"{self.folder / min(self.kept)}{f' and {len(self.kept) - 1} more' * (len(self.kept) > 1)}"
            print(f"Kept: {first}, as {OTHERS}; --force replaces it.", file=sys.stderr)
        return todo

    def difference(self, name: str, suffix: str, with_digests: bool) -> str | None:
        """Return why an output is not as this command would make it; "" if it is missing, None if it is."""
        file, facts = self.file(name, suffix), self.facts[name]
        if not os.path.isfile(self.folder / file):
            return ""
        before = self.made.get((file, digest((self.folder / file).read_bytes())), {})
        if before.get("command") != self.settings["command"]:
            return OTHERS
        changes, now = [], {**facts, **self.settings}
        for key in before | now:
            if (was := before.get(key, "not given")) != (value := now.get(key, "not given")):
                if key == "source" or key not in facts:
                    changes.append(f"{key} was {was} and is {value}")
                elif with_digests:
                    changes.append(f"its {key} changed")
        return " and ".join(changes) or None

    def note(self, files: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Record the digests of files before they are there."""
        line = {"files": files, "made_with": {**facts, **self.settings}}
        with (self.folder / RECORD).open("a", encoding="utf-8") as record:
            record.write("\n" + json.dumps(line, ensure_ascii=False))

    def write(self, name: str, contents: Mapping[str, str | bytes]) -> str | None:
        """Write the outputs of a name, by suffix, but for those that stay. Returns a message if one cannot be written.
        Raises OSError if the disk is full."""
        data = {self.file(name, s): c.encode() if isinstance(c, str) else c for s, c in contents.items()}
        data = {file: content for file, content in data.items() if file not in self.kept}
        # The temporary name is short: the name of an output may be as long as names can be.
        path = part = self.folder / f".{os.getpid()}.part"
        try:
            self.note({file: digest(content) for file, content in data.items()}, self.facts[name])
            for file, content in data.items():
                path = self.folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(content)
                part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return f"stentor: {path} cannot be written: {error.strerror}."
        return None
