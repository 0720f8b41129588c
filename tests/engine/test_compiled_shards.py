"""`train.compile` with `train.shard`: layers that are compiled one by one, in shards, compute what they computed."""

import subprocess
import sys

import pytest

SCRIPT = """\
import copy
from types import SimpleNamespace

import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn

from stentor.engine.backend import shard

torch._inductor.config.compile_threads = 1
dist.init_process_group("gloo", init_method="file://" + __import__("sys").argv[1], rank=0, world_size=1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


torch.manual_seed(0)
plain = nn.Sequential(Block(), Block())
sharded = copy.deepcopy(plain)
accelerator = SimpleNamespace(device=torch.device("cpu"), num_processes=1, mixed_precision="no")
assert "2 layers sharded" in shard(sharded, accelerator, ["Block"], compile=True)
assert all(block._compiled_call_impl is not None for block in sharded)
for length in (3, 5):
    x = torch.randn(length, 8)
    for model in (plain, sharded):
        model(x).square().sum().backward()
gradient = sharded[0].linear.weight.grad.full_tensor()
torch.testing.assert_close(gradient, plain[0].linear.weight.grad, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_compiled_shards(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "store"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
