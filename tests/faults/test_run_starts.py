"""Starts of a run that has trained before: what is refused leaves every byte of its folder as it was."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from run_events import events


def bytes_of(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def trained(corpus, tiny_text, warm, tmp_path_factory):
    """Folder with the run file and the finished run `run` of six steps, with checkpoints at steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(tiny_text.format(folder=corpus, runs=folder / "runs", dropout=0.0))
    assert warm([["train", str(folder / "tiny.yaml"), "train.keep=null"]], 1).returncode == 0
    return folder


@pytest.fixture
def config(trained, tmp_path):
    """The run file of a copy of the finished run in tmp_path / "runs" / "run"."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    for file in (tmp_path / "tiny.yaml", tmp_path / "runs" / "run" / "resolved.yaml"):
        source = trained / file.relative_to(tmp_path)
        file.write_text(source.read_text().replace(str(trained), str(tmp_path)))
    return tmp_path / "tiny.yaml"


@pytest.fixture
def refused(config, attempt, tmp_path):
    """Starts a training that must be refused with these texts and leave every byte of the runs as it was."""

    def run(*arguments, says=(), code=2):
        before = bytes_of(tmp_path / "runs")
        found, said = attempt("train", config, *arguments)
        assert found == code and "Traceback" not in said and all(text in said for text in says), said
        after = bytes_of(tmp_path / "runs")
        assert after == before | {k: v for k, v in after.items() if k == "branch/.lock"}

    return run


REFUSES = """
from typing import Literal
from stentor.extend import Callback, ConfigError

class Refuses(Callback):
    type: Literal["refuses"] = "refuses"
    def on_start(self, trainer):
        raise ConfigError("not with these settings")
"""
KEEP = "train.keep=null"
REFUSED = [
    (["optim.lr=1e-5"], 2, ("optim.lr: 0.001 -> 1e-05", "step 6 of 6", "raise `train.steps`", "--resume-from")),
    (["train.steps=4"], 2, ("train.steps: 6 -> 4", "nothing is left to train")),
    (["data.max_items=1"], 2, ("training data or its batching differs", "--resume-from")),
    (["data.max_items=1", "train.steps=8"], 2, ("training data or its batching differs", "--resume-from")),
    (["data.train.0.path=gone.jsonl", "train.steps=8"], 3, ("gone.jsonl",)),
    (
        ["model.encoder.config.d_model=64", "train.steps=8"],
        2,
        ("belongs to another model", "is [32, 40, 3] there and [64, 40, 3] here"),
    ),
    (["optim.type=sgd", "train.steps=8"], 2, ("has the state of optim.type adamw, not sgd",)),
    (["optim.amsgrad=true", "train.steps=8"], 2, ("optim.amsgrad: False -> True",)),
    (["model.tokenizer.type=bpe", "train.steps=8"], 2, ("model.tokenizer.type: characters -> bpe", "another `name`")),
    (["callbacks=[{type: refuses}]", "train.steps=8"], 2, ("not with these settings",)),
]


@pytest.mark.parametrize(("overrides", "code", "says"), REFUSED, ids=[" ".join(row[0]) for row in REFUSED])
def test_a_refused_start_changes_nothing(config, refused, here, tmp_path, overrides, code, says):
    (plugin := tmp_path / "refuses_to_start.py").write_text(REFUSES)
    plugins = ["--plugin", plugin] if "refuses" in overrides[0] else []
    refused(KEEP, *overrides, *plugins, says=says, code=code)
    before = bytes_of(tmp_path / "runs")
    assert "is finished" in here("train", config, KEEP)
    assert bytes_of(tmp_path / "runs") == before


def test_what_does_not_affect_results_is_no_change(config, here, tmp_path):
    before = bytes_of(tmp_path / "runs")
    quiet = ["data.prefetch=2", "train.log_every=3", "train.keep=1", "callbacks=[{type: tracking, tensorboard: true}]"]
    assert "is finished" in here("train", config, *quiet)
    assert bytes_of(tmp_path / "runs") == before


def test_what_is_read_after_the_last_step_can_be_changed(config, here, tmp_path):
    said = here("train", config, KEEP, "data.by=[speaker]", "train.use=last")
    assert "Resuming from step 6 of 6" in said
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert results["steps"] == 6 and "parts" not in results
    assert "use: last" in (tmp_path / "runs" / "run" / "resolved.yaml").read_text()


def test_without_checkpoints_a_finished_run_is_not_trained_again(config, refused, here, tmp_path):
    shutil.rmtree(tmp_path / "runs" / "run" / "checkpoints")
    refused(KEEP, "train.steps=8", says=("has no checkpoint to continue from",))
    here("train", config, "name=other", f"model.init={tmp_path / 'runs' / 'run' / 'export'}")  # the message advises it


def test_parts_with_other_settings_are_in_results_and_card(config, here, tmp_path, rows):
    said = here("train", config, KEEP, "train.steps=8", "optim.lr=1e-5", "schedule.type=constant")
    assert "Changed settings from step 7 on: optim.lr: 0.001 -> 1e-05" in said
    run = tmp_path / "runs" / "run"
    assert [row["step"] for row in rows(run)] == list(range(1, 9))
    results = json.loads((run / "results.json").read_text())
    [part] = results["parts"]
    assert part["from"] == 7 and part["changed"]["optim.lr"] == [0.001, 1e-05]
    card = (run / "export" / "README.md").read_text()
    assert "* steps 1 to 6: optim.lr 0.001; " in card and "* steps 7 to 8: optim.lr 0.001 -> 1e-05; " in card
    losses = {"epoch": results["epoch"], "train_loss": rows(run)[-1]["train/loss"], "eval_loss": results["eval_loss"]}
    assert losses["epoch"] == rows(run)[-1]["epoch"] and losses["eval_loss"]["dev"] > 0
    for name in ("results.json", "export/train_results.json", "export/eval_results.json"):
        assert losses.items() <= json.loads((run / name).read_text()).items()
    here("train", config, KEEP, "train.steps=9", "optim.lr=1e-5", "schedule.type=constant")
    parts = json.loads((run / "results.json").read_text())["parts"]
    assert [part["from"] for part in parts] == [7, 9] and parts[1]["changed"] == {"train.steps": [8, 9]}


@pytest.fixture
def corrected(corpus, tmp_path):
    """Writes the training records with the text of one changed; answers the override that trains on them."""

    def write(text: str) -> str:
        records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
        for record in records:
            record["audio_path"] = str(corpus / record["audio_path"])
        records[0]["text"] = text
        (tmp_path / "corrected.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return f"data.train.0.path={tmp_path / 'corrected.jsonl'}"

    return write


def test_changed_transcripts_are_reported_and_keep_the_tokenizer(config, corrected, here, tmp_path):
    run = tmp_path / "runs" / "run"
    tokenizer = (run / "export" / "tokenizer.json").read_bytes()
    said = here("train", config, KEEP, "train.steps=7", corrected("neo"))
    assert 'Changed training data: the texts of 1 of 16 records (train0: "neo"). Tokenizer and alphabet' in said
    [part] = json.loads((run / "results.json").read_text())["parts"]
    assert part["records"] == 'the texts of 1 of 16 records (train0: "neo")'
    assert (run / "export" / "tokenizer.json").read_bytes() == tokenizer
    assert "Changed training data" not in here("train", config, KEEP, "train.steps=8", corrected("neo"))
    state = run / "checkpoints" / "step-000008" / "resume" / "state.json"
    assert json.loads(state.read_text())["texts"]


def test_letters_that_the_tokenizer_lacks_are_named(config, corrected, refused):
    row = ("1 records removed (train0)", "cannot write ö", "its position in the data is not valid")
    refused(KEEP, "train.steps=8", "data.max_bad=1", corrected("öne"), says=row)


def test_a_branch_on_other_data(config, corpus, here, refused, tmp_path):
    run, branch = tmp_path / "runs" / "run", tmp_path / "runs" / "branch"
    before = bytes_of(run)
    lines = (corpus / "train.jsonl").read_text().splitlines()
    changed = [json.loads(line) for line in lines[2:]]
    changed[0]["text"] = "one six two"
    changed.append({**json.loads(lines[0]), "id": "more"})
    for record in changed:
        record["audio_path"] = str(corpus / record["audio_path"])
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(record) + "\n" for record in changed))
    settings = [config, KEEP, "name=branch", "train.steps=10", f"data.train.0.path={tmp_path / 'other.jsonl'}"]
    said = here("train", *settings, "--resume-from", run)
    assert "Resuming from step 6 of 10" in said and "train.steps: 6 -> 10" in said
    assert (
        "1 records added (more); 2 records removed (train0, train1); 1 records changed in text or length (train2)"
        in said
    )
    assert bytes_of(run) == before, "the run that it branches from is only read"
    results = json.loads((branch / "results.json").read_text())
    [part] = results["parts"]
    assert results["steps"] == 10 and part["from"] == 7 and "records removed" in part["records"]
    checkpoint = str(run / "checkpoints" / "step-000006")
    assert part["origin"] | {"hash": ""} == {"run": "run", "step": 6, "checkpoint": checkpoint, "hash": ""}
    card = (branch / "export" / "README.md").read_text()
    assert "* steps 7 to 10: from step 6 of the run run; " in card and str(tmp_path) not in card
    # The same command resumes the branch, and another origin is refused.
    assert "is finished" in here("train", *settings, "--resume-from", run)
    other = run / "checkpoints" / "step-000002"
    refused(*settings[1:], "--resume-from", other, says=("exists and was started from",))


def test_a_branch_killed_before_its_first_checkpoint_starts_again(config, here, attempt, tmp_path, monkeypatch):
    from stentor.engine import restore

    def full(trainer):
        raise OSError("no space")

    origin = tmp_path / "runs" / "run" / "checkpoints"
    settings = [config, KEEP, "name=branch", "optim.lr=1e-4", "train.steps=8", "--resume-from", origin]
    with monkeypatch.context() as patch:
        patch.setattr(restore, "save", full)
        assert attempt("train", *settings)[0] == 1
    assert "Resuming from step 6 of 8" in here("train", *settings)


BAD_ORIGINS = [
    ("runs/run/checkpoints/step-000004/export", "is one part of a checkpoint", 2),
    ("runs/run/export", "Set `model.init: ", 2),
    ("runs", "neither a checkpoint", 2),
    ("runs/run/checkpoints/step-000005", "does not exist", 2),
    ("runs/run/checkpoints/step-000002", "damaged", 3),
]


@pytest.mark.parametrize(("origin", "says", "code"), BAD_ORIGINS)
def test_other_origins_are_refused(refused, tmp_path, origin, says, code):
    (tmp_path / "runs/run/checkpoints/step-000002/resume/weights.safetensors").write_bytes(b"short")
    refused(KEEP, "name=branch", "--resume-from", tmp_path / origin, says=(says,), code=code)


REFUSED_BRANCHES = [
    ("name=run", "is in the run folder"),
    ("train.accumulate=1", "nothing is left to train"),
    ("model.encoder.config.d_model=64", "The model is built on"),
    ("model={type: seq2seq, from: some/model}", "belongs to another model (model.type: speech_llm -> seq2seq)"),
    ("model.lora={rank: 2}", "of its tensors are not trained here"),
    ("optim.type=sgd", "has the state of optim.type adamw"),
    ("stages=[{}, {}]", "has `stages`"),
]


@pytest.mark.parametrize(("override", "says"), REFUSED_BRANCHES)
def test_what_does_not_fit_is_refused_before_anything_is_written(refused, tmp_path, override, says):
    refused("name=branch", *override.split("; "), "--resume-from", tmp_path / "runs" / "run", says=(says,))


def test_an_existing_run_is_no_branch(config, here, refused, tmp_path):
    here("train", config, "name=other", "train.steps=2")
    origin = tmp_path / "runs" / "run"
    refused("name=other", "--resume-from", origin, says=("exists and was started without --resume-from",))
    assert len(events(tmp_path / "runs" / "other", "started")) == 1
