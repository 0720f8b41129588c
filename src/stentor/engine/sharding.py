"""Sharded tensors: the parts that FSDP2 (DTensor) and DeepSpeed's ZeRO divide over the processes."""

import functools
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from stentor.errors import ConfigError


def check_shardable(model: nn.Module, key: str = "train.shard") -> None:
    """Raise ConfigError for weights that `fully_shard` and DeepSpeed cannot split."""
    if not all(p.is_floating_point() for p in model.parameters()):
        raise ConfigError(f"Weights kept in 8 or 4 bits cannot be sharded: leave out `model.quantize` or `{key}`.")


class TensorShard(NamedTuple):
    """Rows of a tensor, all of them where it is not divided."""

    data: Tensor  # [rows, ...]; a number without dimensions is as it is
    shape: torch.Size  # of the whole tensor
    first: int = 0  # the first row


@torch.no_grad()
def local_shard(tensor: Tensor) -> TensorShard:
    """The rows of a tensor that lie on this rank, as FSDP2 divided it."""
    if not isinstance(tensor, DTensor):
        return TensorShard(tensor.detach(), tensor.shape)
    return TensorShard(tensor.to_local(), tensor.shape, _first_row(tensor.shape, tensor.device_mesh, tensor.placements))


@functools.cache
def _first_row(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> int:
    return compute_local_shape_and_global_offset(shape, mesh, placements)[1][0]


def is_divided(tensor: Tensor) -> bool:
    """Whether only a part of this tensor is here."""
    return isinstance(tensor, DTensor) or is_zero_sharded(tensor)


def own_shards(tensors: Mapping[str, Tensor], of_main: Set[str] = frozenset()) -> dict[str, TensorShard]:
    """What this rank writes of tensors: its rows of those that are divided, and some of the others, of which each is
    written by one rank; those in `of_main`, which are not the same on all, by the main one. What ZeRO-3 divides is
    gathered for the main rank. All ranks must call."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    written = [0] * world  # bytes of whole tensors by rank
    shards: dict[str, TensorShard] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[0] not in of_main, -item[1].nbytes)):
        if is_zero_sharded(tensor):
            whole = gather_zero(tensor)
            if rank == 0:
                shards[name] = TensorShard(whole.cpu(), whole.shape)
            continue
        shard = local_shard(tensor)
        if isinstance(tensor, DTensor):
            if shard.data.numel():
                shards[name] = shard
            continue
        writer = 0 if name in of_main else written.index(min(written))
        written[writer] += tensor.nbytes
        if writer == rank:
            shards[name] = shard
    return shards


def gather_zero(parameter: Tensor) -> Tensor:
    """A copy of the whole parameter that stage 3 of ZeRO divides. All ranks must call."""
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def is_zero_sharded(tensor: Tensor) -> bool:
    """Whether only a shard of this parameter is here (stage 3 of ZeRO)."""
    return hasattr(tensor, "ds_id")


def trained_by_zero(parameter: Tensor) -> bool:
    """Whether DeepSpeed's optimizer has a copy of this parameter."""
    return is_zero_sharded(parameter) or hasattr(parameter, "_hp_mapping")


def full_shape(parameter: Tensor) -> torch.Size:
    """The shape of the whole parameter."""
    return torch.Size(parameter.ds_shape) if is_zero_sharded(parameter) else parameter.shape  # type: ignore[attr-defined]


@torch.no_grad()
def assign_zero_parameter(parameter: Any, value: Tensor) -> None:
    """Set a parameter that DeepSpeed trains: what the model sees and the optimizer's own copy."""
    if is_zero_sharded(parameter):
        shard = parameter.ds_tensor
        shard.copy_(_zero_shard(parameter, value).to(shard.device, shard.dtype))
    if parameter.numel():  # of stage 3, small ones are whole on each rank besides their shard
        parameter.copy_(value.to(parameter.device, parameter.dtype))
    assign_zero_state(parameter, value, None)


def assign_zero_state(parameter: Any, value: Tensor, key: str | None) -> None:
    """Set the optimizer's copy of a parameter (`key` None) or of its state `key` from the whole tensor."""
    from deepspeed import utils

    value = value.float()
    if is_zero_sharded(parameter):  # the whole-tensor calls fail where the last shard is padded
        shard = _zero_shard(parameter, value)
        if key is None:
            utils.safe_set_local_fp32_param(parameter, shard)
        else:
            utils.safe_set_local_optimizer_state(parameter, shard, key)
    elif key is None:
        utils.safe_set_full_fp32_param(parameter, value)
    else:
        utils.safe_set_full_optimizer_state(parameter, value, key)


def _zero_shard(parameter: Any, value: Tensor) -> Tensor:
    """This rank's piece of a whole tensor, padded with zeros as DeepSpeed divides it."""
    size = parameter.ds_tensor.numel()
    rank, world = dist.get_rank(), dist.get_world_size()
    return nn.functional.pad(value.flatten(), (0, size * world - value.numel()))[rank * size : (rank + 1) * size]
