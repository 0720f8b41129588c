"""One optimizer step is one optimizer step, however its records are spread over batches and processes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

# Every step takes the whole epoch of 16 records, so that all four ways train on the same records per step.
WAYS = {
    "one big batch": (1, ["data.max_items=16"]),
    "accumulated": (1, ["data.max_items=4", "train.accumulate=4"]),
    "two ranks": (2, ["data.max_items=4", "train.accumulate=2"]),
    "four ranks": (4, ["data.max_items=4", "train.accumulate=1"]),
    "two ranks sharded": (2, ["data.max_items=4", "train.accumulate=2", "train.shard=true"]),
}
SETTINGS = [
    "data.batch_tokens=4000",
    "data.buckets=1",
    "train.steps=3",
    "train.eval_every=100",
    "train.save_every=100",
    "train.dry_run=false",
    "optim.eps=1e-4",
    "train.use=last",
]


def numbers(folder: Path, rows) -> tuple[list[float], dict[str, torch.Tensor]]:
    columns = ("train/loss", "train/text", "train/ctc", "grad_norm", "lr")
    return [row[k] for row in rows(folder) for k in columns], load_file(folder / "export" / "model.safetensors")


def test_same_loss_norm_and_weights(tiny, cli, rows, tmp_path):
    config = tiny()
    got = {}
    for way, (processes, settings) in WAYS.items():
        name = way.replace(" ", "-")
        cli("train", config, *SETTINGS, *settings, f"name={name}", processes=processes)
        got[way] = numbers(tmp_path / "runs" / name, rows)
    values, weights = got.pop("one big batch")
    assert len(values) == 15 and values[0] > 1.0
    for way, (other_values, other_weights) in got.items():
        assert other_values == pytest.approx(values, rel=3e-6, abs=1e-6), way  # float32 sums in another order
        assert set(other_weights) == set(weights)
        for name, tensor in weights.items():
            torch.testing.assert_close(other_weights[name], tensor, rtol=0, atol=1e-6, msg=f"{way}: {name}")


def test_evaluation_is_the_same_on_two_ranks(tiny, cli, tmp_path):
    config = tiny()
    for processes in (1, 2):
        cli(
            "train",
            config,
            "train.steps=2",
            f"train.accumulate={2 // processes}",
            f"name=ranks{processes}",
            processes=processes,
        )
    one, two = (json.loads((tmp_path / "runs" / f"ranks{n}" / "results.json").read_text()) for n in (1, 2))
    assert one["eval"] == two["eval"]
    assert one["eval"]["dev"]["wer"]["total"] > 0
