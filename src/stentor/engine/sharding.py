"""Sharded tensors: the parts that FSDP2 (DTensor) divides over the processes."""

from collections.abc import Mapping, Set
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stentor.errors import ConfigError


def check_shardable(model: nn.Module) -> None:
    """Raise ConfigError for weights that `fully_shard` cannot split."""
    if not all(p.is_floating_point() for p in model.parameters()):
        raise ConfigError("Weights kept in 8 or 4 bits cannot be sharded: leave out `model.quantize` or `train.shard`.")


class TensorShard(NamedTuple):
    """Rows of a tensor; all of them if it is not sharded."""

    data: Tensor  # [rows, ...]; a number without dimensions is as it is
    shape: torch.Size  # of the whole tensor
    first: int = 0  # the first row


@torch.no_grad()
def local_shard(tensor: Tensor) -> TensorShard:
    """Return the rows of a tensor on this rank."""
    if not isinstance(tensor, DTensor):
        return TensorShard(tensor.detach(), tensor.shape)
    count, mesh = tensor.shape[0], tensor.device_mesh
    rows = -(-count // mesh.size())  # of each rank but the last, as torch.chunk divides
    return TensorShard(tensor.to_local(), tensor.shape, min(rows * mesh.get_local_rank(), count))


def is_divided(tensor: Tensor) -> bool:
    """Return whether this rank only has a part of the tensor."""
    return isinstance(tensor, DTensor)


def own_shards(tensors: Mapping[str, Tensor], of_main: Set[str] = frozenset()) -> dict[str, TensorShard]:
    """Return this rank's part of tensors to write: its rows of sharded tensors, and some of the others, each of which
    is written by one rank. Those in `of_main`, which differ between ranks, are written by the main one."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    written = [0] * world  # bytes of whole tensors by rank
    shards: dict[str, TensorShard] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[0] not in of_main, -item[1].nbytes)):
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
