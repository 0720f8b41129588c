"""Reads a run folder back: what is finished, what is running and what was killed in the middle of a line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError
from stentor.metrics.format import deciding_first
from stentor.version import RUN_FORMAT, refuse_newer

STREAMS = "streams.jsonl"


@dataclass
class RunFolder:
    """The files of a run folder (see the contract in docs/architecture.md). What is not there yet is empty."""

    folder: Path
    config_text: str = ""
    """`config.yaml`, as the user wrote it."""
    resolved_text: str = ""
    resolved: dict[str, Any] = field(default_factory=dict)
    """`resolved.yaml`: every key of the config."""
    results: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """The results of the stages before the last."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of `predictions/SET.jsonl`."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `samples.jsonl`."""
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of `before/SET.jsonl`: predictions from before training."""
    streams: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `streams.jsonl`: figures of `stentor evaluate --stream`, one for each delay."""

    @property
    def name(self) -> str:
        return str(self.resolved.get("name") or self.folder.resolve().name)

    @property
    def task(self) -> str:
        """The task, or those of the stages: `transcribe, then words`."""
        kind = str(self.resolved.get("task", {}).get("type", ""))
        kinds: list[str] = []
        for stage in self.resolved.get("stages") or [{}]:
            task = stage.get("task") or {}
            kind = task if isinstance(task, str) else task.get("type", kind)
            kinds += [kind] if kind not in kinds[-1:] else []
        return ", then ".join(kinds)

    def last_event(self, *names: str) -> dict[str, Any] | None:
        """The newest event of one of these names."""
        return next((e for e in reversed(self.events) if e.get("event") in names), None)


def read_run(folder: Path) -> RunFolder:
    """The run in `folder`. Raises ConfigError when it is not a run folder."""
    folder = Path(folder)
    if not any((folder / name).exists() for name in ("resolved.yaml", "config.yaml", "metrics.jsonl", "results.json")):
        raise ConfigError(f"{folder} is not a run folder: it holds none of resolved.yaml, metrics.jsonl, results.json.")
    resolved_text = _text(folder / "resolved.yaml")
    path = folder / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    refuse_newer(path, results, RUN_FORMAT)
    resolved = read_yaml(resolved_text) or {}
    if "eval" in results:
        results["eval"] = in_order(results["eval"], resolved)
    return RunFolder(
        folder=folder,
        config_text=_text(folder / "config.yaml"),
        resolved_text=resolved_text,
        resolved=resolved,
        results=results,
        earlier=[json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("stages/*/results.json"))],
        metrics=_rows(folder / "metrics.jsonl"),
        events=_rows(folder / "events.jsonl"),
        predictions={p.stem: _rows(p) for p in sorted((folder / "predictions").glob("*.jsonl"))},
        samples=_rows(folder / "samples.jsonl"),
        before={p.stem: _rows(p) for p in sorted((folder / "before").glob("*.jsonl"))},
        streams=_rows(folder / STREAMS),
    )


def calibration_sets(resolved: Mapping[str, Any]) -> list[str]:
    """Evaluation sets that confidences were fitted on: their figures prove nothing."""
    callbacks = [c for c in resolved.get("callbacks") or [] if c["type"] == "calibrate"]
    return [c.get("set") or next(iter(resolved["data"]["eval"])) for c in callbacks]


def in_order(scores: Mapping[str, Mapping[str, Any]], resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores of evaluation sets as they are shown: test sets first, the sets that calibrate confidences last, and in
    each set the deciding metric first."""
    last, tests = calibration_sets(resolved), (resolved.get("data") or {}).get("test") or {}
    names = sorted(scores, key=lambda name: 2 * (name in last) - (name in tests))
    return {name: deciding_first(scores[name]) for name in names}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in _text(path).splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the line that a killed process did not finish
            continue
    return rows
