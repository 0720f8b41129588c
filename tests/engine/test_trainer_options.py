"""Options of the loop, through the command line: what is kept, chosen, stopped and gone on with."""

import json
import math
import os
import signal
import time

import pytest
from safetensors.torch import load_file

# Gives evaluation the metric of a script, so that what is best is known.
PLUGIN = '''
from typing import Literal
from stentor.engine.callback import Callback

class Scripted(Callback):
    """At each evaluation, the next of `values` stands for the word error rate."""
    type: Literal["scripted"] = "scripted"
    values: list[float]
    def on_evaluate(self, trainer, name, scores, predictions):
        if trainer.step % 2 == 0 and trainer.step <= 2 * len(self.values):
            scores["wer"].value = self.values[trainer.step // 2 - 1]
'''


@pytest.fixture
def scripted(tiny, cli, tmp_path):
    """Runs the tiny config with these metrics at steps 2, 4, ...; answers the run folder."""
    (plugin := tmp_path / "scripted_plugin.py").write_text(PLUGIN)

    def run(values, *settings, callbacks="", name="run"):
        both = f"callbacks=[{{type: scripted, values: {values}}}{callbacks}]"
        cli("train", tiny(), "--plugin", plugin, both, "train.eval_every=2", "optim.lr=0.01", f"name={name}", *settings)
        return tmp_path / "runs" / name

    return run


def results(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def checkpoints(folder) -> set[str]:
    return {p.name for p in (folder / "checkpoints").iterdir() if p.name.startswith("step-")}


def weights(folder, step, file="weights") -> dict:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "resume" / f"{file}.safetensors")


def same(one, other, **tolerance) -> bool:
    shared = one.keys() & other.keys()
    assert len(shared) > 10
    if tolerance:
        return all(one[n].double().sub(other[n].double()).abs().max() <= tolerance["atol"] for n in shared)
    return all(one[n].equal(other[n]) for n in shared)


def test_average_of_the_best_with_ema_and_plateau(scripted, rows):
    folder = scripted(
        [0.9, 0.2, 0.3, 0.5, 0.6],
        "train.steps=10",
        "train.keep=1",
        "train.keep_best=2",
        "train.use=average",
        "train.ema=0.5",
        "schedule={type: plateau, patience: 1, gamma: 0.25, warmup_steps: 2}",
    )
    assert results(folder)["best"] == [{"step": 4, "value": 0.2}, {"step": 6, "value": 0.3}]
    assert checkpoints(folder) == {"step-000004", "step-000006", "step-000010"}
    assert (folder / "checkpoints" / "best").read_text() == "step-000004\n"
    assert (folder / "checkpoints" / "latest").read_text() == "step-000010\n"
    export = load_file(folder / "export" / "model.safetensors")
    averages = [weights(folder, step, "ema") for step in (4, 6)]
    mean = {n: (averages[0][n].double() + averages[1][n].double()) / 2 for n in averages[0]}
    assert same(export, mean, atol=1e-7)
    assert not same(export, averages[0], atol=1e-4) and not same(export, weights(folder, 4), atol=1e-4)
    of_best = load_file(folder / "checkpoints" / "step-000004" / "export" / "model.safetensors")
    assert same(of_best, averages[0]), "a checkpoint's export is its average too"
    # Warm-up of two steps; 0.3 and 0.5 are two evaluations without a better one, at step 8.
    assert [row["lr"] / 0.01 for row in rows(folder)] == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 1, 0.25, 0.25])
    assert [row["eval/dev/loss"] for row in rows(folder, "eval/dev/loss")] != [
        row["train/loss"] for row in rows(folder)
    ]


@pytest.mark.parametrize("ema", [pytest.param(None, marks=pytest.mark.slow), 0.5])
def test_early_stop_goes_back_to_the_best_and_stays_stopped(scripted, rows, ema):
    """Also in bf16 and with accumulation; after a kill between the stop and the results the run is still stopped."""
    settings = [
        "train.steps=40",
        "train.use=last",
        "train.precision=bf16",
        "train.accumulate=2",
        "train.save_every=40",
        f"train.ema={ema or 'null'}",
    ]
    stop = ", {type: early_stop, patience: 2}"
    folder = scripted([0.5, 0.3, 0.4, 0.6, 0.1], *settings, callbacks=stop)
    got = results(folder)
    assert got["steps"] == 8 and got["environment"]["precision"] == "bf16"
    assert got["stopped"] == "dev/wer has not improved in 2 evaluations (best: 30.00 % at step 4)"
    at_best = next(row for row in rows(folder, "eval/dev/perplexity") if row["step"] == 4)
    assert got["eval"]["dev"]["perplexity"]["value"] == pytest.approx(at_best["eval/dev/perplexity"], rel=1e-5)
    export = load_file(folder / "export" / "model.safetensors")
    kind = "ema" if ema else "weights"
    assert same(export, weights(folder, 4, kind)) and not same(export, weights(folder, 8, kind), atol=1e-4)
    losses = [json.loads(line).get("train/loss", 0.0) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    (folder / "results.json").unlink()
    scripted([0.5, 0.3, 0.4, 0.6, 0.1], *settings, callbacks=stop)
    again = results(folder)
    assert (again["steps"], again["stopped"], again["best"]) == (8, got["stopped"], got["best"])
    assert same(load_file(folder / "export" / "model.safetensors"), export)


def test_rotation_without_evaluation(tiny, cli, rows, tmp_path):
    """Epochs for steps, Muon beside AdamW, a group of its own, and the last weights where nothing ranks them."""
    config = tiny()
    lines = [line for line in config.read_text().splitlines() if not line.startswith("  eval:")]
    config.write_text("\n".join(lines))
    cli(
        "train",
        config,
        "train.steps=null",
        "train.epochs=2.5",
        "train.save_every=3",
        "train.log_every=4",
        "optim={type: muon, lr: 1e-3, groups: [{params: ['projector.*'], lr: 0.0}]}",
    )
    folder = tmp_path / "runs" / "run"
    got = results(folder)
    per_epoch = len(rows_of_plan(folder))
    steps = math.ceil(2.5 * per_epoch)
    assert got["steps"] == steps > 9 and got["eval"] == {} and got["best"] == []
    assert [row["step"] for row in rows(folder)] == [*range(4, steps, 4), steps]
    last = steps // 3 * 3
    remaining = {last, steps} if last != steps else {last - 3, last}
    assert checkpoints(folder) == {f"step-{step:06d}" for step in remaining}
    assert not (folder / "checkpoints" / "best").exists()
    export = load_file(folder / "export" / "model.safetensors")
    final, earlier = weights(folder, steps), weights(folder, min(remaining))
    assert same(export, final)
    moved = {n for n in final if not final[n].equal(earlier[n])}
    assert any(n.startswith("llm.") for n in moved) and any(n.startswith("encoder.") for n in moved)
    assert not any(n.startswith("projector.") for n in moved), "its group has a learning rate of 0"
    held = load_file(folder / "checkpoints" / f"step-{steps:06d}" / "resume" / "optimizer.safetensors")
    assert {n.rpartition("|")[2] for n in held} == {"step", "exp_avg", "exp_avg_sq", "momentum_buffer"}


def rows_of_plan(folder) -> list:
    """The batches of an epoch, planned anew from the run's own config."""
    from stentor.commands.train import prepare
    from stentor.config.load import load

    config = load(folder / "resolved.yaml").config
    return list(prepare(config, print).batch_sampler.epoch(0))


STAGES = """
stages:
  - {train: {steps: 3}, optim: {lr: 0.01}}
  - {train: {steps: 60, save_every: 2, eval_every: 60}, optim: {lr: 0.0}}
"""


@pytest.mark.slow
def test_stages_go_on_where_they_were_killed(tiny, cli, start, rows, tmp_path):
    """The second stage learns nothing (its rate is 0): it must end with the weights of the first."""
    config = tiny()
    config.write_text(config.read_text() + STAGES)
    folder = tmp_path / "runs" / "run"
    process = start("train", config)
    deadline = time.time() + 120
    while not (folder / "checkpoints" / "latest").exists() or not staged(rows, folder, "2"):
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (folder / "stages" / "1" / "results.json").exists() and not (folder / "results.json").exists()
    first = (folder / "stages" / "1" / "results.json").stat().st_mtime_ns

    done = cli("train", config)
    assert "Resuming from step" in done.stdout
    assert (folder / "stages" / "1" / "results.json").stat().st_mtime_ns == first, "the first stage is not run again"
    assert staged(rows, folder, "1") == [1, 2, 3] and staged(rows, folder, "2") == list(range(1, 61))
    one, two = (load_file(f / "export" / "model.safetensors") for f in (folder / "stages" / "1", folder))
    assert same(one, two) and one.keys() == two.keys()
    assert results(folder)["steps"] == 60 and "dev" in results(folder)["eval"]

    again = cli("train", config)
    assert "is finished" in again.stdout and "Resuming" not in again.stdout


def staged(rows, folder, stage) -> list[int]:
    """Steps that this stage has logged."""
    return [row["step"] for row in rows(folder) if row["stage"] == stage]
