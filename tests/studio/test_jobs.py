"""Training runs of the studio: processes that outlive it, told from their folders."""

import json
import os
import sys

import numpy as np
import pytest
from stand_in import YAML, ended, starts, until

from stentor.errors import ConfigError
from stentor.studio.runs import detached, jobs, watch
from stentor.studio.runs.detached import tail
from stentor.studio.runs.jobs import Job, state
from stentor.studio.runs.progress import JsonlTail


def test_a_run_from_its_start_to_its_end(projects, train, monkeypatch):
    monkeypatch.setenv("CANARY_TOKEN", "canary-1234567890")
    train("wait")
    job = jobs.start(projects, YAML)
    assert state(job).state in ("waiting", "running")
    until((job.folder / "ready").exists)
    now = state(job)
    assert (now.state, now.step, now.total, now.sentence) == ("running", 2, 6, "Training: step 2 of 6.")
    (job.folder / "go").touch()
    done = ended(job)
    assert (done.state, done.exit, done.step) == ("finished", 0, 6)
    assert "# mine" in job.yaml and f"output: {projects.runs}" in job.yaml
    # What the training prints goes through the redactor.
    assert "token ***" in jobs.log(job)
    contents = b"".join(p.read_bytes() for p in job.folder.iterdir() if p.is_file())
    assert b"canary-1234567890" not in contents and b"step" in contents


def test_a_run_that_fails_and_its_retry(projects, train):
    train("fail")
    job = jobs.start(projects, YAML)
    status = ended(job)
    assert (status.state, status.exit) == ("failed", 1)
    assert status.sentence == "The GPU is out of memory:\nset data.batch_tokens lower."
    train()
    second = jobs.start(projects, YAML, "first-2", retry_of="first")
    assert second.about["retry_of"] == "first" and ended(second).state == "finished"
    assert [j.name for j in jobs.jobs(projects)] == ["first-2", "first"]
    assert state(job).state == "failed" and jobs.find(projects, "first") == job


def test_stop_and_resume(projects, tmp_path, running):
    with pytest.raises(ConfigError, match="first is running already"):
        jobs.resume(projects, running)
    with pytest.raises(ConfigError, match="first is running already"):
        jobs.delete(projects, running)
    detached.end(running.folder)
    status = ended(running)
    assert (status.state, status.exit, status.step) == ("stopped", 75, 3) and "resume" in status.sentence
    detached.end(running.folder)  # nothing happens to what has ended
    (running.folder / "go").touch()
    jobs.resume(projects, running)
    assert ended(running).state == "finished" and len(starts(tmp_path)) == 2
    jobs.delete(projects, running)
    assert jobs.jobs(projects) == [] and not list(projects.tmp.iterdir())


def test_nothing_in_the_projects_folder_is_imported(projects, train):
    (projects.folder / "json.py").write_text("raise SystemExit(9)")
    (projects.folder / "stentor").mkdir()
    (projects.folder / "stentor" / "__init__.py").write_text("raise SystemExit(9)")
    assert ended(jobs.start(projects, YAML)).state == "finished"


def test_configs_that_are_refused(projects, train, tmp_path):
    for yaml, message in (
        ("a: [", "not YAML"),
        ("", "empty"),
        ("- 1", "empty"),
        ("name: ../x\n", "run's name"),
        ("x" * 200_001, "too long"),
    ):
        with pytest.raises(ConfigError, match=message):
            jobs.start(projects, yaml)
    assert not list(projects.runs.iterdir()) and not starts(tmp_path)


def test_a_wrong_config_starts_nothing(projects):
    with pytest.raises(ConfigError, match=r"run.yaml:3: unknown key 'optim.weight_decy'"):
        jobs.start(projects, "name: x\noptim:\n  weight_decy: 1\n" + YAML.split("name: first\n")[1])
    assert not list(projects.runs.iterdir())


def test_rows_are_read_once_and_anew_when_rewritten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = JsonlTail(path)
    assert rows.poll() == [] and not rows.restarted
    path.write_text('{"step": 1, "train/loss": 2.0, "time": 5}\n{"step": 2, "tra')
    assert [r["step"] for r in rows.poll()] == [1] and rows.restarted and rows.poll() == [] and not rows.restarted
    with open(path, "a") as file:
        file.write('in/loss": null}\nnot JSON\n[3]\n{"step": 3, "train/loss": 1.5, "stage": "2"}\n')
    assert [r["step"] for r in rows.poll()] == [2, 3] and not rows.restarted
    (tmp_path / "new").write_text('{"step": 1, "train/loss": 2.0}\n')
    os.replace(tmp_path / "new", path)
    assert [r["step"] for r in rows.poll()] == [1] and rows.restarted
    path.unlink()
    assert rows.poll() == [] and rows.restarted


def test_the_end_of_a_log(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    path = tmp_path / "log.txt"
    assert tail(path) == ""
    path.write_text("".join(f"line {i} s3cret-value\n" for i in range(20000)))
    lines = tail(path, 3).splitlines()
    assert lines == [f"line {i} ***" for i in (19997, 19998, 19999)]
    assert len(tail(path, 10**6)) <= 65536 and tail(path, 10**6).startswith("line ")


ROUNDS = """\
import json, sys, time
from pathlib import Path
folder = Path(sys.argv[1]).parent
with open(folder / "arguments", "a") as file:
    file.write(" ".join(sys.argv[2:]) + "\\n")
with open(folder / "events.jsonl", "a") as file:
    file.write(json.dumps({"time": time.time(), "event": "finished", "step": 1}) + "\\n")
"""


@pytest.fixture
def improve(train, tmp_path, monkeypatch):
    """Puts a stand-in in the place of `stentor improve` as well."""
    script = tmp_path / "improve.py"
    script.write_text(ROUNDS)
    monkeypatch.setattr(jobs, "IMPROVE", (sys.executable, "-S", str(script)))


def test_labels_of_a_round_to_correct_and_the_next_round_with_what_was_corrected(projects, improve):
    voices = projects.create("voices", "en")
    ids = [voices.add(np.full(8000, 0.1, "float32"), 16000, "")["id"] for _ in range(3)]
    rounds = f"improve: {{unlabelled: [{{type: jsonl, path: {voices.manifest}}}]}}\n"
    job = jobs.start(projects, YAML + rounds)
    assert ended(job).state == "finished" and {"round", "labels"} <= watch.possible(job, state(job))
    copy = job.folder / "data" / "manifest" / "manifest.jsonl"
    assert str(copy) in job.yaml and copy.read_bytes() == voices.manifest.read_bytes()
    labels = job.folder / "round-1" / "labels-1"
    labels.mkdir(parents=True)
    rows = [
        {"id": f"{i}@0", "recording": i, "audio_path": "x", "text": "heard", "confidence": c}
        for i, c in zip(ids, (0.3, 0.2))
    ]
    rows.append({**rows[0], "id": "half", "recording": ids[2]})
    (labels / "manifest.jsonl").write_text(json.dumps(rows[0]) + "\n")
    silent = [{"id": f"{i}@1", "recording": i, "audio_path": "x", "reason": "no_speech"} for i in ids]
    rejects = [rows[1], rows[2], rows[2], *silent]
    (labels / "rejects.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rejects))
    (job.folder / "round-1-old").mkdir()
    assert jobs.suggest_labels(projects, job) == 2  # of the third recording there are two halves
    voices.edit(ids[1], text="said")
    jobs.next_round(projects, job)
    assert ended(job).state == "finished"
    assert (job.folder / "arguments").read_text().splitlines() == ["", "--more 1"]
    records = [json.loads(line) for line in copy.read_text().splitlines()]
    assert [r["text"] for r in records] == ["heard", "said", ""] and [r.get("draft") for r in records] == [
        True,
        None,
        None,
    ]
    plain = jobs.start(projects, YAML.replace("first", "plain") + "improve: null\n")
    assert not plain.in_rounds and ended(plain).state == "finished"
    assert {"round", "labels"}.isdisjoint(watch.possible(plain, state(plain)))


def test_machines_labels_are_on_neither_side_until_a_person_has_looked_at_them(voices):
    ids = [voices.add(np.full(8000, 0.1, "float32"), 16000, text)["id"] for text in ("one", "two", "", "")]
    before = voices.parts() and voices.sides()
    voices.suggest({id: {"text": f"label {id}", "label_source": "pseudo", "confidence": 0.5} for id in ids[2:]})
    assert voices.parts() and voices.sides() == before and before.keys() == set(ids[:2])
    voices.edit(ids[2], text="three")
    assert voices.sides().keys() == set(ids[:3])


def test_the_next_round_learns_from_the_parts_as_they_are_now(projects, improve):
    voices = projects.create("voices", "en")
    *_, last = [voices.add(np.full(8000, 0.1, "float32"), 16000, t)["id"] for t in ("one", "two", "three", "")]
    parts = voices.parts()
    job = jobs.start(projects, YAML.replace("/nowhere/train.jsonl", str(parts["train"])) + "improve: {rounds: 1}\n")
    assert ended(job).state == "finished"
    voices.edit(last, text="four")
    jobs.next_round(projects, job)
    assert ended(job).state == "finished"
    copy = job.folder / "data" / "train" / "train.jsonl"
    assert str(copy) in job.yaml
    assert voices.sides()[last] in ("train", "held_out") and copy.read_bytes() == parts["train"].read_bytes()
    assert len(copy.read_text().splitlines()) == [*voices.sides().values()].count("train")


def test_the_page_shows_which_round_is_done_and_the_curves_of_its_training(projects):
    folder = projects.runs / "mine"
    for number in (9, 10):
        (folder / f"round-{number}" / "run").mkdir(parents=True)
        row = {"step": 4, "time": 5, "train/loss": 1.0}
        (folder / f"round-{number}" / "run" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "studio.json").write_text(json.dumps({"created": 1.0}))
    job, began = Job(folder), {"time": 101.0, "event": "started", "rounds": 12, "done": 10}

    def seen(code, *events):
        (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in (began, *events)))
        (folder / "ending.json").write_text(json.dumps({"started": 100.0, "exit": code}))
        return state(job).sentence

    (folder / "round-9-old" / "run").mkdir(parents=True)
    (folder / "round-9-old" / "run" / "metrics.jsonl").touch()
    assert job.training == folder / "round-10" / "run" and "stentor-curves" in watch.curves([job])
    round_10 = {"time": 102.0, "event": "round", "round": 10}
    assert seen(75, round_10) == "Stopped in round 10. Everything is saved; you can resume from there."
    assert seen(0, round_10, {"time": 103.0, "event": "finished", "step": 10}).startswith("Finished after round 10;")
    (folder / "run.yaml").write_text("improve: {rounds: 1}\n")
    assert seen(3, round_10, {"time": 103.0, "event": "failed"}) and state(job).state == "failed"
    assert watch.possible(job, state(job)) == {"retry", "delete", "resume", "labels"}  # as where nothing entered
    with detached.exclusive(folder, "it lives already"):
        assert seen(None).startswith("Getting ready")
        assert seen(None, round_10).startswith("Round 10 of at most 12")
