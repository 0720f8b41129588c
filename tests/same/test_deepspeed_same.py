"""Trained with DeepSpeed's ZeRO by two processes: the numbers of a plain run. Skipped where DeepSpeed is missing."""

import json

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install deepspeed)")

# Without the threshold stage 3 would leave weights as small as these whole.
TWO, THREE = (
    "train.deepspeed={zero_optimization: {stage: 2}}",
    "train.deepspeed={zero_optimization: {stage: 3, stage3_param_persistence_threshold: 0}}",
)
LOW = {"gradient_checkpointing": True}
FAMILIES = ["voxtral", *(pytest.param(f, marks=pytest.mark.slow) for f in ("whisper", "ctc"))]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_as_without(family, real_family, together, same_run):
    """Stages 2 and 3, all weights and adapters; and runs that change processes and ways as they go on."""
    runs = real_family.runs

    def run(name: str, lora: bool = False, **model: object):
        return real_family(f"zero-{family}-{name}", family, lora, **model)

    together(
        [
            ["train", run("two", **LOW), TWO, "train.dry_run=true"],
            ["train", run("three"), THREE, "train.dry_run=true"],
            ["train", run("lora-two", True), TWO],
            ["train", run("lora-three", True, **LOW), THREE],
            ["train", run("moved"), "train.steps=1", THREE],
            ["train", run("moved-too"), "train.steps=1", TWO],
        ],
        processes=2,
    )
    together(
        [
            ["train", run("one"), "train.accumulate=4"],
            ["train", run("lora-one", True), "train.accumulate=4"],
            ["train", run("moved"), "train.steps=2"],
            ["train", run("moved-too"), "train.steps=2"],
        ],
        processes=1,
    )
    together(
        [
            ["train", run("moved"), TWO],
            ["train", run("moved-too"), THREE],
            ["zeroed", run("three"), THREE],
            ["zeroed", run("lora-two", True), TWO],
        ],
        processes=2,
    )
    for way in ("two", "three", "moved", "moved-too"):
        same_run(runs / f"zero-{family}-one", runs / f"zero-{family}-{way}")
    for way in ("lora-two", "lora-three"):
        same_run(runs / f"zero-{family}-lora-one", runs / f"zero-{family}-{way}")


def test_stopping_scoring_and_averaging(real_family, together, same_run):
    """What else the loop does: evaluation in between, a moving average, the best checkpoint, several groups."""
    runs = real_family.runs
    more = [
        "train.eval_every=1",
        "train.save_every=1",
        "train.use=best",
        "train.steps=4",
        "optim.type=sgd",
        "optim.groups=[{params: [lm_head.*], lr: 2e-3}]",
    ]
    together(
        [
            ["train", real_family("ema-two", "voxtral"), *more, TWO, "train.ema=0.9"],
            ["train", real_family("best-three", "voxtral"), *more, THREE],
        ],
        processes=2,
    )
    together(
        [
            ["train", real_family("ema-one", "voxtral"), *more, "train.accumulate=4", "train.ema=0.9"],
            ["train", real_family("best-one", "voxtral"), *more, "train.accumulate=4"],
        ],
        processes=1,
    )
    same_run(runs / "ema-one", runs / "ema-two")
    same_run(runs / "best-one", runs / "best-three")


def test_bfloat16_is_near(real_family, together):
    """Autocast is DeepSpeed's own under ZeRO: the losses are those of plain bf16 but for its rounding."""
    runs = real_family.runs
    bf16 = "train.precision=bf16"
    together(
        [
            ["train", real_family("bf16-ddp", "voxtral", True), bf16],
            ["train", real_family("bf16-two", "voxtral", True), bf16, TWO],
            ["train", real_family("bf16-three", "voxtral", True), bf16, THREE],
        ],
        processes=2,
    )
    losses = {}
    for name in ("bf16-ddp", "bf16-two", "bf16-three"):
        rows = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [row["train/loss"] for row in rows if "train/loss" in row]
        assert len(losses[name]) == 3
    assert losses["bf16-two"] == pytest.approx(losses["bf16-ddp"], rel=2e-3)
    assert losses["bf16-three"] == pytest.approx(losses["bf16-ddp"], rel=2e-3)


POISONED = '''
from typing import Literal
from stentor.losses.token import CrossEntropy

class {name}(CrossEntropy):
    """Not a number at the second call, on the first process alone."""
    type: Literal["{name}"] = "{name}"
    _calls: int = 0
    def sum(self, **prediction):
        import os
        self._calls += 1
        bad = self._calls == 2 and os.environ["RANK"] == "0"
        return super().sum(**prediction) * (float("nan") if bad else 1.0)
'''


def test_a_loss_that_is_not_finite_is_skipped_as_without(real_family, together, same_run, tmp_path):
    runs = real_family.runs
    commands = []
    for name, way in (("nan-ddp", "train.shard=false"), ("nan-two", TWO), ("nan-three", THREE)):
        kind = name.replace("-", "_")
        (plugin := tmp_path / f"{kind}.py").write_text(POISONED.format(name=kind))
        more = [f"losses={{text: {{type: {kind}}}}}", "train.accumulate=1", "train.steps=4", way]
        commands.append(["train", real_family(name, "voxtral"), "--plugin", plugin, *more])
    together(commands, processes=2)
    for name in ("nan-ddp", "nan-two", "nan-three"):
        events = [json.loads(line) for line in (runs / name / "events.jsonl").read_text().splitlines()]
        [skipped] = [e for e in events if e["event"] == "skipped_step"]
        assert skipped["step"] == 1 and len(skipped["ids"]) == 4
    same_run(runs / "nan-ddp", runs / "nan-two")
    same_run(runs / "nan-ddp", runs / "nan-three")
