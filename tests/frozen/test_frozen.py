"""What commit 1f502d86 wrote is read as it was meant: exports give the same answers, stopped runs resume (see make.py).

Answers are equal to the last bit where the processor and torch are those that made them. Elsewhere other kernels may
round differently: numbers that were computed may differ by `CLOSE`, texts, tokens and shapes may not.
"""

import json
import math
import shutil
from pathlib import Path

import frozen_answers
import pytest
import torch

FOLDER = Path(__file__).parent

torch.set_num_threads(1)

CLOSE = {"rel_tol": 2e-3, "abs_tol": 2e-3}
"""Of logits, log-probabilities (written with four digits) and times. Samples of audio go through a codec."""
LAST_DIGIT = {"rel_tol": 1e-15}
"""Of the Jaccard error rate, which was the sum of pyannote.metrics: its sums are taken in another order here."""
CHANGED = {
    "nemotron_streaming": {
        "/stream/1/end": 0.26,
        "/stream/2/start": 0.26,
        "/transcripts/1/words/1/end": 0.26,
        "/transcripts/1/words/2/start": 0.26,
    },
    "transducer": {"/transcripts/0/words/1/end": 0.572, "/transcripts/0/words/2/start": 0.572},
}
"""Answers that are meant to differ: words that had no length, or overlapped, share their time with their neighbour."""
EXPORTS = sorted(p.name for p in (FOLDER / "exports").iterdir())
RUNS = sorted(p.name for p in (FOLDER / "runs").iterdir())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, which holds the data and exports at the paths that are written in them."""
    for name in ("data", "exports"):
        (tmp_path / name).symlink_to(FOLDER / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def differences(now, before, exact: bool, path: str = "", changed=()):
    """Where two answers differ."""
    if path in changed:
        before = changed[path]
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() | now.keys():
            if key not in before or key not in now:
                yield f"{path}/{key}: only {'now' if key in now else 'before'}"
            elif exact or key != "sha256":
                yield from differences(now[key], before[key], exact, f"{path}/{key}", changed)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, pair in enumerate(zip(now, before)):
            yield from differences(*pair, exact, f"{path}/{index}", changed)
    elif isinstance(before, float) and isinstance(now, float) and (not exact or path.endswith("/scores/jer")):
        if not math.isclose(now, before, **(LAST_DIGIT if exact else CLOSE)):
            yield f"{path}: {now!r}, before {before!r}"
    elif now != before:
        yield f"{path}: {now!r}, before {before!r}"


def check(now, expected, changed=()):
    exact = expected["machine"] == frozen_answers.machine()
    found = sorted(differences(now, expected["answers"], exact, changed=changed))
    assert not found, "\n".join([f"{len(found)} differences", *found[:20]])


def expected(folder: Path) -> dict:
    return json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_answers_the_same(name, place):
    before = expected(FOLDER / "exports" / name)
    check(frozen_answers.of(f"exports/{name}/export", **before["asked"]), before, CHANGED.get(name, ()))


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_resumes_as_the_straight_run(name, place):
    before = expected(FOLDER / "runs" / name)
    shutil.copytree(FOLDER / "runs" / name / "run", "runs/run")
    said = frozen_answers.command("train", FOLDER / "runs" / name / "run.json")
    assert "step-000002" in said, "it started again from step 1"
    check(frozen_answers.of_run(Path("runs/run"), after=2), before)
