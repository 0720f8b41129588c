"""GPU cases: training runs that are measured over the second half of their steps, each in a process of its own."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stentor.engine.callback import Callback

COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "parameters": ("parameters", lambda value: f"{value / 1e6:,.3f} M"),
    "trained": ("trained", lambda value: f"{value / 1e6:,.3f} M"),
    "tokens_per_second": ("tokens/s", lambda value: f"{value:,.0f}"),
    "audio_seconds_per_second": ("audio s/s", lambda value: f"{value:,.0f}"),
    "padding": ("padding", lambda value: f"{value:.1%}"),
    "data_wait": ("waiting", lambda value: f"{value:.1%}"),
    "memory_gb": ("memory", lambda value: f"{value:.1f} GB" if value else "-"),
    "mfu": ("MFU", lambda value: f"{value:.1%}" if value else "-"),
}
"""Title and format of each figure of a case."""


class Measured(Exception):
    """The steps are over; nothing is to be saved."""


class Timed(Callback):
    """Takes the row of metrics of the second half of the steps and ends the run."""

    _row: dict[str, Any]
    _parameters: dict[str, int]

    def on_start(self, trainer: Any) -> None:
        parameters = list(trainer.bundle.model.parameters())
        self._parameters = {
            "parameters": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
        }

    def on_metrics(self, trainer: Any, metrics: dict[str, Any]) -> None:
        self._row = metrics
        if metrics["step"] == trainer.train.steps:
            raise Measured


def parser(description: str, steps: int, case_parts: int) -> argparse.ArgumentParser:
    """The options of every GPU benchmark; a case is named by so many parts."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--steps", type=int, default=steps, help="Optimizer steps; the first half is not measured.")
    options.add_argument("--workers", type=int, default=4, help="Loader workers.")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--tiny", action="store_true", help="Tiny models, to see that the script runs.")
    options.add_argument("--case", nargs=case_parts, help=argparse.SUPPRESS)
    return options


def check(args: argparse.Namespace) -> None:
    """Ends the script with a sentence where this machine cannot do what is asked for."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA GPU here: run this on a machine with one, or with --tiny --device cpu.")
    if args.device == "cpu" and not args.tiny:
        raise SystemExit("Models of real size are for a GPU: give --tiny as well to run on the CPU.")
    if args.steps < 2 or args.steps % 2:
        raise SystemExit("--steps must be even: the second half is measured.")


def device_name(args: argparse.Namespace) -> str:
    return torch.cuda.get_device_name() if args.device == "cuda" else "CPU"


def measure(sections: dict[str, Any], metrics: tuple[str, ...], args: argparse.Namespace) -> dict[str, Any]:
    """Train a run of these sections (task, model, data) in this process; its number of parameters and its metrics."""
    from stentor.commands.train import train
    from stentor.config.schema import Config

    config = Config.model_validate(
        {
            **sections,
            "data": {"workers": args.workers, "prefetch": 4, **sections["data"]},
            "optim": {"type": "adamw", "lr": 1e-5},
            "schedule": {"type": "constant", "warmup_steps": 0},
            "train": {
                "steps": args.steps,
                "log_every": args.steps // 2,
                "device": args.device,
                "precision": "bf16" if args.device == "cuda" else "fp32",
            },
        }
    )
    timed = Timed(type="timed")
    config.callbacks = [timed]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            train([config], Path(scratch) / "run", {})
        except Measured:
            return {**timed._parameters, **{name: timed._row.get(name) for name in metrics}}
        except torch.cuda.OutOfMemoryError:
            return {"failed": "out of memory"}
    raise RuntimeError("The run ended before it was measured.")


def in_own_process(*case: str) -> Any:
    """The result of this script's `--case`, so that it finds the GPU's memory empty and nothing else changed."""
    done = subprocess.run([sys.executable, *sys.argv, "--case", *case], capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def heading(widths: dict[str, int]) -> str:
    return "".join(f"{COLUMNS[key][0]:>{width}}" for key, width in widths.items())


def line(row: dict[str, Any], widths: dict[str, int]) -> str:
    """A row of the table."""
    if "failed" in row:
        return f"  failed: {row['failed']}"
    return "".join(f"{COLUMNS[key][1](row[key]):>{width}}" for key, width in widths.items())
