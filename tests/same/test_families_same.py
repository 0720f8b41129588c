"""Real families trained by one process, by two with copies (DDP) and by two with shards (FSDP2): the same numbers."""

import json

import pytest

SHARD = "train.shard=true"
LOW = {"gradient_checkpointing": True}
OTHERS = ("moonshine", "glmasr", "voxtral_realtime", "moss_transcribe_diarize", "parakeet_tdt")
"""One of each kind of model that `test_one_family` does not stand for."""
ALWAYS = ("parakeet_tdt",)
"""Models that always take part; the others, which share their code, are slow tests."""
FAMILIES = (*OTHERS, "whisper", "moonshine_streaming", "cohere_asr", "voxtral", "qwen3_asr", "ctc", "transducer")


def learnt(folder) -> bool:
    """Runs that stood still would be equal as well."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return losses[-1] < losses[0] - 1e-3


def few(folder) -> bool:
    """Whether few of the weights were trained."""
    trained = json.loads((folder / "results.json").read_text())["parameters"]
    return 0 < trained["trained"] < trained["total"] / 5


@pytest.mark.long
def test_one_family(real_family, together, same_run):
    """All weights in shards, and adapters beside a frozen tower with copies; activations recomputed."""
    runs = real_family.runs
    two = [
        ["train", real_family("full-fsdp", "qwen3_asr", **LOW), SHARD],
        ["train", real_family("lora-ddp", "voxtral", True, **LOW)],
    ]
    one = [
        ["train", real_family("full-one", "qwen3_asr"), "train.accumulate=4"],
        ["train", real_family("lora-one", "voxtral", True), "train.accumulate=4"],
    ]
    together(two, processes=2)
    together(one, processes=1)
    same_run(runs / "full-one", runs / "full-fsdp")
    same_run(runs / "lora-one", runs / "lora-ddp")
    assert learnt(runs / "full-fsdp") and few(runs / "lora-ddp")


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f not in ALWAYS)) for f in OTHERS])
@pytest.mark.long
def test_one_big_batch_and_parts_of_it(family, lora, real_family, together, same_run):
    """Four batches a step give the numbers of one; and a run that goes on those of a straight one, to the last bit."""
    runs = real_family.runs

    def train(name: str, *options: str) -> list:
        return ["train", real_family(f"{family}-{lora}-{name}", family, lora), "train.steps=2", *options]

    four = "train.accumulate=4"
    together(
        [
            train("big", "data.max_items=16", "train.accumulate=1"),
            train("parts", four),
            train("stopped", four, "train.steps=1"),
            train("stopped", four),
        ],
        processes=1,
    )
    big, parts, stopped = (runs / f"{family}-{lora}-{name}" for name in ("big", "parts", "stopped"))
    assert few(big) if lora else learnt(big)
    same_run(big, parts)
    assert "Resuming from step 1" in (stopped / "log.txt").read_text()
    same_run(parts, stopped, rel=0.0, atol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, real_family, together, same_run):
    """Every way to spread it; and runs that go on from two processes to one to two, DDP and FSDP2 in turn; and
    checkpoints put into models of zeros."""
    runs = real_family.runs

    def run(name: str, lora: bool = False, **model: object):
        return real_family(f"{family}-{name}", family, lora, **model)

    together(
        [
            ["train", run("ddp", **LOW)],
            ["train", run("fsdp"), SHARD],
            ["train", run("fsdp-low", **LOW), SHARD],
            ["train", run("lora-ddp", True, **LOW)],
            ["train", run("lora-fsdp", True), SHARD],
            ["train", run("lora-fsdp-low", True, **LOW), SHARD],
            ["train", run("moved"), "train.steps=1"],
            ["train", run("lora-moved", True), "train.steps=1", SHARD],
        ],
        processes=2,
    )
    together(
        [
            ["train", run("one"), "train.accumulate=4"],
            ["train", run("lora-one", True), "train.accumulate=4"],
            ["train", run("moved"), "train.steps=2"],
            ["train", run("lora-moved", True), "train.steps=2"],
        ],
        processes=1,
    )
    together(
        [
            ["train", run("moved"), SHARD],
            ["train", run("lora-moved", True)],
            ["zeroed", run("fsdp"), SHARD],
            ["zeroed", run("lora-fsdp", True), SHARD],
        ],
        processes=2,
    )
    for way in ("ddp", "fsdp", "fsdp-low", "moved"):
        same_run(runs / f"{family}-one", runs / f"{family}-{way}")
    for way in ("lora-ddp", "lora-fsdp", "lora-fsdp-low", "lora-moved"):
        same_run(runs / f"{family}-lora-one", runs / f"{family}-{way}")
        assert few(runs / f"{family}-{way}")
    assert learnt(runs / f"{family}-fsdp")
    log = (runs / f"{family}-moved" / "log.txt").read_text()
    places = [log.index(words) for words in ("2 processes (DDP)", "one process on", "2 processes (FSDP2")]
    assert places == sorted(places) and log.count("Resuming from step") == 2
