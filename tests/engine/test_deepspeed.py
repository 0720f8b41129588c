"""`train.deepspeed`: what is taken from it, what is refused, and how shards are cut. Training: tests/same."""

import json
from types import SimpleNamespace

import pytest
import torch

from stentor.engine import deepspeed, sharding
from stentor.engine.section import Train
from stentor.errors import ConfigError


def config_of(section, **keys):
    return deepspeed.deepspeed_config(Train(deepspeed=section, **keys))


def test_a_config_written_for_transformers(tmp_path):
    """ "auto" is ours to fill in; what is not about our settings goes on as it is."""
    file = tmp_path / "zero.json"
    written = {
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "offload_optimizer": {"device": "none", "pin_memory": True},
        },
        "optimizer": "auto",
        "scheduler": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "amp": {"enabled": False},
        "wall_clock_breakdown": True,
    }
    file.write_text(json.dumps(written))
    config = config_of(str(file), clip=0.5)
    assert config["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert config["wall_clock_breakdown"] is True and config["gradient_clipping"] == 0.5
    assert not {"optimizer", "scheduler", "bf16", "fp16", "amp", "train_batch_size"} & config.keys()


def test_the_default_is_stage_2_and_no_clipping_is_none():
    config = config_of({}, clip=None)
    assert config["zero_optimization"]["stage"] == 2 and config["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"optimizer": {"type": "AdamW"}}, "`optimizer` is set by `optim` here"),
        ({"gradient_accumulation_steps": 4}, "is set by `train.accumulate` here"),
        ({"bf16": {"enabled": True}}, "`bf16` is set by `train.precision` here"),
        ({"zero_optimization": {"stage": 0}}, "must be 1, 2 or 3"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "`zero_optimization.offload_optimizer` is"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "`zero_optimization.offload_param` is not"),
        ("gone.json", "gone.json cannot be read as a JSON file"),
    ],
)
def test_what_is_refused_in_it(section, words):
    with pytest.raises(ConfigError, match=r"^train\.deepspeed: ") as caught:
        config_of(section)
    assert words in str(caught.value)


def test_a_file_that_is_no_mapping(tmp_path):
    (tmp_path / "list.json").write_text("[2]")
    with pytest.raises(ConfigError, match="is a mapping"):
        config_of(str(tmp_path / "list.json"))


@pytest.mark.parametrize(
    ("keys", "optim", "precision", "words"),
    [
        ({"shard": True}, "adamw", "no", "choose one"),
        ({"compile": True}, "adamw", "no", "`train.compile` and `train.deepspeed`"),
        ({}, "muon", "no", "optim.type muon works on whole matrices"),
        ({}, "adamw8bit", "no", "optim.type adamw8bit works on whole matrices"),
        ({}, "adamw", "fp16", "use bf16 or fp32"),
        ({}, "adamw", "no", "`train.deepspeed` needs a process group"),
    ],
)
def test_what_does_not_go_with_it(keys, optim, precision, words):
    with pytest.raises(ConfigError) as caught:
        deepspeed.check(Train(deepspeed={}, **keys), optim, precision)
    assert words in str(caught.value)


def test_through_the_command_line(tiny, cli):
    done = cli("train", tiny(), "train.deepspeed={zero_optimization: {stage: 2}}", check=False)
    assert done.returncode == 2 and "`train.deepspeed` needs a process group" in done.stderr
    done = cli("train", tiny(), check=False, ACCELERATE_USE_DEEPSPEED="true")
    assert done.returncode == 2 and "train.deepspeed=" in done.stderr


@pytest.mark.parametrize("numel", [1, 5, 6])
def test_shards_are_whole_again_side_by_side(numel, monkeypatch):
    tensor = torch.arange(1.0, numel + 1)
    size = -(-numel // 4)
    parameter = SimpleNamespace(ds_tensor=torch.zeros(size))
    monkeypatch.setattr(sharding.dist, "get_world_size", lambda: 4)
    shards = []
    for rank in range(4):
        monkeypatch.setattr(sharding.dist, "get_rank", lambda rank=rank: rank)
        shards.append(sharding._zero_shard(parameter, tensor))
    assert all(len(shard) == size for shard in shards)
    assert torch.cat(shards)[:numel].equal(tensor) and not torch.cat(shards)[numel:].any()
