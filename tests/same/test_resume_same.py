"""A run that was killed and resumed is the run that was not."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from run_events import wait_for

KEPT = ("step", "epoch", "train/loss", "train/text", "train/ctc", "grad_norm", "lr", "padding")
WER = "eval/dev/wer"
# Dropout, speed perturbation and SpecAugment all draw random numbers that must come again after the resume.
NOISY = ["data.augment.speed=[0.9, 1.0, 1.1]", "data.augment.spec_augment={time_masks: 1, freq_masks: 1}"]
LONG = ["train.steps=14", "train.save_every=3", "train.eval_every=7", "train.ema=0.9", "data.workers=1"]


def wait_for_step(folder: Path, step: int, process) -> None:
    path = folder / "metrics.jsonl"
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        if path.exists() and any(f'"step": {step},' in line for line in path.read_text().splitlines()):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} never came: {process.communicate()}")


def test_killed_and_resumed_is_bit_identical(tiny, cli, start, trace, tmp_path):
    config = tiny(dropout=0.1)
    cli("train", config, *LONG, *NOISY, "name=straight")
    process = start("train", config, *LONG, *NOISY, "name=killed")
    folder = tmp_path / "runs" / "killed"
    wait_for_step(folder, random.randint(4, 12), process)
    wait_for(folder / "checkpoints" / "latest", "step-", process)  # the first is written beside steps 4 to 6
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "results.json").exists()
    cli("train", config, *LONG, *NOISY, "name=killed")
    assert "Resuming from step" in (folder / "log.txt").read_text()
    straight = tmp_path / "runs" / "straight"
    assert trace(folder, KEPT, WER) == trace(straight, KEPT, WER)
    one, two = (load_file(f / "export" / "model.safetensors") for f in (straight, folder))
    assert all(one[name].equal(two[name]) for name in one) and set(one) == set(two)
    results = [json.loads((f / "results.json").read_text()) for f in (straight, folder)]
    assert results[0]["eval"] == results[1]["eval"]


def test_two_ranks_then_one(tiny, together, trace, tmp_path):
    """The same batches in the same steps; dropout too is a function of the batch, not of the rank."""
    config = tiny(dropout=0.1)
    settings = [config, *NOISY, "train.eval_every=4", "train.save_every=4", "schedule.type=constant"]
    straight = ["train", *settings, "train.steps=8", "train.accumulate=2", "name=constant"]
    together([["train", *settings, "train.steps=4", "name=moved"]], 2)
    together([["train", *settings, "train.steps=8", "name=moved"], straight], 1)
    moved, straight = (trace(tmp_path / "runs" / n, KEPT, WER) for n in ("moved", "constant"))
    assert len(moved) == len(straight) == 10
    for a, b in zip(moved, straight):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6)


def test_changed_data_is_refused(tiny, here, attempt):
    config = tiny()
    here("train", config, "train.steps=2")
    code, said = attempt("train", config, "train.steps=4", "data.batch_tokens=300")
    assert code == 2 and "The training data or its batching differs from that" in said and "Traceback" not in said
