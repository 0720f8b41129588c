"""The transformer of one's own making, by one process, by two with copies and by two with shards: the same numbers."""

import json

import pytest

SHARD = "train.shard=true"
KINDS = {
    "softmax": {"encoder": {"conv_kernel": 5, "macaron": True}, "gradient_checkpointing": True},
    "linear": {
        "encoder": {"attention": "linear", "norm": "scalenorm", "activation": "geglu"},
        "decoder": {"attention": "causal_linear", "norm": "rezero", "positions": "learned"},
    },
}


@pytest.mark.slow
def test_one_process_and_two(real_family, together, same_run):
    runs = real_family.runs

    def run(name: str, kind: str):
        return real_family(f"own-{kind}-{name}", "transformer", **KINDS[kind])

    together(
        [["train", run(way, kind), *option] for kind in KINDS for way, option in (("ddp", []), ("fsdp", [SHARD]))],
        processes=2,
    )
    together([["train", run("one", kind), "train.accumulate=4"] for kind in KINDS], processes=1)
    for kind in KINDS:
        for way in ("ddp", "fsdp"):
            same_run(runs / f"own-{kind}-one", runs / f"own-{kind}-{way}")
        rows = [json.loads(line) for line in (runs / f"own-{kind}-fsdp" / "metrics.jsonl").read_text().splitlines()]
        losses = [row["train/loss"] for row in rows if "train/loss" in row]
        assert losses[-1] < losses[0] - 1e-3
        assert "FSDP2, 4 layers sharded" in (runs / f"own-{kind}-fsdp" / "log.txt").read_text()
