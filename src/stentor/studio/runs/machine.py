"""This machine: the Hub within reach, weights on its disk, its GPUs, and how full its memory is while a run trains."""

import functools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stentor.studio.texts import say

EVERY = 10.0
"""Seconds from one call of nvidia-smi to the next, for all pages together."""
_QUERY = ("--query-gpu=index,name,memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")


_REACH = 60.0
"""Seconds after which it is looked again whether the Hub can be reached."""


def reachable() -> bool:
    """Whether the Hub answers, as far as a second tells; remembered for a minute at most."""
    return _knock(time.monotonic() // _REACH)


@functools.lru_cache(maxsize=1)
def _knock(minute: float) -> bool:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # only the proxy knows
    place = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((str(place.hostname), place.port or 443), 1.0):
            return True
    except OSError:
        return False


def on_disk(model: Mapping[str, Any]) -> bool:
    """Whether the pretrained parts that a section `model` names are on this machine already."""
    from huggingface_hub import try_to_load_from_cache

    sources = [s["from"] for s in (model, *(v for v in model.values() if isinstance(v, dict))) if s.get("from")]
    return all(Path(n).is_dir() or isinstance(try_to_load_from_cache(n, "config.json"), str) for n in sources)


@functools.cache
def has_gpu() -> bool:
    """Whether there is a GPU, without the seconds that importing torch takes."""
    return Path("/dev/kfd").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class MemoryBar:
    """One thing that fills up."""

    name: str
    text: str
    share: float | None
    """Amount of what there is; None where that is unknown."""


def bars(known: Mapping[str, float], busy: float | None, pid: int | None) -> list[MemoryBar]:
    """Memory of a run's processes, of the GPUs and of the machine.

    `known` are the run's own metrics (`memory/rss_gb`, `memory/workers_gb`, `memory/cuda_reserved_gb` ... in units of
    1e9 bytes), `busy` the share of time in which its GPU was busy, `pid` its process, asked until it has logged.
    """
    import psutil

    machine = psutil.virtual_memory()
    run_gb = known.get("memory/rss_gb", 0.0) + known.get("memory/workers_gb", 0.0)
    if not run_gb and pid is not None:
        try:
            run_gb = psutil.Process(pid).memory_info().rss / 1e9
        except psutil.Error:
            run_gb = 0.0
    memory_bars = []
    if run_gb:
        memory_bars.append(
            MemoryBar(say("memory_run"), say("memory_used", used=f"{run_gb:.1f}"), run_gb * 1e9 / machine.total)
        )
    gpus = parsed(_smi(time.monotonic() // EVERY))
    memory_bars += gpus
    if not gpus and "memory/cuda_reserved_gb" in known:
        used = known["memory/cuda_reserved_gb"]
        total = used + known.get("memory/cuda_free_gb", 0.0)
        percent = None if busy is None else f"{100 * busy:.0f}"
        memory_bars.append(_bar(say("memory_gpu"), used, total, percent))
    used = (machine.total - machine.available) / 1e9
    return [*memory_bars, _bar(say("memory_machine"), used, machine.total / 1e9)]


def _bar(name: str, used: float, total: float, busy: str | None = None) -> MemoryBar:
    """`used` and `total` in units of 1e9 bytes, `busy` in percent."""
    text = say("memory_of", used=f"{used:.1f}", total=f"{total:.0f}")
    text += say("memory_busy", busy=busy) if busy is not None else ""
    return MemoryBar(name, text, used / total if total else None)


def parsed(output: str) -> list[MemoryBar]:
    """The lines of nvidia-smi (MiB and percent; `[N/A]` for what a GPU does not tell)."""
    gpu_bars = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            continue
        index, name, used, total, busy = cells
        try:
            used_gb, total_gb = float(used) * 2**20 / 1e9, float(total) * 2**20 / 1e9
        except ValueError:
            continue
        gpu_bars.append(_bar(f"GPU {index}, {name}", used_gb, total_gb, busy if busy.isdigit() else None))
    return gpu_bars


@functools.lru_cache(maxsize=1)
def _smi(moment: float) -> str:
    """Output of nvidia-smi; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        return subprocess.run(
            [program, *_QUERY], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):  # a driver that hangs or does not answer: nothing is shown of it
        return ""
