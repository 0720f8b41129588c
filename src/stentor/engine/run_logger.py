"""Run logger: metrics.jsonl, events.jsonl and log.txt of a run folder. Only the main process writes."""

import contextlib
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from stentor.errors import without_secrets


class RunLogger:
    """Writes the three log files of a run folder, and flushes every line so that other processes can follow.

    `accept`: function that is called before anything is written. `waits`: nothing is written before `begin`, because
    the start of the run may be refused until then."""

    def __init__(
        self,
        folder: Path,
        main: bool,
        stage: str | None = None,
        accept: Callable[[], None] = lambda: None,
        waits: bool = False,
    ):
        self.folder, self.main, self.stage = folder, main, stage
        self._files: dict[str, TextIO] = {}
        self._waiting: list[Callable[[], None]] = []
        self._accept = accept
        if not waits:
            self.begin()

    def begin(self) -> None:
        """Open the files and do what waited for it."""
        if not self.main or self._files:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._accept()
        for name in ("metrics.jsonl", "events.jsonl", "log.txt"):
            _cut_half_line(self.folder / name)
            self._files[name] = (self.folder / name).open("a", encoding="utf-8")
        for act in self._waiting:
            act()

    def metrics(self, row: dict[str, Any]) -> None:
        """Write a row of numbers; values that are not finite become null (JSON has no NaN)."""
        self._write("metrics.jsonl", json.dumps(finite({**row, **self.where()})))

    def event(self, name: str, **fields: Any) -> None:
        self._write("events.jsonl", json.dumps(finite({"time": time.time(), "event": name, **self.where(), **fields})))

    def say(self, line: str) -> None:
        """Write a line to the log and the terminal."""
        line = without_secrets(line)
        self._write("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")
        if self.main:
            with contextlib.suppress(OSError, ValueError):  # the output was closed: training continues
                print(line, flush=True)

    def forget_after(self, step: int, name: str = "metrics.jsonl") -> None:
        """Atomically remove the rows of this stage after `step` from a JSONL file: a resumed run rewrites them."""
        path = self.folder / name
        if self.main and not self._files:
            self._waiting.append(partial(self.forget_after, step, name))
            return
        if not self.main or not path.exists():
            return
        if opened := self._files.get(name):
            opened.close()
        _cut_half_line(path)
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
            try:
                row = dict(json.loads(line))
                if row.get("step", 0) <= step or row.get("stage") != self.stage:
                    rows.append(line)
            except (TypeError, ValueError):
                self.say(f"{path}:{number} is not a valid row ({line[:60]!r}) and is removed.")
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in rows), encoding="utf-8")
        temporary.replace(path)
        if opened:
            self._files[name] = path.open("a", encoding="utf-8")

    def newest(self, key: str) -> Any:
        """Return the value of `key` in the newest row of metrics of this stage that has it; None if there is none."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = (json.loads(line) for line in reversed(lines) if f'"{key}"' in line)
        return next((row[key] for row in rows if row.get("stage") == self.stage), None)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def where(self) -> dict[str, Any]:
        """Return the fields of every row that name the stage, in runs with several stages."""
        return {"stage": self.stage} if self.stage else {}

    def _write(self, name: str, line: str) -> None:
        if not self.main:
            return
        if not self._files:
            self._waiting.append(partial(self._write, name, line))
            return
        self._files[name].write(without_secrets(line) + "\n")
        self._files[name].flush()


def _cut_half_line(path: Path) -> None:
    """Remove the incomplete last line of a killed process, so that every line of the file can be parsed."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("rb+") as file:
            file.truncate(text.rfind(b"\n") + 1)


def finite(value: Any) -> Any:
    """Return plain data with null for numbers that JSON does not support (NaN, infinity)."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
