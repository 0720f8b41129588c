"""Environment of a run: versions, machine and device, for results and reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator

PACKAGES = ("stentor", "torch", "transformers", "accelerate", "peft", "lhotse", "numpy", "soundfile")


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Versions, machine and device; no paths and no user names."""
    import torch

    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if accelerator.device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision.replace("no", "fp32"),
        "packages": versions,
    }


def processor() -> str:
    """Name of the processor's model."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
