"""Run files of tiny models on the CPU, for comparisons of runs."""

import json
from pathlib import Path
from typing import Any

RUN: dict[str, dict[str, Any]] = {
    "data": {"batch_tokens": 100_000, "max_items": 4, "workers": 0},
    "optim": {"type": "adamw", "lr": 1e-3},
    "schedule": {"type": "constant", "warmup_steps": 0},
    "train": {"log_every": 1, "eval_every": 100, "save_every": 100, "use": "last", "device": "cpu"},
}
"""Sections of every run."""


def write_run_file(folder: Path, name: str, records: Path, dev: Path, limit: int | None = None, **sections) -> Path:
    """The run file NAME.json in a folder, whose runs are written to its `runs`, for all records of a manifest and the
    first ones of `dev`. Keys of `sections` come on top of those of `RUN`; a section of None is left out."""
    scored = {"type": "jsonl", "path": str(dev)} | ({"limit": limit} if limit else {})
    sources = {"train": [{"type": "jsonl", "path": str(records)}], "eval": {"dev": scored}}
    config: dict[str, Any] = {"name": name, "output": str(folder / "runs"), **RUN, "data": RUN["data"] | sources}
    for section, keys in sections.items():
        config[section] = config[section] | keys if section in RUN else keys
    path = folder / f"{name}.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path
