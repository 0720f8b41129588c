"""Golden messages of runs whose config is fine but whose data or model is not: each file in wrong_runs/ is answered by
`stentor train` with the exit code and the text beside it, and leaves no checkpoint.

After a change of a message, write the texts again and read the difference:

    .venv/bin/python tests/errors/test_wrong_runs.py
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from world import CASES, answer, build, speaks_plainly

FILES = sorted(p.name for p in CASES.glob("*.yaml"))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("datasets")
    pytest.importorskip("mistral_common")
    folder = tmp_path_factory.mktemp("world")
    build(folder)
    return folder


def run(name: str) -> str:
    """The golden text of a run in the current folder."""
    code, stderr = answer("train", name, "name=run")
    message = "\n".join(line for line in stderr.splitlines() if "stentor: " in line or line.startswith("  "))
    return f"exit {code}\n{message}\n".replace(f"{Path.cwd()}{os.sep}", "")  # models are named by their full path


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_run_is_answered_with_the_golden_text(name, world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("HF_HOME", str(world / "home"))
    golden = (CASES / name).with_suffix(".txt").read_text(encoding="utf-8")
    assert run(name) == golden and speaks_plainly(golden)
    assert not list(world.glob("runs/*/checkpoints/step-*"))


@pytest.mark.parametrize("name", ["language_whisper", "script_ctc"])
def test_what_is_allowed_is_dropped_and_counted(name, world, monkeypatch):
    """With a larger `max_bad` the run continues without these records, and says so."""
    import json

    from stentor.cli import main

    monkeypatch.chdir(world)
    assert main(["train", f"{name}.yaml", f"name={name}", "data.max_bad=0.6"]) == 0
    data = json.loads((world / "runs" / name / "results.json").read_text())["data"]
    reason, count = {"language_whisper": ("unknown_language", 1), "script_ctc": ("not_in_alphabet", 2)}[name]
    assert data["dropped"] == {reason: count} and data["used"] == 4 - count
    assert len(data["named"][reason]) == count
    assert f"Dropped {count} ({reason})" in (world / "runs" / name / "log.txt").read_text()


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch))
        os.chdir(scratch)
        os.environ["HF_HOME"] = scratch + "/home"
        for wrong in FILES:
            (CASES / wrong).with_suffix(".txt").write_text(run(wrong), encoding="utf-8")
    print(f"Wrote {len(FILES)} texts. Read the difference before you commit it.")
