"""Runs in the background: settings of a long one, its events, and waiting for what it writes."""

import json
import subprocess
import time
from pathlib import Path

LONG = ["train.steps=400", "train.save_every=2", "train.eval_every=400"]


def wait_for(path: Path, text: str, process: subprocess.Popen | None = None, seconds: float = 120) -> None:
    deadline = time.time() + seconds
    while time.time() < deadline:
        if path.exists() and text in path.read_text(errors="replace"):
            return
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()}")
        time.sleep(0.02)
    raise AssertionError(f"{text!r} never came in {path}")


def events(folder: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]
