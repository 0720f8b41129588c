"""A branch with nothing changed is the run that it branched from."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tiny_configs import QUIET_WAVE

KEPT = ("step", "epoch", "train/loss", "train/text", "train/ctc", "grad_norm", "lr", "padding")
WER = "eval/dev/wer"
NOISY = ["data.augment.speed=[0.9, 1.0, 1.1]", "data.augment.spec_augment={time_masks: 1, freq_masks: 1}"]
LONG = ["train.steps=8", "train.save_every=2", "train.eval_every=3", "train.keep=null", "train.keep_best=3"]


def same_from(trace, straight, branch, step):
    """Whether the rows after `step`, the exported weights and the scores are equal."""
    after = [row for row in trace(straight, KEPT, WER) if row["step"] > step]
    assert after and trace(branch, KEPT, WER) == after
    one, two = (load_file(folder / "export" / "model.safetensors") for folder in (straight, branch))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    one, two = (json.loads((folder / "results.json").read_text()) for folder in (straight, branch))
    assert one["eval"] == two["eval"] and one["steps"] == two["steps"] and one["best"] == two["best"]


def test_an_unchanged_branch_is_bit_identical(tiny, here, trace, tmp_path):
    config, runs = tiny(dropout=0.1), tmp_path / "runs"
    settings = [config, *NOISY, *LONG, "train.accumulate=2", "train.ema=0.9"]
    here("train", *settings, "name=straight")
    checkpoint = runs / "straight" / "checkpoints" / "step-000004"
    said = here("train", *settings, "name=branch", "--resume-from", checkpoint)
    assert "Resuming from step 4 of 8" in said and "a branch of the run straight" in said and "Changed" not in said
    same_from(trace, runs / "straight", runs / "branch", 4)
    # From then on it needs the other run no more, not even for a best checkpoint from before the branch.
    assert (runs / "branch" / "checkpoints" / "step-000003" / "meta.json").is_file()
    shutil.rmtree(runs / "straight" / "checkpoints")
    assert "is finished" in here("train", *settings, "name=branch", "--resume-from", checkpoint)
    [part] = json.loads((runs / "branch" / "results.json").read_text())["parts"]
    assert part["from"] == 5 and part["origin"]["run"] == "straight" and "changed" not in part


def test_a_branch_does_not_add_folded_adapters_again(tiny, here, tmp_path):
    runs, config = tmp_path / "runs", tiny()
    config.write_text(config.read_text().replace("text: {type: cross_entropy}, ", ""))
    model = {"type": "ctc", "config": QUIET_WAVE, "lora": {"rank": 2}}
    settings = [config, f"model={json.dumps(model)}", *LONG, "data.batch_tokens=2000", "optim.lr=0.1"]
    here("train", *settings, "name=straight")
    here("train", *settings, "name=branch", "--resume-from", runs / "straight" / "checkpoints" / "step-000004")
    one, two = (load_file(runs / name / "export" / "model.safetensors") for name in ("straight", "branch"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_an_unchanged_branch_of_two_processes(tiny, together, trace, tmp_path):
    config, runs = tiny(dropout=0.1), tmp_path / "runs"
    settings = ["train", config, *NOISY, *LONG, "train.accumulate=2", "train.ema=0.9"]
    checkpoint = runs / "straight" / "checkpoints" / "step-000004"
    together([[*settings, "name=straight"], [*settings, "name=branch", "--resume-from", checkpoint]], 2)
    same_from(trace, runs / "straight", runs / "branch", 4)
