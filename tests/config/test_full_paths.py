"""Full paths: what a run folder holds is found from any directory, also after the folder was moved."""

import json
import shutil

import pytest
import yaml

from stentor.config.load import load, run_texts
from stentor.section.changes import changes


@pytest.fixture
def project(corpus, tmp_path, monkeypatch, tiny_text):
    """A folder with data and a run file whose paths are relative; the current directory."""
    project = tmp_path / "project"
    shutil.copytree(corpus, project / "data")
    (project / "run.yaml").write_text(tiny_text.format(folder="data", runs="runs", dropout=0))
    monkeypatch.chdir(project)
    return project


def test_paths_become_full_and_ids_and_addresses_stay(project, capsys):
    for name in ("acme/speech", "acme/llm", "run"):
        (project / name).mkdir(parents=True)
    (project / "more.jsonl").touch()
    overrides = [
        "data.train=[{type: hub, name: acme/speech}, {type: hub, name: openslr/x}, {type: jsonl, path: ~/x.jsonl}]",
        "data.augment.noise={paths: [data/noise, s3://bucket/noise]}",
        "task.language_model=lm",
        "model.llm={from: acme/llm}",
        "model.encoder={from: openai/whisper-tiny}",
        "model.tokenizer=null",
        "stages=[{data: {train: [{type: jsonl, path: more.jsonl}]}, train: {steps: 2}}]",
    ]
    stored = yaml.safe_load(run_texts(load(project / "run.yaml", overrides))["resolved.yaml"])
    train, model = stored["data"]["train"], stored["model"]
    assert [source.get("name") for source in train[:2]] == [f"{project}/acme/speech", "openslr/x"]
    assert train[2]["path"].endswith("/x.jsonl") and train[2]["path"][0] == "/"
    assert stored["data"]["augment"]["noise"]["paths"] == [f"{project}/data/noise", "s3://bucket/noise"]
    assert stored["task"]["language_model"] == f"{project}/lm"
    assert (model["llm"]["from"], model["encoder"]["from"]) == (f"{project}/acme/llm", "openai/whisper-tiny")
    assert stored["stages"][0]["data"]["train"][0]["path"] == f"{project}/more.jsonl"
    assert (stored["output"], stored["name"]) == (f"{project}/runs", "run")
    assert "acme/llm is read as the folder of this name, not from the Hub." in capsys.readouterr().err


def test_what_a_run_holds_is_found_from_another_directory(project, attempt, monkeypatch, tmp_path):
    assert attempt("train", "run.yaml", "train.steps=2")[0] == 0
    monkeypatch.chdir(tmp_path)
    run = project / "runs" / "run"
    config = json.loads((run / "export" / "training_config.json").read_text())
    assert config["data"]["train"][0]["path"] == f"{project}/data/train.jsonl"
    code, said = attempt("export", run, "--to", "copy")
    assert code == 0 and "checked on 4 clips" in said, said
    code, said = attempt("train", run / "resolved.yaml", "train.steps=3")
    assert code == 0 and "Resuming from step 2 of 3" in said and "path" not in said, said
    project.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "runs" / "run"
    code, said = attempt("export", run, "--to", "again")
    assert code == 0 and "not checked on clips of dev, which cannot be read" in said, said
    monkeypatch.chdir(tmp_path / "moved")
    code, said = attempt("train", "run.yaml", "train.steps=3")
    assert code == 0 and "is finished" in said, said
    code, said = attempt("train", "run.yaml", "train.steps=4")
    assert code == 0 and "Resuming from step 3" in said and "Changed settings from step 4 on: train.steps: 3" in said
    assert not project.exists()


def test_another_file_is_a_change_and_the_same_file_is_none(project):
    now = load(project / "run.yaml").config
    before = yaml.safe_load(run_texts(load(project / "run.yaml"))["resolved.yaml"])
    assert changes(before, now) == []
    before["data"]["eval"]["dev"]["path"] = f"{project}/other/dev.jsonl"
    assert [change.key for change in changes(before, now)] == ["data.eval.dev.path"]
