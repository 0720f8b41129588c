"""Devices: what does not depend on how many there are."""

import platform

import psutil
import pytest
import torch

from stentor.engine.device import Communicator, accelerator, give_back_memory
from stentor.engine.metric_accumulator import MetricAccumulator
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


def test_sharding_in_one_process_names_the_option():
    with pytest.raises(ConfigError, match=r"add `--processes N`"):
        accelerator(Train(shard=True, device="cpu"))


def test_a_run_folder_of_an_earlier_version_is_read():
    assert Train.model_validate({"deepspeed": None, "steps": 3}).steps == 3


class Accelerate:
    """In place of the Accelerator, which would move tensors to a device that is not here."""

    def __init__(self, cpu: bool, mixed_precision: str):
        self.device, self.mixed_precision = torch.device("cpu" if cpu else self.kind), mixed_precision


@pytest.fixture
def pretend(monkeypatch):
    """Pretends that there is one GPU of a kind, with bfloat16."""

    def make(kind: str, macos_14: bool = True) -> None:
        monkeypatch.setattr("accelerate.Accelerator", Accelerate)
        monkeypatch.setattr(Accelerate, "kind", kind, raising=False)
        for other in ("cuda", "mps", "xpu"):
            facts = {"is_available": other == kind, "device_count": int(other == kind), "is_bf16_supported": True}
            for name, value in facts.items():
                if (other, name) != ("mps", "is_bf16_supported"):  # which torch does not have
                    monkeypatch.setattr(getattr(torch, other), name, lambda value=value: value)
        monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: macos_14)

    return make


@pytest.mark.parametrize("kind, auto", [("cuda", "bf16"), ("xpu", "bf16"), ("mps", "no")])
def test_each_kind_of_gpu_trains_in_its_precision(kind, auto, pretend):
    pretend(kind)
    assert accelerator(Train(device=kind)).device.type == kind
    assert [accelerator(Train(device=kind, precision=p)).mixed_precision for p in ("auto", "fp32", "bf16")] == [
        auto,
        "no",
        "bf16",
    ]
    assert accelerator(Train(device="cpu")).device.type == "cpu"
    assert accelerator(Train()).device.type == ("cuda" if kind == "cuda" else "cpu")  # the others only by name


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_a_gpu_that_is_not_here_is_refused(kind, pretend):
    pretend("none")
    with pytest.raises(ConfigError, match=f"`train.device` is {kind}, but torch finds no GPU here"):
        accelerator(Train(device=kind))


def test_an_apple_gpu_takes_no_fp16_no_bf16_before_macos_14_and_one_process(pretend, monkeypatch):
    pretend("mps", macos_14=False)
    with pytest.raises(ConfigError, match="fp16 needs a GPU: use fp32 or bf16"):
        accelerator(Train(device="mps", precision="fp16"))
    with pytest.raises(ConfigError, match="bf16 needs macOS 14"):
        accelerator(Train(device="mps", precision="bf16"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="where torch finds 1 GPUs"):
        accelerator(Train(device="mps"))


def test_a_device_that_accelerate_does_not_choose_is_refused(pretend, monkeypatch):
    pretend("xpu")
    monkeypatch.setattr(Accelerate, "kind", "mps")
    with pytest.raises(ConfigError, match=r"`train.device` is xpu, but Accelerate chooses mps"):
        accelerator(Train(device="xpu"))


def test_losses_are_summed_without_float64_on_an_apple_gpu(monkeypatch):
    """MPS has no float64. The sums are the one thing that training keeps on the device in that type elsewhere."""
    real, made = torch.zeros, []

    def zeros(*shape, dtype=None, device=None):
        made.append((dtype, torch.device(device).type))
        return real(*shape, dtype=dtype)

    monkeypatch.setattr(torch, "zeros", zeros)
    for kind in ("mps", "cuda"):
        MetricAccumulator({"text": None}, torch.device(kind), Communicator(1))  # type: ignore[dict-item]
    assert made == [(torch.float32, "mps"), (torch.float64, "cuda")]


def test_fused_optimizers_have_kernels_for_every_kind():
    for kind in ("cpu", "cuda", "mps", "xpu"):
        assert kind in torch.utils._foreach_utils._get_fused_kernels_supported_devices()
