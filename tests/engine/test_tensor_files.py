"""Tensors written by several ranks are read by any number of them."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from stentor.engine import sharding
from stentor.engine.sharding import TensorShard, own_shards
from stentor.engine.tensor_files import StoredTensors, read_into, save_shards

TENSORS = {
    "matrix": torch.arange(21.0).view(7, 3),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "cube": torch.arange(24).view(4, 3, 2),
    "few": torch.tensor([[1, 2]], dtype=torch.uint8),
    "step": torch.tensor(3.0),
}


def written(folder, world):
    """As `world` ranks write them: divided by rows as `torch.chunk` does, numbers by the last rank."""
    for rank in range(world):
        shards = {}
        for name, tensor in TENSORS.items():
            if not tensor.ndim:
                if rank == world - 1:
                    shards[name] = TensorShard(tensor, tensor.shape)
                continue
            rows = -(-len(tensor) // world)
            if len(part := tensor[rank * rows : (rank + 1) * rows]):
                shards[name] = TensorShard(part.clone(), tensor.shape, rank * rows)
        save_shards(folder, "weights", shards, rank, world)
    return StoredTensors.of(folder, "weights")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_any_rows_come_back(tmp_path, world):
    stored = written(tmp_path, world)
    assert set(stored) == set(TENSORS) and len(stored) == 5 and len(list(tmp_path.iterdir())) == world
    for name, tensor in TENSORS.items():
        assert stored.shape(name) == tensor.shape and stored.dtype(name) == tensor.dtype
        assert stored.rows(name).equal(tensor) and stored.rows(name).dtype == tensor.dtype
        for first in range(len(tensor) if tensor.ndim else 0):
            for end in range(first + 1, len(tensor) + 1):
                assert stored.rows(name, first, end).equal(tensor[first:end])


def test_whole_tensors_are_put_together_in_a_file(tmp_path):
    whole = written(tmp_path, 3).whole(tmp_path / "scratch")
    assert whole.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert whole[name].equal(tensor) and whole[name].dtype == tensor.dtype and whole[name].is_contiguous()
    assert not StoredTensors.of(tmp_path, "ema").whole(tmp_path / "scratch"), "there is none"


def test_one_process_writes_plain_files(tmp_path):
    written(tmp_path, 1)
    tensors = load_file(tmp_path / "weights.safetensors")
    assert tensors.keys() == TENSORS.keys() and all(tensors[n].equal(t) for n, t in TENSORS.items())


def test_a_tensor_of_another_shape_is_refused(tmp_path):
    stored = written(tmp_path, 2)
    target = torch.zeros(7, 3, dtype=torch.float64)
    read_into(target, stored, "matrix")
    assert target.equal(TENSORS["matrix"].double())
    with pytest.raises(ValueError, match=r"matrix is \[7, 3\] there and \[7, 4\] here"):
        read_into(torch.zeros(7, 4), stored, "matrix")


def test_torch_reads_the_files_too(tmp_path):
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    written(tmp_path, 2)
    state = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(state[name].equal(tensor) for name, tensor in TENSORS.items())


def test_what_all_have_is_written_once(monkeypatch):
    """Evenly spread; what is each rank's own, such as running statistics, is that of the first one."""
    tensors = {f"w{n}": torch.zeros(n) for n in (1, 2, 3, 7, 8)} | {"running": torch.zeros(6)}
    written = []
    for rank in range(3):
        here = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda r=rank: r, get_world_size=lambda: 3)
        monkeypatch.setattr(sharding, "dist", here)
        written.append(own_shards(tensors, {"running"}))
    assert sorted(name for shards in written for name in shards) == sorted(tensors)
    assert "running" in written[0] and all(s.first == 0 and s.shape == s.data.shape for s in written[0].values())
    assert max(sum(s.data.numel() for s in shards.values()) for shards in written) <= 12
