"""Files that a training run is writing, read as they grow: curves, samples, the end of a log."""

import json
import os
from pathlib import Path
from typing import Any

from stentor.errors import without_secrets


class JsonlTail:
    """The objects of a JSONL file that grows (`metrics.jsonl`, `events.jsonl`, `samples.jsonl`).

    `poll` reads what is new and nothing twice, so following a run of days costs as much as its last seconds. It keeps
    no rows; who needs them keeps what they need of them.
    """

    def __init__(self, path: Path):
        self.path = path
        self.anew = True
        """Whether the last poll began at the beginning of the file: what was read before does not count any more. A
        resumed run writes its files anew, without what it will repeat."""
        self._at = 0
        self._file: tuple[int, int] | None = None

    def poll(self) -> list[dict[str, Any]]:
        """The rows that came since the last call. Half a line at the end is left for the next."""
        self.anew = False
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._at:
                    self.anew, self._at, self._file = True, 0, (status.st_dev, status.st_ino)
                file.seek(self._at)
                data = file.read()
        except OSError:
            self.anew, self._at, self._file = self._file is not None, 0, None
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._at += len(complete)
        rows = []
        for line in complete.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows


def tail(path: Path, lines: int = 200) -> str:
    """The last lines of a text file, at most 64 KiB, without secrets; empty when it is not there."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65536))
            data = file.read()
    except OSError:
        return ""
    text = data.decode("utf-8", "replace").splitlines()
    if size > 65536:
        text = text[1:]
    return without_secrets("\n".join(text[-lines:]))
