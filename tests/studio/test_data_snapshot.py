"""A run's own copy of its data."""

import json
from pathlib import Path

import numpy as np
import pytest
from stand_in import YAML, exported

from stentor.studio.runs import jobs, try_model
from stentor.studio.runs.data_snapshot import Changes, as_now, changes, keep


@pytest.fixture
def dataset(projects):
    dataset = projects.create("voice", "en")
    for number, text in enumerate(["one two", "three four", "five six", "seven"]):
        dataset.add(np.random.default_rng(number).normal(0, 0.1, 8000).astype(np.float32), 16000, text)
    return dataset


def names(tree):
    return [tree["data"]["train"][0]["path"], tree["data"]["eval"]["held_out"]["path"]]


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def run_file(dataset):
    parts = dataset.parts()
    return {
        "data": {
            "train": [{"type": "jsonl", "path": str(parts["train"])}],
            "eval": {"held_out": {"type": "jsonl", "path": str(parts["held_out"])}},
        }
    }


def test_a_run_keeps_what_it_learns_from(projects, dataset, tmp_path):
    tree = run_file(dataset)
    before = [read(path) for path in names(tree)]
    keep(tree, projects.runs / "one", projects.runs / "one", projects)
    assert names(tree) == [str(projects.runs / "one" / "data" / p / f"{p}.jsonl") for p in ("train", "held_out")]
    sounds = {r["id"]: dataset.audio(r).read_bytes() for r in dataset.records()}
    for record in dataset.records():
        dataset.edit(record["id"], text="changed")
    dataset.remove([r["id"] for r in dataset.records()[:3]])
    dataset.forget_removed()
    for path, records in zip(names(tree), before):
        assert read(path) == records
        for record in records:
            copied = projects.runs / "one" / "data" / path.split("/")[-2] / record["audio_path"]
            assert copied.read_bytes() == sounds[record["id"]]


def test_a_retry_keeps_what_the_first_run_had(projects, dataset):
    tree = run_file(dataset)
    keep(tree, projects.runs / "one", projects.runs / "one", projects)
    first = read(names(tree)[0])
    again = {"data": {"train": [dict(tree["data"]["train"][0])], "eval": {"held_out": tree["data"]["train"][0]}}}
    again["stages"] = [{"train": {"steps": 1}}, {"data": {"train": {"type": "jsonl", "path": names(tree)[0]}}}]
    keep(again, projects.runs / "two", projects.runs / "two", projects)
    assert read(names(again)[0]) == first and names(again)[0].startswith(str(projects.runs / "two"))
    assert names(again)[0] == names(again)[1], "one manifest is copied once"
    assert again["stages"][1]["data"]["train"]["path"] == names(again)[0]


def test_two_of_one_name(projects, dataset):
    other = projects.create("other", "en")
    for number in range(3):
        other.add(np.random.default_rng(9 + number).normal(0, 0.1, 8000).astype(np.float32), 16000, f"text {number}")
    tree = run_file(dataset)
    tree["data"]["train"].append({"type": "jsonl", "path": str(other.parts()["train"])})
    keep(tree, projects.runs / "one", projects.runs / "one", projects)
    both = [source["path"] for source in tree["data"]["train"]]
    assert len(set(both)) == 2 and all("/runs/one/data/train" in path for path in both)


def test_what_lies_elsewhere_stays_there(projects, tmp_path):
    manifest = tmp_path / "mine.jsonl"
    manifest.write_text('{"audio_path": "a.wav", "text": "one"}\n')
    tree = {"data": {"train": [{"type": "jsonl", "path": str(manifest)}, {"type": "jsonl", "path": "gone.jsonl"}]}}
    keep(tree, projects.runs / "one", projects.runs / "one", projects)
    assert [s["path"] for s in tree["data"]["train"]] == [str(manifest), "gone.jsonl"]
    assert not (projects.runs / "one").exists()


def test_a_manifest_that_leads_out_brings_nothing_in(projects, dataset, tmp_path):
    (tmp_path / "secret.wav").write_bytes(b"secret")
    (dataset.folder / "odd.jsonl").write_text(
        '{"audio_path": "../../../../secret.wav", "text": "x"}\n[1]\nno json\n{"audio_path": 3}\n'
    )
    tree = {"data": {"train": [{"type": "jsonl", "path": str(dataset.folder / "odd.jsonl")}]}}
    keep(tree, projects.runs / "one", projects.runs / "one", projects)
    assert [p.name for p in (projects.runs / "one").rglob("*") if p.is_file()] == ["odd.jsonl"]


def test_runs_of_a_data_set_and_their_retries(projects, dataset, train):
    other = projects.create("other", "en")
    first = jobs.start(projects, YAML.replace("/nowhere/train.jsonl", str(dataset.parts()["train"])))
    retry = jobs.start(projects, first.yaml, "second", retry_of="first")
    hub_only = jobs.start(projects, YAML, "third")
    exported(projects, "by-hand", {"type": "ctc"})
    listed = jobs.jobs(projects)
    names = {name: {job.name for job in jobs.of_dataset(listed, name)} for name in (None, "voice", other.name)}
    assert names["voice"] == {"first", "second", "by-hand"} and names["other"] == {"by-hand"}
    assert names[None] == {"first", "second", "third", "by-hand"}
    assert set(try_model.runs(projects, "other")) == {"by-hand"}
    assert retry.about["copies"] == first.about["copies"] and hub_only.datasets == set()


def test_a_retry_takes_the_data_set_as_it_is_now_and_says_what_changed(projects, dataset):
    tree = run_file(dataset)
    manifests = names(tree)
    copies = keep(tree, projects.runs / "one", projects.runs / "one", projects)
    first, second = dataset.records()[:2]
    dataset.edit(first["id"], text="corrected")
    dataset.remove([second["id"]])
    dataset.add(np.full(8000, 0.1, np.float32), 16000, "eight")
    dataset.add(np.full(8000, 0.2, np.float32), 16000, "nine")
    dataset.parts()
    again, found = as_now(tree, projects.runs / "one", copies)
    assert names(again) == manifests != names(tree)
    assert changes(found) == Changes(added=2, corrected=1, removed=1)
    assert as_now(tree, projects.runs / "one", {}) == (tree, {}), "a run that does not know where its data are from"
