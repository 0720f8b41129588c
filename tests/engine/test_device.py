"""Devices: what does not depend on how many there are."""

import platform

import psutil
import pytest
import torch

from stentor.engine.device import accelerator, give_back_memory
from stentor.engine.section import Train
from stentor.errors import ConfigError


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such call")
def test_freed_memory_is_given_back():
    process = psutil.Process()
    tensors = [torch.ones(12_000) for _ in range(4000)]  # 48 kB each, small enough for the heap
    full = process.memory_info().rss
    del tensors[:-1]  # the last one holds the heap open
    give_back_memory()
    assert process.memory_info().rss < full - 100e6
    assert tensors[0].sum() == 12_000


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_launcher_that_shards_the_model_itself_is_refused(name, monkeypatch):
    monkeypatch.setenv(name, "true")
    with pytest.raises(ConfigError, match=f"The launcher set {name}, .* set `train.shard=true`"):
        accelerator(Train())


def test_a_run_folder_of_an_earlier_version_is_read():
    assert Train.model_validate({"deepspeed": None, "steps": 3}).steps == 3
