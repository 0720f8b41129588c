"""A model as it is published: its card, that others can load it, and what never gets into it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.audio import synth
from stentor.audio.io import write
from stentor.errors import ConfigError
from stentor.publish.card import write_card
from stentor.publish.files import local_bases
from stentor.publish.model import build, check, make_card

CONFIG = {
    "name": "digits",
    "task": {"type": "transcribe"},
    "model": {"type": "speech_llm", "encoder": {"from": "openai/whisper-tiny"}, "llm": {"from": "/home/me/llm"}},
    "data": {
        "train": [
            {"type": "jsonl", "path": "/home/me/secret/train.jsonl", "language": "en"},
            {"type": "hub", "name": "owner/speech", "language": "de"},
        ],
        "eval": {"dev": {"type": "jsonl", "path": "dev.jsonl"}},
        "test": {"unseen <voices>": {"type": "hub", "name": "owner/benchmark", "split": "test"}},
        "max_seconds": 20.0,
    },
    "optim": {"type": "adamw", "lr": 1e-3},
    "train": {"use": "best"},
}


@pytest.fixture
def run(run_folder):
    """A finished run with an export, made without training."""
    from safetensors.numpy import save_file

    results = json.loads((run_folder / "results.json").read_text())
    results["command"] = ["/home/me/bin/stentor", "train", "/home/me/my run.yaml", "optim.lr=0.001"]
    (run_folder / "results.json").write_text(json.dumps(results))
    (run_folder / "resolved.yaml").write_text(json.dumps(CONFIG))  # YAML, too
    export = run_folder / "export"
    export.mkdir()
    save_file(
        {"llm.weight": np.ones(4, np.float32), "encoder.weight": np.ones(4, np.float32)}, export / "model.safetensors"
    )
    (export / "config.json").write_text(
        json.dumps({"model_type": "speech_llm", "bases": {"llm": {"from": "/home/me/llm"}}})
    )
    (export / "training_config.json").write_text(json.dumps(CONFIG))
    (export / "eval_results.json").write_text(json.dumps(results["eval"]))
    train = {"seconds": 1.0, "data": {"used": 2, "named": {"silent": ["/home/me/a.wav"]}}}
    (export / "train_results.json").write_text(json.dumps(train))
    (export / "README.md").write_text("---\nlibrary_name: stentor\n---\n\n# Edited by hand\n\nOn /data.\n")
    (export / ".hidden").write_text("no")
    return run_folder


def licences(repo, kind):
    return {"openai/whisper-tiny": "apache-2.0", "owner/speech": "cc-by-4.0"}.get(repo)


def test_the_card_of_a_run(run, tmp_path):
    from huggingface_hub import ModelCard

    to = tmp_path / "made"
    assert build(run, to, "anna/digits", "cc-by-4.0", licence_of=licences) == []
    card = ModelCard.load(to / "README.md")
    assert card.data.license == "cc-by-4.0" and card.data.base_model == ["openai/whisper-tiny"]
    assert card.data.base_model_relation == "finetune" and card.data.pipeline_tag == "automatic-speech-recognition"
    assert {"stentor", "transcribe", "speech_llm"} <= set(card.data.tags)
    assert {r.metric_type for r in card.data.eval_results} == {"wer", "cer"}
    assert [p.name for p in (to / ".eval_results").iterdir()] == ["unseen_voices_.yaml"]
    assert 'stentor.load("anna/digits")' in card.text and "stentor transcribe anna/digits speech.wav" in card.text
    for line in (
        "This model: cc-by-4.0.",
        "Its base `openai/whisper-tiny`: apache-2.0.",
        "Its data `owner/speech`: cc-by-4.0.",
    ):
        assert f"* {line}" in card.text
    assert "No licence is stated" not in card.text
    assert "stentor train training_config.json optim.lr=0.001" in card.text and "'my run.yaml'" in card.text


def test_no_path_of_this_machine_and_no_hidden_file(run, tmp_path):
    to = tmp_path / "made"
    build(run, to, "anna/digits")
    files = [p for p in to.rglob("*") if p.is_file()]
    assert {p.name for p in files} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "training_config.json",
        "train_results.json",
        "eval_results.json",
        "unseen_voices_.yaml",
    }
    for file in files:
        assert b"/home/me" not in file.read_bytes(), file
    config = json.loads((to / "training_config.json").read_text())
    assert config["data"]["train"][0]["path"] == "train.jsonl" and config["model"]["llm"]["from"] == "llm"
    # The originals are as they were.
    assert json.loads((run / "export" / "training_config.json").read_text()) == CONFIG
    assert "Edited by hand" in (run / "export" / "README.md").read_text()


def test_the_card_of_an_export_is_kept(run, tmp_path):
    to = tmp_path / "made"
    remarks = build(run / "export", to, "anna/digits")
    assert "# Edited by hand" in (to / "README.md").read_text() and "--license" in remarks[0]
    card = tmp_path / "card.md"
    card.write_text('---\nlicense: mit\n---\n\n# Another\n\n```python\nmodel = stentor.load("digits")\n```\n')
    assert build(run, tmp_path / "other", "anna/digits", card=card) == []
    text = (tmp_path / "other" / "README.md").read_text()
    assert "license: mit" in text and "# Another" in text and 'stentor.load("anna/digits")' in text


def test_exports_that_others_could_not_load(run, tmp_path):
    export = run / "export"
    (export / "old.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"old\.bin may be a pickle"):
        check(export)
    (export / "old.bin").unlink()
    complete = (export / "model.safetensors").read_bytes()
    (export / "model.safetensors").write_bytes(complete[:-8])
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        check(export)
    (export / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        check(export)
    (tmp_path / "elsewhere.safetensors").write_bytes(complete)
    (export / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ConfigError, match="leads out of"):
        check(export)
    (export / "model.safetensors").unlink()
    shutil.copy(tmp_path / "elsewhere.safetensors", export / "adapter_model.safetensors")
    (export / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/me/whisper"}))
    with pytest.raises(ConfigError, match=r"/home/me/llm.*--merge"):
        check(export)
    with pytest.raises(ConfigError, match="There is no folder anna/digits"):
        build("anna/digits", tmp_path / "made")


def test_the_command(run, hub, attempt, tmp_path):
    code, output = attempt(
        "publish", "model", run, "--to", f"{hub.user}/digits", "--license", "mit", "--message", "First"
    )
    assert code == 0, output
    repo = hub.repos[f"{hub.user}/digits"]
    assert repo.private and f"{hub.endpoint}/{hub.user}/digits" in output and hub.token not in output
    assert "model.safetensors" in repo.files and ".eval_results/unseen_voices_.yaml" in repo.files
    assert repo.commits[-1].title == "First"
    assert attempt("publish", "model", run)[0] == 2
    assert attempt("publish", "model", run, "--to", "nonsense")[0] == 2
    code, output = attempt("publish", "model", run, "--token", "hf_canaryCanaryCanary", "--to", "a/b")
    assert code == 2 and "No such option" in output


def test_adapters_and_the_whole_model(run, tmp_path):
    """Adapters need a base that others have; the card says which of the two it is about."""
    from huggingface_hub import ModelCard
    from safetensors.numpy import save_file

    export = run / "export"
    (export / "model.safetensors").unlink()
    for name in ("llm", "encoder"):
        weights = {f"base_model.model.{name}.q_proj.lora_A.weight": np.ones((2, 2), np.float32)}
        save_file(weights, export / "adapter_model.safetensors")
        (export / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "openai/whisper-tiny"}))
        (export / "config.json").write_text(json.dumps({"model_type": "whisper"}))
        assert local_bases(export) == []
    build(run, tmp_path / "made", "anna/digits", "mit")
    card = ModelCard.load(tmp_path / "made" / "README.md").data
    assert card.base_model_relation == "adapter" and card.base_model == ["openai/whisper-tiny"]
    (tmp_path / "card").mkdir()
    text = make_card(run, tmp_path / "card", "anna/digits", "mit", merged=True)
    assert "base_model_relation: finetune" in text and "This model: mit." in text
    # Of a speech LLM: the base of every part that it holds nothing of, or adapters only.
    bases = {"llm": {"from": "/home/me/llm"}, "encoder": {"from": "openai/whisper-tiny"}}
    (export / "config.json").write_text(json.dumps({"model_type": "speech_llm", "bases": bases}))
    save_file({"llm.w": np.ones(2, np.float32)}, export / "model.safetensors")
    assert local_bases(export) == []
    save_file(
        {"base_model.model.llm.q.lora_A.weight": np.ones((2, 2), np.float32)}, export / "adapter_model.safetensors"
    )
    assert local_bases(export) == ["/home/me/llm"]


def test_a_dry_run_writes_everything(run, hub, attempt, tmp_path, monkeypatch):
    """With a token in the environment that is in none of it; and without one."""
    code, output = attempt("publish", "model", run, "--to", "anna/digits", "--dry-run", tmp_path / "dry")
    assert code == 0 and "Nothing was sent" in output and not hub.repos
    files = {
        p.relative_to(tmp_path / "dry").as_posix(): p.read_bytes() for p in (tmp_path / "dry").rglob("*") if p.is_file()
    }
    assert {"README.md", "model.safetensors", ".eval_results/unseen_voices_.yaml"} <= set(files)
    assert not [name for name, data in files.items() if hub.token.encode() in data]
    monkeypatch.delenv("HF_TOKEN")
    asked = len(hub.requests)
    assert attempt("publish", "model", run, "--dry-run", tmp_path / "other")[0] == 0
    assert not [r for r in hub.requests[asked:] if r.token]


@pytest.mark.parametrize(
    ("kind", "says"), [("whisper", "has no adapters and is whole"), ("glmasr_lora", "adapters are folded in")]
)
def test_merge_says_whether_there_were_adapters(kind, says, attempt, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1] / "frozen")  # where the adapters name their base from
    export = Path("exports") / kind / "export"
    arguments = ["--merge", "--dry-run", tmp_path / "dry", "--card", tmp_path / "card.md"]
    (tmp_path / "card.md").write_text("---\nlicense: mit\n---\n\n# A model\n")
    code, output = attempt("publish", "model", export, *arguments)
    assert code == 0 and says in output, output


@pytest.mark.slow
@pytest.mark.parametrize("merge", [[], ["--merge"]])
def test_the_usage_code_runs(tiny, hub, here, tmp_path, corpus, merge):
    """Train with adapters, publish, and do what the card says with what the Hub then has, in a process of its own."""
    here("train", tiny(), "name=spoken", "model.lora={}")
    repo = f"{hub.user}/spoken"
    here("publish", "model", tmp_path / "runs" / "spoken", "--to", repo, "--license", "cc0-1.0", *merge)
    files = hub.repos[repo].files
    assert any(name.startswith("adapter_") for name in files) is not bool(merge)
    text = files["README.md"].decode()
    code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    assert f'stentor.load("{repo}")' in code
    (tmp_path / "user").mkdir()
    shutil.copy(corpus / "dev0.wav", tmp_path / "user" / "speech.wav")
    environment = {**os.environ, **hub.fresh, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "user", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.endswith("\n"), done.stderr
    transcript = done.stdout.strip()
    shell = re.search(r"```bash\nstentor (transcribe .*?) speech.wav\n```", text).group(1)
    assert transcript in here(*shell.split(), tmp_path / "user" / "speech.wav")
    config = tmp_path / "training_config.json"
    config.write_bytes(files["training_config.json"])
    here("config", "check", config)
    # The same command sends nothing again: the same model makes the same bytes.
    sent = len(hub.asked("^PUT"))
    here("publish", "model", tmp_path / "runs" / "spoken", "--to", repo, "--license", "cc0-1.0", *merge)
    assert len(hub.asked("^PUT")) == sent


@pytest.mark.slow
def test_the_usage_code_of_each_task_runs(tmp_path):
    """The Python of the cards of untrained models, in one process, in a folder with the files that it names."""
    test_space = pytest.importorskip("test_space")
    names = {}
    for task in ("words", "diarize", "speak"):
        export = test_space.write_export(task, tmp_path / f"tiny-{task}")
        config = json.loads((export / "training_config.json").read_text())
        names[task] = config["name"] = f"tiny-{task}"
        config.setdefault("model", {"type": "transformer"})
        card = write_card(export, config, {"eval": {}}).read_text()
        (tmp_path / f"{task}.py").write_text(re.search(r"```python\n(.*?)```", card, re.S).group(1))
    speech = synth.say("one two three four", voice="en-us", speed=150, pitch=50)
    for name in ("speech.wav", "meeting.wav", "voice.wav"):
        write(tmp_path / name, speech.audio, 16000)
    script = "import runpy, sys\nfor name in sys.argv[1:]:\n    runpy.run_path(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", script, *(f"{task}.py" for task in names)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(stentor.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.wav").stat().st_size > 1000
