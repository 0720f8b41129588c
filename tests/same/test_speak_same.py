"""Speech synthesis: the same numbers packed and padded, resumed and straight, evaluated again, and in any processes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from run_files import write_run_file

LLM = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
}
LORA = {"rank": 2, "alpha": 4, "dropout": 0.0}
KEPT = ("step", "epoch", "train/loss", *(f"train/codes_{c}" for c in range(3)), "grad_norm", "lr", "padding")
LOSS = "eval/dev/loss"


@pytest.fixture(scope="module")
def speaking(tmp_path_factory, corpus):
    """Writes the config of a tiny run (all 16 records in each step, in four batches) and answers its path; run folders
    are in its `runs`. The codec is fitted on the training audio by each run."""
    folder = tmp_path_factory.mktemp("speaking")

    def write(name: str, data: dict | None = None, train: dict | None = None, **model) -> Path:
        return write_run_file(
            folder,
            name,
            corpus / "train.jsonl",
            corpus / "dev.jsonl",
            task={"type": "speak", "samples": 1, "generation": {"steps": 2}},
            model={
                "type": "omnivoice",
                "codec": {"type": "mel_rvq", "codebooks": 3, "entries": 24, "rounds": 3},
                **({} if "from" in model else {"llm": {"config": LLM}, "text": {"type": "characters"}}),
                **model,
            },
            data={"buckets": 1, **(data or {})},
            optim={"eps": 1e-4},
            train={"steps": 3, "dry_run": False, "accumulate": 4, **(train or {})},
        )

    write.runs = folder / "runs"
    return write


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {n: t for f in (folder / "export").glob("*.safetensors") for n, t in load_file(f).items()}


def same(one: Path, other: Path, trace, atol: float = 1e-6) -> None:
    """Losses, norms, weights and scores are the same; and something was learnt."""
    traces = [[{k: v for k, v in row.items() if k != "padding"} for row in trace(f, KEPT, LOSS)] for f in (one, other)]
    assert len(traces[0]) == len(traces[1]) > 3
    for a, b in zip(*traces):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(b[name], tensor, rtol=0, atol=atol, msg=name)
    adapters = [t.abs().max() for n, t in a.items() if ".lora_B." in n]  # begin at zero
    losses = [row["train/loss"] for row in traces[0] if "train/loss" in row]
    assert min(adapters) > 1e-4 if adapters else losses[-1] < losses[0] - 1e-3


def test_packed_is_padded(speaking, here, trace):
    runs = speaking.runs
    here("train", speaking("padded"))
    here("train", speaking("packed", attention="flex"))
    layouts = [json.loads((runs / n / "export" / "training_config.json").read_text()) for n in ("padded", "packed")]
    assert [config["data"]["layout"] for config in layouts] == ["padded", "packed"]
    same(runs / "padded", runs / "packed", trace)


@pytest.mark.long
def test_resumed_is_straight(speaking, here, trace):
    """Stopped in the middle of an epoch and gone on with: masks, conditions and the fitted codec come again."""
    settings = {"train": {"accumulate": 3, "save_every": 1, "eval_every": 2}}
    here("train", speaking("straight", **settings), "train.steps=5")
    here("train", speaking("resumed", **settings), "train.steps=2")
    here("train", speaking("resumed", **settings), "train.steps=5")
    straight, resumed = speaking.runs / "straight", speaking.runs / "resumed"
    assert "Resuming from step 2" in (resumed / "log.txt").read_text()
    assert trace(resumed, KEPT, LOSS)[:5] == trace(straight, KEPT, LOSS)[:5]
    one, two = weights(straight), weights(resumed)
    assert all(one[name].equal(two[name]) for name in one) and one.keys() == two.keys()
    results = [json.loads((f / "results.json").read_text())["eval"] for f in (straight, resumed)]
    assert results[0] == results[1]


@pytest.mark.long
def test_the_evaluation_is_the_same_each_time(speaking, here):
    """The same weights score the same, whatever the seed, the batches and the layout: the masks are the items' own."""
    here("train", speaking("scored"), "train.steps=1")
    export = speaking.runs / "scored" / "export"
    losses = []
    for name, seed, more in (
        ("one", 1, {"data": {"max_items": 1, "workers": 1}}),
        ("two", 2, {"attention": "flex", "data": {"eval_batch_tokens": 300}}),
    ):
        model = {"from": str(export), "codec": None, **more}
        here("train", speaking(name, train={"seed": seed}, **model), "optim.lr=0", "train.steps=1")
        losses.append(json.loads((speaking.runs / name / "results.json").read_text())["eval"]["dev"]["loss"]["value"])
    first = json.loads((speaking.runs / "scored" / "results.json").read_text())["eval"]["dev"]["loss"]["value"]
    assert losses == pytest.approx([first] * 2, rel=1e-6)


@pytest.mark.slow
def test_two_ranks_then_one(speaking, together, trace):
    runs = speaking.runs
    settings = {"train": {"accumulate": 2, "save_every": 2, "eval_every": 2}}
    together([["train", speaking("moved", **settings), "train.steps=2"]], processes=2)
    one = {"train": {**settings["train"], "accumulate": 4}}
    goes_on = ["train", speaking("moved", **settings), "train.steps=4"]
    together([goes_on, ["train", speaking("alone", **one), "train.steps=4"]], processes=1)
    same(runs / "alone", runs / "moved", trace)


@pytest.mark.slow
def test_one_process_and_two(speaking, together, trace):
    """Copies (DDP) and shards (FSDP2), with all weights and with adapters, packed and padded."""
    runs = speaking.runs
    kinds = {"full": {}, "lora": {"lora": LORA, "gradient_checkpointing": True}, "packed": {"attention": "flex"}}
    ways = {"ddp": [], "fsdp": ["train.shard=true"]}
    half = {"train": {"accumulate": 2}}
    together(
        [
            ["train", speaking(f"{kind}-{way}", **half, **keys), *options]
            for kind, keys in kinds.items()
            for way, options in ways.items()
        ],
        processes=2,
    )
    together([["train", speaking(f"{kind}-one", **keys)] for kind, keys in kinds.items()], processes=1)
    for kind in kinds:
        for way in ways:
            same(runs / f"{kind}-one", runs / f"{kind}-{way}", trace)
