"""`stentor publish` as it is called: what is wrong is told in one sentence with its exit code; and once over Xet."""

import json
import os
import subprocess
import sys

import pytest

from stentor.publish import hub as publishing

CANARY = "hf_canaryCanaryCanaryCanary99"


@pytest.fixture(autouse=True)
def anna(hub):
    hub.user = "anna"


WRONG = [
    # what is wrong with the Hub or the token, the command's words, exit code, what is said
    (None, ["model", "RUN", "--to", "nonsense"], 2, "is no name on the Hub"),
    (None, ["model", "RUN", "--to", "anna/a--b"], 2, "is no name on the Hub"),
    (None, ["model", "RUN"], 2, "--to USER/REPO"),
    (None, ["model", "gone", "--to", "anna/x"], 2, "There is no folder gone"),
    (None, ["model", ".", "--to", "anna/x"], 2, "neither a run folder nor an export folder"),
    (None, ["model", "damaged", "--to", "anna/x"], 2, "model.safetensors is damaged"),
    (None, ["model", "RUN", "--to", "anna/x", "--card", "bad.md"], 2, "header between the lines"),
    (None, ["model", "RUN", "--to", "anna/x", "--card", "gone.md"], 2, "no such file"),
    (None, ["model", "RUN", "--to", "anna/x", "--license", "my own"], 2, "does not accept this card"),
    (None, ["model", "RUN", "--to", "museum/x"], 2, "no right"),
    (None, ["model", "RUN", "--to", "ben/x"], 2, "who has no right to write ben/x"),
    (None, ["dataset", "lost.jsonl", "--to", "anna/x"], 3, "1 records cannot be published"),
    (None, ["dataset", "gone.jsonl", "--to", "anna/x"], 3, "gone.jsonl"),
    (None, ["dataset", ".", "--to", "anna/x"], 3, "has no manifest.jsonl"),
    (None, ["demo", "gone", "--to", "anna/x"], 2, "no model gone"),
    (None, ["demo", "RUN", "--to", "anna/x", "--secret", "NOT_THERE"], 2, "no environment variable"),
    (None, ["demo", "RUN", "--to", "anna/x", "--task", "sing"], 2, "no demo for the task"),
    ("no token", ["model", "RUN", "--to", "anna/x"], 2, "no token"),
    ("read only", ["model", "RUN", "--to", "anna/x"], 2, "may only read"),
    ("expired", ["model", "RUN", "--to", "anna/x"], 2, "does not know this token"),
    ("no network", ["model", "RUN", "--to", "anna/x"], 1, "connection to the Hugging Face Hub failed"),
    ("offline", ["model", "RUN", "--to", "anna/x"], 2, "HF_HUB_OFFLINE"),
    ("full", ["model", "RUN", "--to", "anna/x"], 2, "no room"),
    ("busy", ["model", "RUN", "--to", "anna/x"], 1, "busy or out of order"),
    ("pay", ["model", "RUN", "--to", "anna/x"], 2, "asks for payment"),
]


@pytest.mark.parametrize(("fault", "words", "code", "sentence"), WRONG, ids=lambda v: v if isinstance(v, str) else None)
def test_wrong_inputs_are_told_in_one_sentence(hub, attempt, tmp_path, monkeypatch, fault, words, code, sentence):
    make_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(publishing, "WAITS", [])
    if fault == "no token":
        monkeypatch.delenv("HF_TOKEN")
    elif fault == "read only":
        monkeypatch.setenv("HF_TOKEN", hub.read_token)
    elif fault == "expired":
        monkeypatch.setenv("HF_TOKEN", CANARY)
    elif fault == "no network":
        hub.pull()
    elif fault == "offline":
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif fault:
        status = {"full": 403, "busy": 503, "pay": 402}[fault]
        hub.fail(status, "/commit/|/create", times=None, message="storage limit" if fault == "full" else fault)
    got, text = attempt("publish", *("run" if word == "RUN" else word for word in words))
    error = text[text.index("stentor: ") :].removeprefix("stentor: ").strip()
    assert got == code and sentence in error, text
    assert "Traceback" not in text and CANARY not in text and hub.token not in text
    assert error.endswith((".", "!", ")")) or code == 3
    assert ("\n" not in error) or code == 3
    assert not [repo for repo in hub.repos.values() if "model.safetensors" in repo.files]


def make_inputs(folder):
    import numpy as np
    from safetensors.numpy import save_file

    config = {
        "name": "first",
        "task": {"type": "transcribe"},
        "model": {"type": "speech_llm"},
        "data": {"train": [{"type": "jsonl", "path": "t.jsonl"}]},
    }
    for name in ("run", "damaged"):
        export = folder / name / "export"
        export.mkdir(parents=True)
        save_file({"llm.weight": np.ones(4, np.float32)}, export / "model.safetensors")
        (export / "config.json").write_text('{"model_type": "speech_llm", "bases": {}}')
        (export / "training_config.json").write_text(json.dumps(config))
        (folder / name / "results.json").write_text('{"eval": {}}')
        (folder / name / "resolved.yaml").write_text(json.dumps(config))
    complete = (folder / "damaged" / "export" / "model.safetensors").read_bytes()
    (folder / "damaged" / "export" / "model.safetensors").write_bytes(complete[:-4])
    (folder / "bad.md").write_text("---\nlicense: [mit\n---\n# Ours\n")
    (folder / "lost.jsonl").write_text('{"audio_path": "gone.wav", "text": "one"}\n')


@pytest.mark.slow
def test_over_xet(hub, tmp_path):
    """The command as on a user's machine, where the client sends chunks: broken in the middle, then once more."""
    pytest.importorskip("hf_xet")
    make_inputs(tmp_path)
    (tmp_path / "run" / "export" / "large.safetensors").write_bytes(
        (tmp_path / "run" / "export" / "model.safetensors").read_bytes()
    )
    command = [sys.executable, "-m", "stentor", "publish", "model", "run", "--to", "anna/xet"]
    xet = {"HF_HUB_DISABLE_XET": "0", "HF_XET_TELEMETRY_ENABLED": "0", "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms"}
    hub.break_after(100)
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **hub.fresh, **xet}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert f"{hub.endpoint}/anna/xet" in done.stdout and hub.token not in done.stdout + done.stderr
    assert hub.asked("xorbs") and len(hub.repos["anna/xet"].commits) == 2  # the Hub's own, and one
    assert "model.safetensors" in hub.repos["anna/xet"].lfs
