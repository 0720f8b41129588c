"""`stentor config` as a user runs it."""

import json
import subprocess
import sys

import pytest

from stentor.cli import main

RUN = """\
task: transcribe
model: {type: speech_llm, encoder: {from: e}, llm: {from: l}}
data:
  train: [{type: jsonl, path: a.jsonl}]
  eval: {dev: {type: jsonl, path: d.jsonl}}
optim: {lr: 1e-4}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    return "run.yaml"


def test_check_says_what_the_run_is(run, capsys):
    assert main(["config", "check", run, "optim=sgd"]) == 0
    output = capsys.readouterr().out
    first, note = output.splitlines()
    assert first == "run.yaml is right: task transcribe, model speech_llm, trained on jsonl, scored on dev."
    assert "Layers and sizes of the model are not checked: model.encoder.from: the model e could not be" in note


def test_check_lists_every_mistake(run, capsys):
    assert main(["config", "check", run, "optim.lrr=1", "train.epochs=0"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 2 and "optim.lrr" in errors and "train.epochs" in errors


def test_show_is_the_resolved_run(run, capsys, tmp_path):
    assert main(["config", "show", run, "optim.lr=5e-4"]) == 0
    output = capsys.readouterr().out
    assert "lr: 0.0005" in output and "batch_tokens:" in output
    (tmp_path / "again.yaml").write_text(output)
    assert main(["config", "show", "again.yaml"]) == 0
    assert capsys.readouterr().out == output


def test_keys_schema_and_reference(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "keys", "optim.lr"]) == 0
    assert capsys.readouterr().out == "optim.lr  (number ≥ 0, ≤ 100; default 0.001)\n    Peak learning rate.\n"
    assert main(["config", "keys", "nope"]) == 2
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Stentor run"
    assert main(["config", "reference", "--check", "docs/reference.md"]) == 1
    assert main(["config", "reference"]) == 0
    assert main(["config", "reference", "--check", "docs/reference.md"]) == 0


@pytest.mark.parametrize(
    "arguments", [["config", "show", "run.yaml"], ["config", "keys"], ["--help"], ["config", "-h"]]
)
def test_heavy_libraries_stay_out(run, arguments):
    code = (
        "import sys\nfrom stentor.cli import main\n"
        f"assert main({arguments!r}) == 0\n"
        "heavy = {'torch', 'lhotse', 'transformers', 'peft', 'accelerate', 'scipy', 'numpy', 'soundfile'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"  # `config check` builds the model, without weights
