"""Interpolated weights of adapters are those of the merged model, and of several processes those of one."""

import json

import pytest
from safetensors.torch import load_file

INTERPOLATE = "train.interpolate={ratios: [0.5], keep: {dev: 9}}"


@pytest.fixture(scope="module")
def pretrained(real_family, together):
    """The export of a tiny Moonshine that was trained for three steps."""
    together([["train", real_family("moonshine-start", "moonshine")]], 1)
    return real_family.runs / "moonshine-start" / "export"


def test_adapters(real_family, together, pretrained):
    """The export's merged weights are the mean of those before training and after it."""
    path = real_family("moonshine-lora-half", "moonshine", lora=True, init=str(pretrained))
    together([["train", path, "train.interpolate=0.5"]], 1)
    folder = real_family.runs / "moonshine-lora-half"
    trained = folder / "checkpoints" / "step-000003" / "export"
    before, after, half = (load_file(f / "model.safetensors") for f in (pretrained, trained, folder / "export"))
    changed = {n for n in before if not before[n].equal(after[n])}
    assert changed and all("decoder" in n and "q_proj" in n for n in changed)
    for name, tensor in half.items():
        assert (tensor.double() - (before[name].double() + after[name].double()) / 2).abs().max() < 1e-7, name


@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.long
def test_two_processes(shard, real_family, together, pretrained, same_run):
    """Copies (DDP) and shards (FSDP2) search and interpolate as one process does."""
    name = f"moonshine-{'shards' if shard else 'copies'}"
    one, two = (real_family(f"{name}-{n}", "moonshine", init=str(pretrained)) for n in (1, 2))
    together([["train", one, INTERPOLATE, "train.accumulate=4"]], 1)
    together([["train", two, INTERPOLATE, "train.accumulate=2", f"train.shard={shard}"]], 2)
    folders = [real_family.runs / f"{name}-{n}" for n in (1, 2)]
    same_run(*folders)
    entries = [json.loads((f / "results.json").read_text())["interpolate"] for f in folders]
    assert entries[0] == entries[1] and [r["ratio"] for r in entries[0]["ratios"]] == [0, 0.5]
