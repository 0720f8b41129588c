"""What the command line itself answers, whatever the command."""

import importlib

import pytest

import stentor.cli
from stentor.inference.declarations import VERBS


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PermissionError(13, "Permission denied", "/data/x"),
            "/data/x cannot be used (Permission denied): check the path",
        ),
        (
            OSError(28, "No space left on device"),
            "A file could not be written (No space left on device): free disk space",
        ),
    ],
)
def test_files_and_disks_are_no_unexpected_failure(error, message, monkeypatch, capsys):
    from stentor.cli import program

    def build():
        raise error

    monkeypatch.setattr(program, "build", build)
    assert program.main(["train", "x.yaml"]) == 1
    assert message in capsys.readouterr().err


def test_the_function_of_each_verb_is_there():
    stentor.cli.build()
    assert len(VERBS) > 30
    for verb in VERBS:
        module, _, name = verb.function.partition(":")
        assert callable(verb.options.__call__ if not name else getattr(importlib.import_module(module), name)), verb


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "speech", "type=text,texts=[one]", "--to", "x"],  # nothing is loaded
        ["prepare", "labels", "x", "--to", "y", "--model", "z", "--ray", "auto"],
        ["prepare", "words", "x", "--to", "y"],
        ["serve", "x"],
        ["align", "x", "y", "z"],
        ["speak", "x", "y", "--out", "z"],
    ],
)
def test_a_device_that_is_not_there_is_refused_by_each_verb(arguments, attempt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = attempt(*arguments, "--device", "bogus")
    assert (code, shown.strip()) == (2, "stentor: Unknown device bogus: use auto, cpu, cuda, cuda:N or mps.")
    if "--ray" not in arguments:
        code, shown = attempt(*arguments, "--device", "cuda:99")
        assert code == 2 and "There is no device cuda:99" in shown


def test_a_step_of_a_run_is_refused_a_device_that_is_not_there(attempt, tiny, tmp_path):
    step = f"{{type: speech, data: {{type: text, texts: [one]}}, to: {tmp_path}/x, device: bogus}}"
    code, shown = attempt("train", tiny(), f"prepare=[{step}]")
    assert code == 2 and "Unknown device bogus" in shown and not (tmp_path / "x").exists()
