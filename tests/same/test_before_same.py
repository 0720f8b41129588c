"""What commit 1946696 wrote is read as it was meant: a checkpoint goes on, an export answers the same."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

import stentor
from stentor.audio.synth import say

MAKER = Path(__file__).with_name("make_run_of_1946696.py")
spec = importlib.util.spec_from_file_location("make_run_of_1946696", MAKER)
maker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(maker)


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((maker.FOLDER / "expected.json").read_text())


def test_a_checkpoint_goes_on_as_it_would_have(expected, cli, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(maker.FOLDER, run)
    done = cli("train", run / "config.yaml", f"output={tmp_path}")
    assert "Resuming from step 4 of 6 (step-000004)." in done.stdout
    assert [row["step"] for row in maker.rows(run)] == [5, 6]
    for row, before in zip(maker.rows(run), expected["rows"], strict=True):
        assert row == pytest.approx(before, rel=1e-4)
    # What it answers is not compared: clips are given the room of the training clips since.
    assert [answer["id"] for answer in maker.answers(run)] == [before["id"] for before in expected["answers"]]


def test_an_export_answers_the_same(expected):
    export = maker.FOLDER / "checkpoints" / "step-000004" / "export"
    transcript = stentor.load(export, "cpu").transcribe(say(**maker.SENTENCE).audio, 16000, keep_failed=True)
    assert transcript["segments"] and len(transcript["segments"]) == len(expected["segments"])
    for segment, before in zip(transcript["segments"], expected["segments"], strict=True):
        assert segment["text"] == before["text"] and segment["text"]
        assert (segment["start"], segment["end"]) == (before["start"], before["end"])
