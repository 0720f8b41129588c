"""Devices and processes: the Accelerator of this process, messages between processes, and the environment."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stentor.engine.section import Train
from stentor.errors import ConfigError, StentorError

if TYPE_CHECKING:
    from accelerate import Accelerator


def give_back_memory() -> None:
    """Return freed memory to the system (only with glibc). For tensors of changing shapes, glibc keeps so much that a
    run on a CPU grows to several times what it needs."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


GPUS: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.mps, "xpu": torch.xpu}
"""Kinds of GPUs that a model can be trained on; ROCm calls itself cuda."""


def accelerator(train: Train) -> Accelerator:
    """Return the Accelerator of this process, with the device and precision of `train:`."""
    from accelerate import Accelerator

    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        if os.environ.get(name, "false").lower() == "true":
            raise ConfigError(
                f"The launcher set {name}, which conflicts with the config file. Launch without it and set "
                "`train.shard=true` (FSDP2) instead."
            )
    device = train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    api = GPUS.get(device)
    if api is not None and not api.is_available():
        raise ConfigError(f"`train.device` is {device}, but torch finds no GPU here (`stentor doctor` says why).")
    has_bf16 = torch.backends.mps.is_macos_or_newer(14, 0) if device == "mps" else api and api.is_bf16_supported()
    precision = train.precision
    if precision == "auto":
        precision = "bf16" if has_bf16 and device != "mps" else "fp32"
    if precision == "fp16" and device in ("cpu", "mps"):
        raise ConfigError("`train.precision` fp16 needs a GPU: use fp32 or bf16 on a CPU or an Apple GPU.")
    if precision == "bf16" and device == "mps" and not has_bf16:
        raise ConfigError("`train.precision` bf16 needs macOS 14 or newer on an Apple GPU: use fp32.")
    local, count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), api.device_count() if api else 0
    # Under Slurm each process may be shown a GPU of its own only.
    if api and local > count and "SLURM_PROCID" not in os.environ:
        raise ConfigError(
            f"{local} processes were started on this machine, where torch finds {count} GPUs: "
            "start one process for each (`--processes`, `--nproc-per-node`, CUDA_VISIBLE_DEVICES)."
        )
    chosen = Accelerator(cpu=api is None, mixed_precision="no" if precision == "fp32" else precision)
    if chosen.device.type != device:
        raise ConfigError(f"`train.device` is {device}, but Accelerate chooses {chosen.device.type} on this machine.")
    if train.shard and not dist.is_initialized():
        raise ConfigError(
            "`train.shard` divides the model over processes, and this is one: add `--processes N` (one for each GPU), "
            "start with torchrun, or set `train.shard: false`."
        )
    return chosen


PATIENCE = timedelta(hours=2)
"""Time that a rank that has written its part of a checkpoint waits for the others."""


class Communicator:
    """Small exact messages between ranks, over gloo on the CPU, which does not wait for the GPU."""

    def __init__(self, world: int):
        self.world, self.rank = world, dist.get_rank() if world > 1 else 0
        self.group = self.background_group = None
        if world > 1:
            self.group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
            self.background_group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return element-wise sums over all ranks."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def gather(self, value: Any, background: bool = False) -> list[Any]:
        """Return the plain values of all ranks, in order of rank. `background`: for a background thread, in which ranks
        may wait for each other for a long time."""
        if self.world == 1:
            return [value]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, value, group=self.background_group if background else self.group)
        return everyone

    def on_main(self, act: Callable[[], Any]) -> Any:
        """Result of `act` on the first rank, given to all ranks. A StentorError that it raises is raised on all."""
        value, error = None, None
        if self.world == 1 or dist.get_rank() == 0:
            try:
                value = act()
            except StentorError as caught:
                error = caught
        value, error = self.gather((value, error))[0]
        if error is not None:
            raise error
        return value

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.group)


PACKAGES = ("stentor", "torch", "transformers", "accelerate", "peft", "lhotse", "numpy", "soundfile")


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """Return versions, machine and device, without paths and user names."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    kind = accelerator.device.type
    gpu = GPUS[kind].get_device_name() if kind in ("cuda", "xpu") else "Apple GPU" if kind == "mps" else None
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
    """Return the name of the processor model."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
