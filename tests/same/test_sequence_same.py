"""Sequence losses: what the model writes in a step depends on the weights and the items, not on batches, processes
or a stop in between."""

import json

import pytest
from safetensors.torch import load_file

SETTINGS = [
    "data.batch_tokens=4000",
    "data.buckets=1",
    "train.eval_every=100",
    "train.save_every=2",
    "train.dry_run=false",
    "optim.eps=1e-4",
    "schedule={type: constant, warmup_steps: 0}",
    "optim.lr=3e-3",
]
LOSSES = {
    "mwer": "{type: mwer, units: characters}",
    "policy_gradient": "{type: policy_gradient, units: characters, hypotheses: 3}",
}
COLUMNS = ("train/loss", "train/text", "train/seq", "grad_norm")


def outcome(folder, rows):
    return [row[k] for row in rows(folder) for k in COLUMNS], load_file(folder / "export" / "model.safetensors")


@pytest.mark.parametrize("loss", [pytest.param("mwer", marks=pytest.mark.slow), "policy_gradient"])
@pytest.mark.long
def test_two_processes_and_accumulation_are_one_big_batch(loss, tiny, cli, rows, tmp_path):
    config, got = tiny(), {}
    for way, processes, items in (("big", 1, 16), ("accumulated", 1, 4), ("two", 2, 4)):
        accumulate = 16 // items // processes
        cli(
            "train",
            config,
            *SETTINGS,
            f"losses.seq={LOSSES[loss]}",
            "train.steps=2",
            f"data.max_items={items}",
            f"train.accumulate={accumulate}",
            f"name={way}",
            processes=processes,
        )
        got[way] = outcome(tmp_path / "runs" / way, rows)
    values, weights = got.pop("big")
    assert any(abs(v) > 1e-3 for v in values[2 :: len(COLUMNS)]), "the loss taught nothing"
    for way, (other_values, other_weights) in got.items():
        assert other_values == pytest.approx(values, rel=1e-5, abs=1e-5), way
        for name, tensor in weights.items():
            assert (other_weights[name] - tensor).abs().max() < 1e-5, (way, name)


@pytest.mark.parametrize("loss", [pytest.param("mwer", marks=pytest.mark.slow), "policy_gradient"])
def test_stopped_and_resumed_is_bit_identical(loss, tiny, here, rows, tmp_path):
    config, settings = (
        tiny(dropout=0.1),
        [*SETTINGS, f"losses.seq={LOSSES[loss]}", "data.augment.speed=[0.9, 1.0, 1.1]"],
    )
    here("train", config, *settings, "train.steps=4", "name=straight")
    here("train", config, *settings, "train.steps=2", "name=stopped")
    here("train", config, *settings, "train.steps=4", "name=stopped")
    straight, stopped = (tmp_path / "runs" / name for name in ("straight", "stopped"))
    assert "Resuming from step 2" in (stopped / "log.txt").read_text()
    one, two = outcome(straight, rows), outcome(stopped, rows)
    assert one[0] == two[0] and any(abs(v) > 1e-3 for v in one[0][2 :: len(COLUMNS)])
    assert all(one[1][name].equal(two[1][name]) for name in one[1])
    results = [json.loads((folder / "results.json").read_text())["eval"] for folder in (straight, stopped)]
    assert results[0] == results[1]
