"""Memory callback: memory of the run and utilization of the GPU, in the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from pydantic import PrivateAttr

from stentor.engine.callback import OBSERVES, Callback

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer

GB = 1e9
EVERY = 0.5
"""Seconds between two readings of the GPU utilization; the driver averages over up to a second."""


class Memory(Callback):
    """Log the memory of the main process, its loader workers and its GPU, and the GPU utilization. Always on."""

    type: Literal["memory"] = "memory"
    effects = OBSERVES

    _seen: list[int] = PrivateAttr(default_factory=list)
    _looked: float = PrivateAttr(0.0)
    _watched: bool = PrivateAttr(False)

    def on_start(self, trainer: Trainer) -> None:
        self._watched = trainer.main and utilization() is not None

    def on_step(self, trainer: Trainer) -> None:
        if self._watched and time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            if (busy := utilization()) is not None:
                self._seen.append(busy)
        if trainer.step % trainer.config.train.log_every == 0 or trainer.step == trainer.total_steps:
            trainer.extra.update(memory())
            if self._seen:
                trainer.extra["gpu_utilization"] = sum(self._seen) / len(self._seen) / 100
                self._seen.clear()


def utilization() -> int | None:
    """Return the recent utilization of the current GPU in percent, from the driver (NVML); None without an NVIDIA GPU,
    without `nvidia-ml-py`, or if the driver does not report it."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        return torch.cuda.utilization()
    except Exception:  # NVML's own errors cannot be named without the package that may be missing
        return None


def memory() -> dict[str, float]:
    """Return memory in units of 1e9 bytes.

    `memory_gb` is the peak of the GPU's allocator or, on the CPU, the current resident memory of this process and its
    children. In detail: `rss` (this process), `workers` (its children) and, on a GPU, `cuda_allocated` (tensors now),
    `cuda_peak` (peak of tensors), `cuda_reserved` (held by the allocator now) and `cuda_free` (free on the device,
    considering other processes).
    """
    import psutil
    import torch

    process = psutil.Process()
    children = 0
    for child in process.children(recursive=True):
        try:
            children += child.memory_info().rss
        except psutil.NoSuchProcess:  # a worker that ended meanwhile
            continue
    rss = process.memory_info().rss
    values = {"memory_gb": (rss + children) / GB, "memory/rss_gb": rss / GB, "memory/workers_gb": children / GB}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        values |= {
            "memory_gb": torch.cuda.max_memory_reserved() / GB,
            "memory/cuda_allocated_gb": torch.cuda.memory_allocated() / GB,
            "memory/cuda_peak_gb": torch.cuda.max_memory_allocated() / GB,
            "memory/cuda_reserved_gb": torch.cuda.memory_reserved() / GB,
            "memory/cuda_free_gb": torch.cuda.mem_get_info()[0] / GB,
        }
    return values
