"""Training from Python: the trainer of a run file, its own loop, and a loop of one's own."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from process_group import environment
from stentor.errors import ConfigError, StentorError
from stentor.extend import batches, open_trainer, take_step

EXAMPLE = Path(__file__).parents[2] / "examples" / "loop" / "sharpness_aware.py"


def plain_loop(config: Path, overrides: list[str], stop_at: int | None = None) -> None:
    with open_trainer(config, overrides) as trainer:
        for batch in batches(trainer):
            sums = trainer.backend.loss_sums(batch)
            trainer.backend.backward(
                sum(trainer.losses[t].weight * total / max(batch.counts[t], 1) for t, total in sums.items())
            )
            take_step(trainer)
            if trainer.step in (4, stop_at):
                trainer.save()  # in the background: the next step waits until the tensors are copied
            if trainer.step == stop_at:
                raise KeyboardInterrupt
        assert trainer.step == trainer.total_steps


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next((folder / "export").glob("*.safetensors")))


def test_own_loop_trains_as_the_command_does(tiny, cli, tmp_path):
    config, runs, ema = tiny(dropout=0.1), tmp_path / "runs", "train.ema=0.5"
    cli("train", config, "name=command", ema)
    plain_loop(config, ["name=own", ema])
    with pytest.raises(KeyboardInterrupt):
        plain_loop(config, ["name=resumed", ema], stop_at=3)
    plain_loop(config, ["name=resumed", ema])
    with open_trainer(config, ["name=fit", ema]) as trainer:
        trainer.fit()
    expected = weights(runs / "command")
    for name in ("own", "resumed", "fit"):
        assert weights(runs / name).keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(runs / name).items()), name
    saved = [runs / name / "checkpoints" / "step-000004" / "resume" for name in ("command", "own", "resumed")]
    for file in ("weights.safetensors", "optimizer.safetensors"):
        assert len({(folder / file).read_bytes() for folder in saved}) == 1, file
    results = json.loads((runs / "own" / "results.json").read_text())
    assert results["steps"] == 6 and "wer" in results["eval"]["dev"]
    with pytest.raises(ConfigError, match="is finished: choose another `name`"):
        plain_loop(config, ["name=own"])


def test_updates_that_are_not_finite_are_skipped_and_end_the_loop(tiny):
    overrides = ["name=broken", "train.max_skipped=2", "train.save_every=6"]
    with pytest.raises(StentorError, match=r"3 steps in a row .* \(the last at step 2\)"):
        with open_trainer(tiny(), overrides) as trainer:
            before = [p.detach().clone() for p in trainer.bundle.model.parameters()]
            for batch in batches(trainer):
                trainer.backend.backward(sum(trainer.backend.loss_sums(batch).values()) * float("nan"))
                assert not math.isfinite(take_step(trainer))
    assert all(map(torch.equal, before, trainer.bundle.model.parameters()))


def test_example_of_a_loop(tiny, tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tiny()), "name=sharp", "train.steps=30", "optim.lr=1e-2"]
    subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=300)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "sharp" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert (tmp_path / "runs" / "sharp" / "report.html").exists()


def test_refused(tiny, tmp_path):
    staged = tmp_path / "staged.yaml"
    staged.write_text(tiny().read_text() + "stages: [{train: {steps: 2}}, {train: {steps: 2}}]\n")
    with pytest.raises(ConfigError, match="one file for each stage"), open_trainer(staged):
        pass
