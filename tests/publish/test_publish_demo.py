"""A demo as it is published: a private Space with its secrets, from a run or from a model on the Hub."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture
def run(tmp_path):
    """A run's folder with an export, made without training."""
    from safetensors.numpy import save_file

    export = tmp_path / "first" / "export"
    export.mkdir(parents=True)
    save_file({"llm.weight": np.ones(4, np.float32)}, export / "model.safetensors")
    (export / "config.json").write_text('{"model_type": "speech_llm", "bases": {}}')
    config = {
        "name": "first",
        "task": {"type": "transcribe"},
        "model": {"type": "speech_llm"},
        "data": {"train": [{"type": "jsonl", "path": "/home/me/t.jsonl", "language": "en"}]},
    }
    (export / "training_config.json").write_text(json.dumps(config))
    return export.parent


def test_a_private_space_with_its_secret(run, hub, attempt, monkeypatch):
    monkeypatch.setenv("DEMO_PASSWORD", "the-secret-value")
    code, output = attempt(
        "publish", "demo", run, "--to", f"{hub.user}/demo", "--secret", "DEMO_PASSWORD", "--title", "X"
    )
    assert code == 0, output
    space = hub.repos[f"spaces/{hub.user}/demo"]
    assert space.private and space.sdk == "gradio" and space.secrets == {"DEMO_PASSWORD": "the-secret-value"}
    assert {"app.py", "requirements.txt", "space.json", "model/model.safetensors", "stentor/__init__.py"} <= set(
        space.files
    )
    assert f"{hub.endpoint}/spaces/{hub.user}/demo" in output and "DEMO_PASSWORD is set" in output
    for secret in (b"the-secret-value", hub.token.encode(), b"/home/me"):
        assert secret not in output.encode() and not [n for n, data in space.files.items() if secret in bytes(data)]


def test_a_dry_run_and_a_card_of_ones_own(run, hub, here, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMO_PASSWORD", "the-secret-value")
    (tmp_path / "card.md").write_text("---\ntitle: Mine\nsdk: gradio\n---\n# Mine\n")
    output = here(
        "publish",
        "demo",
        run,
        "--dry-run",
        tmp_path / "dry",
        "--card",
        tmp_path / "card.md",
        "--secret",
        "DEMO_PASSWORD",
    )
    assert "and the secrets DEMO_PASSWORD" in output and not hub.requests
    assert (tmp_path / "dry" / "README.md").read_text().startswith("---\ntitle: Mine")
    assert (tmp_path / "dry" / "model" / "model.safetensors").is_file()
    assert not [p for p in (tmp_path / "dry").rglob("*") if p.is_file() and b"the-secret-value" in p.read_bytes()]


def test_of_a_model_on_the_hub(run, hub, here):
    here("publish", "model", run / "export", "--to", f"{hub.user}/first", "--card", _card(run))
    here("publish", "demo", f"{hub.user}/first", "--to", f"{hub.user}/demo", "--public")
    space = hub.repos[f"spaces/{hub.user}/demo"]
    assert not space.private and not [name for name in space.files if name.startswith("model/")]
    assert json.loads(space.files["space.json"])["model"] == f"{hub.user}/first"


def _card(run):
    (run / "card.md").write_text("---\nlicense: mit\n---\n# First\n")
    return run / "card.md"
