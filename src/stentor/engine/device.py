"""Processes, devices and wrapping: the one place that configures distribution.

Accelerate gives the process group, the device, autocast, backward and clipping. Sharding (FSDP2) is applied here with
torch's `fully_shard`, the same way on CPU and GPU, because Accelerate ignores an FSDP plugin on CPU without a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from stentor.engine import deepspeed
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.engine.section import Train


def give_back_memory() -> None:
    """Give memory that was freed back to the system, where the C library is glibc: of tensors of ever new shapes it
    keeps so much that a run on a CPU grows to several times what it needs."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def accelerator(train: Train) -> Accelerator:
    """The Accelerator of this process, on the device and precision that `train:` asks for."""
    from accelerate import Accelerator

    keys = {"ACCELERATE_USE_FSDP": "train.shard=true", "ACCELERATE_USE_DEEPSPEED": "train.deepspeed=ZERO.json"}
    for name, key in keys.items():
        if os.environ.get(name, "false").lower() == "true":
            raise ConfigError(
                f"The launcher set {name}, which would compete with the config file. Launch without it and say "
                f"`{key}` instead."
            )
    cuda = torch.cuda.is_available()
    if train.device == "cuda" and not cuda:
        raise ConfigError("`train.device` is cuda, but torch finds no GPU here (`stentor doctor` says why).")
    cpu = train.device == "cpu" or not cuda
    precision = train.precision
    if precision == "auto":
        precision = "bf16" if not cpu and torch.cuda.is_bf16_supported() else "fp32"
    if precision == "fp16" and cpu:
        raise ConfigError("`train.precision` fp16 needs a GPU: use fp32 or bf16 on a CPU.")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # Under Slurm each process may be shown a GPU of its own only.
    if not cpu and local > torch.cuda.device_count() and "SLURM_PROCID" not in os.environ:
        raise ConfigError(
            f"{local} processes were started on this machine, where torch finds {torch.cuda.device_count()} GPUs: "
            "start one process for each (`--processes`, `--nproc-per-node`, CUDA_VISIBLE_DEVICES)."
        )
    return Accelerator(cpu=cpu, mixed_precision="no" if precision == "fp32" else precision)


class Communicator:
    """Small exact messages between ranks, over gloo on the CPU so that no GPU has to be waited for."""

    def __init__(self, world: int):
        self.world = world
        self.group = None
        if world > 1:
            self.group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all ranks."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's plain value, in order of rank."""
        if self.world == 1:
            return [value]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=self.group)


def wrap(
    model: nn.Module, train: Train, accelerator: Accelerator, layers: Sequence[str], family: str
) -> tuple[nn.Module, str]:
    """The model as the loop calls it, and a sentence about what was done."""
    world = accelerator.num_processes
    if train.deepspeed is not None:
        refuse_to_shard(model, "train.deepspeed")
        return model.to(accelerator.device), ""  # see stentor.engine.deepspeed
    if train.shard:
        if train.compile:
            raise ConfigError("`train.compile` and `train.shard` do not go together yet: leave one out.")
        if not layers:
            raise ConfigError(
                f"`train.shard` is set, but model family '{family}' names no layers to shard by: use "
                "`train.shard: false` (DDP)."
            )
        if not dist.is_initialized():
            raise ConfigError(
                "`train.shard` needs a process group: start with `accelerate launch -m stentor train ...` or torchrun, "
                "or use `train.shard: false` in a single process."
            )
        return _shard(model, accelerator, layers)
    model.to(accelerator.device)
    if train.compile:
        model = torch.compile(model, dynamic=True)  # type: ignore[assignment]
    if world == 1:
        return model, f"one process on {accelerator.device}"
    ids = [accelerator.device.index] if accelerator.device.type == "cuda" else None
    wrapped = nn.parallel.DistributedDataParallel(
        model, device_ids=ids, gradient_as_bucket_view=True, find_unused_parameters=train.find_unused
    )
    return wrapped, f"{world} processes (DDP) on {accelerator.device.type}"


def _shard(model: nn.Module, accelerator: Accelerator, layers: Sequence[str]) -> tuple[nn.Module, str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    refuse_to_shard(model)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    # Autocast chooses the compute type of each operation; the policy only lowers the weights that travel between
    # devices. Gradients are added up in float32 as without shards, and inputs stay as they are: some are times.
    policy = MixedPrecisionPolicy(
        param_dtype=low if accelerator.device.type == "cuda" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    units = 0
    # Layer by layer each is moved to its device and divided: the whole model need not fit into one.
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=policy)
            units += 1
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for method in ("generate", "align", "ctc_classes", "label_frames", "speak"):  # what tasks call besides forward
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
    return model, f"{accelerator.num_processes} processes (FSDP2, {units} layers sharded) on {accelerator.device.type}"


def refuse_to_shard(model: nn.Module, key: str = "train.shard") -> None:
    """Raise ConfigError for weights that `fully_shard` and DeepSpeed cannot split."""
    if not all(p.is_floating_point() for p in model.parameters()):
        raise ConfigError(f"Weights kept in 8 or 4 bits cannot be sharded: leave out `model.quantize` or `{key}`.")


@contextlib.contextmanager
def no_sync(model: nn.Module, last: bool) -> Iterator[None]:
    """Gradients stay local except in the last micro-batch of a step."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with contextlib.nullcontext() if last else model.no_sync():
            yield
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield


def full(tensor: torch.Tensor, keep: bool = True) -> torch.Tensor:
    """The whole tensor on the CPU, gathered from all ranks when it is sharded (then every rank must call; one that has
    no use for it says so with `keep` False, and it is not copied from the device)."""
    from torch.distributed.tensor import DTensor

    if deepspeed.is_divided(tensor):
        value = deepspeed.whole(tensor)
    else:
        value = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
    return value.cpu() if keep else value


def like(whole: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`whole` with the type, device and sharding of `target`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        whole = whole.to(target.device, target.dtype)
        return distribute_tensor(whole, target.device_mesh, target.placements)
    return whole.to(target.device, target.dtype)
