"""`stentor train --plan-only`, and the log of a run beside it."""

import json
import re

import pytest

from stentor.cli import main


def plan(path, capsys, *overrides):
    assert main(["train", str(path), *overrides, "--plan-only"]) == 0
    return capsys.readouterr().out


def test_a_plan_for_a_person_and_for_programs(tiny, capsys, tmp_path):
    out = plan(tiny(), capsys, "model.lora.rank=2", "--json", str(tmp_path / "plan.json"))
    titles = ["Parameters", "Data", "Dropped", "Learning rate and epochs to start from", "Memory", "Time"]
    assert [line for line in out.splitlines() if line in titles] == titles
    (contents,) = json.loads((tmp_path / "plan.json").read_text())
    rows = {row["part"]: row for row in contents["parameters"]}
    assert rows["llm"]["trained"] == rows["llm"]["adapters"] > 0 and rows["encoder"]["adapters"] == 0
    assert re.search(r"^  llm .* trained +[\d,]+ \(adapters\)$", out, re.M)
    data = contents["data"]
    assert (data["records"], data["steps"], data["held_out"]["dev"]["records"]) == (16, 6, 4)
    assert data["epochs"] == pytest.approx(6 / data["batches"])
    assert contents["suggestion"]["method"] == "scratch" and contents["suggestion"]["config"]["lr"] == 1e-3
    memory = {m["name"]: m for m in contents["memory"]["methods"]}
    assert list(memory) == ["full", "LoRA", "LoRA 8-bit", "LoRA 4-bit"]
    assert [name for name, m in memory.items() if m["chosen"]] == ["LoRA"]
    ours = memory["LoRA"]
    assert contents["memory"]["measured"] == pytest.approx(ours["total"] - ours["optimizer"], rel=0.3)
    assert "<- this run" in out and "GiB measured" in out
    assert contents["time"]["seconds"] > 0


def test_dropped_evaluation_records_and_epochs_agree_in_plan_log_and_results(tiny, capsys, cli, tmp_path):
    path = tiny()
    settings = (
        "data.max_seconds=0.6",
        "data.eval_batch_tokens=10",
        "train.accumulate=5",
        "train.steps=2",
        "train.eval_every=2",
    )
    out = plan(path, capsys, *settings, "--json", str(tmp_path / "plan.json"))
    (contents,) = json.loads((tmp_path / "plan.json").read_text())
    held_out = contents["data"]["held_out"]["dev"]
    dropped = held_out["dropped"]["too_long"]["count"]
    assert dropped > 0 and held_out["records"] == 4 - dropped
    assert f"dev: {4 - dropped} records" in out and f"({dropped} dropped)" in out
    assert f"dev: {dropped} too_long: dev" in out
    too_large = re.search(r"dev: its largest record takes \d+ positions, more than data.eval_batch_tokens \(10\)", out)
    assert too_large, out
    cli("train", path, *settings)
    (folder,) = (tmp_path / "runs").iterdir()
    log = (folder / "log.txt").read_text()
    assert f"dev: {4 - dropped} of 4 records are scored." in log and too_large[0] in log
    assert f"Dropped from dev: {dropped} (too_long): dev" in log
    results = json.loads((folder / "results.json").read_text())
    assert results["data"]["eval"]["dev"]["dropped"] == {"too_long": dropped}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert contents["data"]["epochs"] == pytest.approx(rows[-1]["epoch"], abs=1e-3)


def test_values_far_from_the_suggestion_are_noted(tiny, capsys):
    out = plan(tiny(), capsys, "optim.lr=0.1")
    assert "Note: optim.lr 0.1 is 100 times above the suggestion." in out
    assert "optim.lr 0.001 (here 0.1), for scratch" in out


def test_a_speaker_that_nobody_has_is_named(tiny, capsys):
    out = plan(tiny(), capsys, "data.train.0.exclude={speaker: [teo]}")
    assert "data.train.0.exclude: no record has the speaker teo; is it spelled right?" in out


def test_every_process_of_several_is_told(tiny, capsys, tmp_path):
    plan(tiny(), capsys, "train.shard=true", "--processes", "4", "--json", str(tmp_path / "four.json"))
    plan(tiny(), capsys, "--json", str(tmp_path / "one.json"))
    four, one = (json.loads((tmp_path / f"{n}.json").read_text())[0] for n in ("four", "one"))
    for part in ("weights", "gradients", "optimizer"):
        assert four["memory"]["methods"][0][part] == one["memory"]["methods"][0][part] / 4
    assert four["data"]["batches_per_step"] == 4 * one["data"]["batches_per_step"]


def test_json_is_for_plans(tiny, tmp_path, capsys):
    assert main(["train", str(tiny()), "--json", str(tmp_path / "plan.json")]) == 2
    assert "--plan-only" in capsys.readouterr().err and not (tmp_path / "plan.json").exists()


def test_the_log_of_a_run_has_the_estimate_beside_the_figure(tiny, cli, tmp_path):
    path = tiny()
    cli("train", path, "model.lora.rank=2", "train.steps=1", "train.eval_every=1")
    (folder,) = (tmp_path / "runs").iterdir()
    log = (folder / "log.txt").read_text()
    line = re.search(
        r"Dry run of the largest batch: .*? s, peak ([\d.]+) GiB; the process grew by -?[\d.]+\. "
        r"Estimate: ([\d.]+) GiB \(weights [\d.]+, gradients [\d.]+, activations [\d.]+\); the "
        r"optimizer state adds [\d.]+ GiB",
        log,
    )
    assert line, log
    assert float(line[2]) == pytest.approx(float(line[1]), rel=0.3)
    assert re.search(r"Parameters of llm: [\d,]+, trained [\d,]+ \([\d,]+ in adapters\)\.", log)
