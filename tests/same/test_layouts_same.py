"""One optimizer step is one optimizer step, however its records are spread over batches and processes."""

import json

import pytest
import torch
from safetensors.torch import load_file

# Every step takes the whole epoch of 16 records, so that all four ways train on the same records per step.
WAYS = {
    1: {"one-big-batch": ["data.max_items=16"], "accumulated": ["data.max_items=4", "train.accumulate=4"]},
    2: {
        "two-ranks": ["data.max_items=4", "train.accumulate=2"],
        "two-ranks-sharded": ["data.max_items=4", "train.accumulate=2", "train.shard=true"],
    },
    4: {"four-ranks": ["data.max_items=4", "train.accumulate=1"]},
}
"""By the number of processes."""
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


@pytest.fixture(scope="module")
def runs(tiny_text, corpus, tmp_path_factory, together):
    """The folder of a run for each of `WAYS`, and of `ranks1` and `ranks2`, which are evaluated while they train."""
    folder = tmp_path_factory.mktemp("layouts")
    config = folder / "tiny.yaml"
    config.write_text(tiny_text.format(folder=corpus, runs=folder, dropout=0.0))
    for processes, ways in WAYS.items():
        commands = [["train", config, *SETTINGS, *settings, f"name={way}"] for way, settings in ways.items()]
        if processes < 4:
            accumulate = f"train.accumulate={2 // processes}"
            commands.append(["train", config, "train.steps=2", accumulate, f"name=ranks{processes}"])
        together(commands, processes)
    return folder


def test_same_loss_norm_and_weights(runs, rows):
    def numbers(way: str) -> tuple[list[float], dict[str, torch.Tensor]]:
        columns = ("train/loss", "train/text", "train/ctc", "grad_norm", "lr")
        weights = load_file(runs / way / "export" / "model.safetensors")
        return [row[k] for row in rows(runs / way) for k in columns], weights

    values, weights = numbers("one-big-batch")
    assert len(values) == 15 and values[0] > 1.0
    for way in (way for ways in WAYS.values() for way in ways):
        other_values, other_weights = numbers(way)
        assert other_values == pytest.approx(values, rel=3e-6, abs=1e-6), way  # float32 sums in another order
        assert set(other_weights) == set(weights)
        for name, tensor in weights.items():
            torch.testing.assert_close(other_weights[name], tensor, rtol=0, atol=1e-6, msg=f"{way}: {name}")


def test_evaluation_is_the_same_on_two_ranks(runs):
    one, two = (json.loads((runs / f"ranks{n}" / "results.json").read_text()) for n in (1, 2))
    assert one["eval"] == two["eval"]
    assert one["eval"]["dev"]["wer"]["total"] > 0
