"""Material of a round: what recognisers labelled and what was spoken, as manifests that are trained on."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.journal import read_jsonl, write_jsonl
from stentor.commands.prepare.run import prepare_run
from stentor.data.storage import is_remote, join
from stentor.errors import DataError

if TYPE_CHECKING:
    from stentor.config.prepare.base import Preparation

MANIFEST, REJECTS, SUMMARY = "manifest.jsonl", "rejects.jsonl", "summary.json"
"""What the steps `labels` and `speech` leave in their folders."""
BULKY = {"hypotheses"}
"""Keys of labels that training does not read."""
Amounts = dict[str, float]
"""`records` and `hours`."""
Known = dict[str, list[tuple[float, float]]]
"""The stretches of each recording, by its path, that people have transcribed: seconds from its start."""


def prepared(steps: Iterable[Preparation], plugins: list[Path]) -> list[Path]:
    """Do the steps that are not done; answers their folders. A step of which nothing is kept is done all the same, and
    recordings that cannot be used are judged by `data.max_bad`, before any round."""
    folders = []
    for step in steps:
        try:
            prepare_run([step], plugins)
        except DataError as error:
            empty = (step.to / SUMMARY).is_file() and not (step.to / MANIFEST).stat().st_size
            if not empty and not (step.type == "labels" and (step.to / SUMMARY).is_file()):
                raise
            print(error, flush=True)
        folders.append(step.to)
    return folders


def gather(folders: Iterable[Path], to: Path, known: Known) -> tuple[Amounts, dict[str, Amounts]]:
    """Write one manifest `to` of those in the folders, without recordings that are `known` from people; answers what
    entered, and what was left out by reason."""
    left: dict[str, Amounts] = defaultdict(lambda: {"records": 0, "hours": 0.0})
    entered = {"records": 0, "hours": 0.0}
    ids: set[str] = set()

    def records() -> Iterator[dict[str, Any]]:
        for folder in folders:
            for record in read_jsonl(folder / MANIFEST):
                path = full_path(str(join(folder, record["audio_path"])))
                reason = _refused(record, path, ids, known)
                _count(entered if reason is None else left[reason], record)
                if reason is None:
                    ids.add(record["id"])
                    yield {k: v for k, v in record.items() if k not in BULKY} | {"audio_path": path}
            for record in read_jsonl(folder / REJECTS):
                _count(left[record["reason"]], record)

    write_jsonl(to, records())
    return entered, {reason: dict(amounts) for reason, amounts in left.items()}


def full_path(path: str) -> str:
    """A path from the root, or an address."""
    return path if is_remote(path) else os.path.abspath(path)


def _refused(record: dict[str, Any], path: str, ids: set[str], known: Known) -> str | None:
    start = record.get("start") or 0.0
    if any(start < end and begin < start + record["duration"] for begin, end in known.get(path, ())):
        return "human"
    return "duplicate_id" if record["id"] in ids else None


def _count(amounts: Amounts, record: dict[str, Any]) -> None:
    amounts["records"] += 1
    amounts["hours"] += (record.get("duration") or 0.0) / 3600
