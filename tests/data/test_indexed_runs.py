"""Runs on data with an index, through the command line: the same weights after a stop, and what a user is told."""

import json
import re

import pytest
from safetensors.torch import load_file


@pytest.fixture
def indexed(tiny, corpus, here, tmp_path):
    """A tiny run on 96 records (each clip six times), and its manifest with an index."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    manifest = tmp_path / "train.jsonl"
    with manifest.open("w") as file:
        for copy in range(6):
            for record in records:
                audio, more = str(corpus / record["audio_path"]), {"language": ["en", "de"][copy % 2]}
                file.write(json.dumps({**record, **more, "id": f"{record['id']}-{copy}", "audio_path": audio}) + "\n")
    said = here("prepare", "index", manifest)
    assert "96 records" in said and "de 0.0" in said
    return tiny(), f"data.train.0.path={manifest}", manifest


@pytest.mark.long
def test_stopped_and_resumed_by_two_processes_is_the_run_that_was_not(indexed, cli, rows, tmp_path):
    config, path, _ = indexed
    settings = [path, "data.window=20", "train.save_every=3", "train.eval_every=20", "schedule.type=constant"]
    cli("train", config, *settings, "train.steps=8", "train.accumulate=2", "name=straight")
    cli("train", config, *settings, "train.steps=3", "name=moved", processes=2)
    cli("train", config, *settings, "train.steps=8", "name=moved", processes=1)
    folders = [tmp_path / "runs" / name for name in ("straight", "moved")]
    assert "Resuming from step 3" in (folders[1] / "log.txt").read_text()
    one, two = ([row["train/loss"] for row in rows(folder)] for folder in folders)
    assert len(one) == 8 and two == pytest.approx(one, rel=1e-5)
    weights = [load_file(folder / "export" / "model.safetensors") for folder in folders]
    assert all(weights[0][name].allclose(weights[1][name], atol=1e-5) for name in weights[0])
    results = json.loads((folders[1] / "results.json").read_text())
    assert results["data"]["used"] == 96 and results["data"]["overlap"]["dev"]["texts"][0] is None


def test_epochs_and_a_plan_without_a_list(indexed, here):
    config, path, _ = indexed
    plan = here("train", config, path, "train.steps=null", "train.epochs=3", "--plan-only")
    assert "The training data has an index: 96 records" in plan
    assert "96 records, 0.0" in plan and ": 3.0 epochs" in plan


def test_a_stale_index_is_refused_and_made_anew(indexed, attempt, here):
    config, path, manifest = indexed
    assert "96 records" in here("prepare", "index", manifest)
    text = manifest.read_text()
    manifest.write_text(text[text.index("\n") + 1 :])
    code, said = attempt("train", config, path, "--plan-only")
    assert code == 3 and f"run `stentor prepare index {manifest}` again" in said
    said = here("prepare", "index", manifest)
    assert "is made again" in said and "95 records" in said
    manifest.write_text(text.replace('"text"', '"words": 3, "text', 1)[:-40])
    code, said = attempt("prepare", "index", manifest)
    assert code == 3 and f"{manifest}:96" in said and "not JSON" in said
    assert not list(manifest.parent.glob("*.tmp"))


def test_a_selection_is_indexed_and_read_by_its_index(indexed, attempt, here):
    config, path, manifest = indexed
    keys = ["where={language: de}", "skip=3", "limit=20"]
    more = [f"data.train.0.{key}" for key in keys]
    plan = here("train", config, path, *more, "--plan-only")
    assert "has an index" not in plan and "20 records" in plan
    said = here("prepare", "index", ",".join([str(manifest), *keys]))
    assert ".index: 20 records" in said and "(de 0.0" in said
    plan = here("train", config, path, *more, "--plan-only")
    assert "The training data has an index: 20 records" in plan
    manifest.write_text(manifest.read_text()[:-200] + "\n")
    code, said = attempt("train", config, path, *more, "--plan-only")
    (spec,) = re.findall(r"run `stentor prepare index '(.*)'` again", said)
    assert code == 3 and spec.startswith(f"{manifest},")
    code, said = attempt("prepare", "index", spec)
    assert code == 0 and "is made again" in said and ".index: 20 records" in said


def test_what_cannot_be_indexed(attempt, tmp_path):
    (tmp_path / "talk.rttm").write_text("SPEAKER talk 1 0 1 <NA> <NA> anna <NA> <NA>\n")
    code, said = attempt("prepare", "index", tmp_path / "talk.rttm")
    assert code == 2 and "(type rttm) cannot be indexed: only JSONL manifests" in said
    (tmp_path / "train.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    code, said = attempt("prepare", "index", f"type=jsonl,path={tmp_path / 'train.jsonl.gz'}")
    assert code == 3 and "unpack it and index that file" in said
