"""A config of another system that is given to a command for run files: it names the converter."""

import pytest

from stentor.cli import main

UNIVERSAL = "the universal training pipeline"
FOREIGN = {
    "voxlm.yaml": ("VoxLM", "voxlm {}", "model: {name: voxlm-2b}\ntraining: {phase1: {epochs: 1}}\ndata: {train: x}\n"),
    "base.yaml": ("VoxLM", "voxlm {}", "_base_: other.yaml\nmodel: {llm_model: Qwen/Qwen2-0.5B}\n"),
    "omni.json": ("OmniVoice", "omnivoice {}", '{"output_dir": "exp/a", "audio_vocab_size": 1025, "steps": 10}'),
    "data.json": ("OmniVoice", "omnivoice TRAINING_CONFIG.json {}", '{"train": [{"manifest_path": ["a.lst"]}]}'),
    "full.yml": (
        "the universal training pipeline",
        "universal {}",
        "model: {model_type: encoder}\ntraining: {epochs: 1}\n",
    ),
    "data only.yml": ("the universal training pipeline", "universal '{}'", "global_config: {}\ndatasets: []\n"),
    "args.yaml": ("the Voxtral scripts", "voxtral {}", "dataset_jsonl: v.jsonl\nlearning_rate: 1e-4\nbatch_size: 2\n"),
    "nested.json": ("the Voxtral scripts", "voxtral {}", '{"training": {"num_train_epochs": 1, "lora_r": 8}}'),
    "run.sh": ("the Voxtral scripts", "voxtral {}", "set -e\npython scripts/train.py \\\n  --epochs 3 | tee 'log'\n"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_converter_is_named(tmp_path, monkeypatch, capsys, name):
    title, files, text = FOREIGN[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    for command in (["train"], ["config", "check"]):
        assert main([*command, name]) == 2
        err = capsys.readouterr().err
        assert err.startswith(
            f"stentor: {name} is a config of {title}, not a run file. Convert it: `stentor config convert "
        )
        assert f"convert {files.format(name)} --to runs.d`" in err


@pytest.mark.parametrize(
    "text",
    ["task: transcribe\nepochs: 4\nlearning_rate: 3\n", "model: {type: ctc}\nepochs: 4\nlr: 1\n", "a: [\n", "x\n"],
)
def test_mistakes_of_run_files_stay(tmp_path, capsys, text):
    (tmp_path / "run.yaml").write_text(text)
    assert main(["config", "check", str(tmp_path / "run.yaml")]) == 2
    err = capsys.readouterr().err
    assert "run.yaml:" in err and "config of" not in err
