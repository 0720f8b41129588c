"""Figures of the benchmarks: benchmarks/results/NAME.json, with the machine that gave them."""

import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stentor.engine.environment import processor

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "accelerate", "lhotse", "numpy")


def write(name: str, rows: list[dict[str, Any]], **facts: Any) -> Path:
    """Write one result file and say so. `load` is the machine's load when the benchmark ends: about the threads in use
    when nothing else ran."""
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {p: version(p) for p in PACKAGES},
    }
    result = {
        "benchmark": name,
        "command": " ".join(["python", f"benchmarks/{name}.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        **facts,
        "rows": rows,
        "machine": machine,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nWritten to {path.relative_to(FOLDER.parent.parent)}.")
    return path
