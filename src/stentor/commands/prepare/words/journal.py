"""What became of each record: the file that a killed command goes on from, and the summary at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError

NAMED = 20
"""Records of each reason that the summary names."""
REASONS = {
    "empty_text": "no text",
    "no_words": "nothing in the text is spoken",
    "too_long_text": "more text than the audio can hold",
    "mismatch": "the text is not what is said",
    "wer": "free transcription differs more than --max-wer",
    "not_voice": "not spoken by the built-in voice",
}
"""What reasons mean; other reasons are about audio files."""


@dataclass
class Summary:
    """What became of the records."""

    records: int = 0
    kept: int = 0
    words: int = 0
    seconds: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: dict[str, Any]) -> None:
        self.records += 1
        if "record" in outcome:
            self.kept += 1
            self.words += len(outcome["record"]["words"])
            self.seconds += outcome["record"]["duration"]
            return
        reason = outcome["dropped"]
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        named = self.named.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(outcome["message"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "kept": self.kept,
            "words": self.words,
            "hours": round(self.seconds / 3600, 4),
            "dropped": {
                reason: {
                    "count": count,
                    "meaning": REASONS.get(reason, "audio that cannot be used"),
                    "first": self.named[reason],
                }
                for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
            },
        }

    def table(self) -> str:
        """For the console."""
        rows = [("kept", self.kept, f"{self.words:,} words, {self.seconds / 3600:.2f} hours")]
        rows += [
            (f"dropped: {reason}", about["count"], about["meaning"])
            for reason, about in self.as_dict()["dropped"].items()
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:{width}}  {count:>8,}  {note}" for name, count, note in rows)


class Journal:
    """The outcomes so far: JSON lines, the first with the settings of the command that they belong to.

    Raises ConfigError when the file belongs to a command with other settings. A line that a kill cut short is taken
    off.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        self.places: dict[str, int] = {}
        """Where each record's outcome begins, in bytes."""
        head = json.dumps({"settings": settings}, ensure_ascii=False).encode() + b"\n"
        if not path.exists():
            path.write_bytes(head)
            return
        with open(path, "rb+") as file:
            first = file.readline()
            if not first.endswith(b"\n"):  # killed while it was begun
                file.seek(0)
                file.write(head)
                file.truncate()
                return
            if first != head:
                self._refuse(first, settings)
            at = file.tell()
            for line in file:
                try:
                    name = json.loads(line)["id"]
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                self.places[name] = at
                at += len(line)
            file.truncate(at)

    def _refuse(self, first: bytes, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(first)["settings"]
        except (ValueError, KeyError, TypeError):
            before = {}
        other = [f"{k} was {before.get(k)!r} and is {v!r}" for k, v in settings.items() if before.get(k) != v]
        raise ConfigError(
            f"{self.path} was left by a command with other settings ({'; '.join(other)}). Run that command again to go "
            "on, or delete the file to start anew."
        )

    def __enter__(self) -> Journal:
        self.file = open(self.path, "ab")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, outcomes: Sequence[dict[str, Any]]) -> None:
        for outcome in outcomes:
            self.places[outcome["id"]] = self.file.tell()
            self.file.write(json.dumps(outcome, ensure_ascii=False).encode() + b"\n")
        self.file.flush()

    def write(self, order: Sequence[str], to: Path) -> Summary:
        """The records that were kept, in order, as a manifest under its final name."""
        summary = Summary()
        part = to.with_name(f".{to.name}.{os.getpid()}.part")
        try:
            with open(self.path, "rb") as done, open(part, "w", encoding="utf-8") as out:
                for name in order:
                    done.seek(self.places[name])
                    outcome = json.loads(done.readline())
                    summary.add(outcome)
                    if "record" in outcome:
                        out.write(json.dumps(outcome["record"], ensure_ascii=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)
        return summary


def replace(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
