"""Sharded tensors: whole copies of what FSDP2 (DTensor) and DeepSpeed's ZeRO divide over the processes, and back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stentor.errors import ConfigError


def check_shardable(model: nn.Module, key: str = "train.shard") -> None:
    """Raise ConfigError for weights that `fully_shard` and DeepSpeed cannot split."""
    if not all(p.is_floating_point() for p in model.parameters()):
        raise ConfigError(f"Weights kept in 8 or 4 bits cannot be sharded: leave out `model.quantize` or `{key}`.")


def gather_full(tensor: Tensor, copy: bool = True) -> Tensor:
    """The whole tensor, gathered from all ranks when it is sharded (then every rank must call), on the CPU. With `copy`
    False, for ranks that only take part, it stays on its device."""
    if is_zero_sharded(tensor):
        import deepspeed

        with deepspeed.zero.GatheredParameters([tensor]):
            value = tensor.detach().clone()
    else:
        value = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
    return value.cpu() if copy else value


def shard_like(value: Tensor, target: Tensor) -> Tensor:
    """The whole tensor `value` with the type, device and sharding of `target`."""
    value = value.to(target.device, target.dtype)
    return distribute_tensor(value, target.device_mesh, target.placements) if isinstance(target, DTensor) else value


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
