"""Command lines of the Voxtral fine-tuning scripts become run files; nothing is lost on the way."""

import pytest

from stentor.cli import main
from stentor.config.convert.voxtral import convert
from stentor.config.document import Mistakes
from stentor.config.load import load
from stentor.errors import ConfigError

SCRIPT = """\
#!/bin/bash
export HF_TOKEN=hf_abcdefgh12345678
RUN="outputs/our voices"
mkdir -p "$RUN"
# two epochs are enough
CUDA_VISIBLE_DEVICES=0 python scripts/train_lora.py \\
  --dataset-jsonl data/voices.jsonl --train-count 400 --eval-count 40 \\
  --train_batch_size 4 --eval-batch-size 8 --grad-accum=2 \\
  --learning-rate 1e-4 --epochs 2.5 --logging-steps 5 --save-steps 25 \\
  --lora-r 16 --lora-alpha 64 --lora-dropout 0.1 --freeze-audio-tower \\
  --trackio-space me/curves --output-dir "$RUN" 2>&1 | tee "$RUN/log.txt"
"""
GOLDEN = """\
# Converted from a command line of train_lora.py by `stentor config convert voxtral`.
name: our voices
output: outputs
task: transcribe
model:
  type: audio_llm
  from: mistralai/Voxtral-Mini-3B-2507
  lora:
    rank: 16
    alpha: 64
    dropout: 0.1
    targets:
      - "language_model.*.q_proj"
      - "language_model.*.k_proj"
      - "language_model.*.v_proj"
      - "language_model.*.o_proj"
  dtype: bfloat16
  freeze: ["audio_tower.*"]
data:
  train:
    - type: jsonl
      path: data/voices.jsonl
      limit: 400
  eval:
    dev:
      type: jsonl
      path: data/voices.jsonl
      skip: 400
      limit: 40
  max_items: 4
  batch_tokens: 4088
  max_seconds: 60.0
  workers: 1
optim:
  type: adamw
  lr: 0.0001
  weight_decay: 0.0
  betas: [0.9, 0.999]
schedule:
  type: linear
  warmup_steps: 0
train:
  accumulate: 2
  epochs: 2.5
  log_every: 5
  eval_every: 25
  save_every: 25
callbacks:
  - type: tracking
    trackio:
      project: voxtral-lora-finetuning
      space_id: me/curves
"""


def converted(tmp_path, script):
    """What `convert` answers, and the run file as it loads."""
    result = convert(script)
    path = tmp_path / "ours.yaml"
    path.write_text(result.text)
    return result, load(path).config


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def test_a_script_becomes_this_run_file(tmp_path, script):
    result, config = converted(tmp_path, script)
    run_file = "".join(line for line in result.text.splitlines(True)[1:] if not line.startswith("#"))
    assert result.text.splitlines(True)[0] + run_file == GOLDEN
    assert result.name == "our voices" and config.model.lora.rank == 16


def test_what_the_scripts_do_wrong_is_said(script):
    result = convert(script)
    remarks = " ".join(line.lstrip("# ") for line in result.text.splitlines() if line.startswith("#"))
    for fact in ("language is English", "after 256 tokens", "end token", "leaves the adapters in the tower trained"):
        assert fact in remarks
    assert "--eval-batch-size: 8" in remarks
    assert any("end token" in note for note in result.notes)
    assert any("`audio_path`s in data/voices.jsonl start from its folder" in note for note in result.notes)


def test_the_scripts_defaults_hold(tmp_path):
    result, config = converted(tmp_path, "python scripts/train.py")
    assert config.model.source == "mistralai/Voxtral-Mini-3B-2507"
    assert config.model.lora is None and config.model.freeze == []
    assert (config.optim.lr, config.train.epochs, config.train.accumulate) == (5e-5, 3, 4)
    assert (config.train.save_every, config.train.eval_every, config.train.log_every) == (50, 50, 10)
    assert (config.name, config.output, config.data.max_items) == ("voxtral-finetuned", ".", 2)
    [train], dev = config.data.train, config.data.eval["dev"]
    for source in (train, dev):
        assert (source.type, source.name, source.config, source.split) == (
            "hub",
            "hf-audio/esb-datasets-test-only-sorted",
            "voxpopuli",
            "test",
        )
    assert (train.skip, train.limit, dev.skip, dev.limit) == (0, 100, 100, 50)
    assert any("test split" in note for note in result.notes)


def test_lora_is_a_script_or_an_option(tmp_path):
    for command in ("python train_lora.py", "python train.py --use-lora", "python train.py --use_lora True"):
        model = converted(tmp_path, command)[1].model
        assert (model.lora.rank, model.lora.alpha, model.lora.dropout, model.freeze) == (8, 32, 0.0, [])
        assert "audio_tower.*.q_proj" in model.lora.targets and "language_model.*.o_proj" in model.lora.targets
    for command in ("python train.py --lora-r 4", "python train.py --use-lora=false --lora-r 4"):
        result, config = converted(tmp_path, command)
        assert config.model.lora is None and "#   --lora-r: 4\n" in result.text


def test_spellings(tmp_path):
    command = (
        "accelerate launch --num_processes 2 scripts\\\\train.py --per_device_train_batch_size 3 --num-train-epochs 7 "
        "--gradient_accumulation_steps 5 --lr 3e-5 --MODEL_CHECKPOINT ./my/voxtral --dataset-name a/b "
        "--dataset_config de --eval-count 0 --freeze_audio_tower --max-steps 70 --gradient-checkpointing"
    )
    result, config = converted(tmp_path, command)
    assert (config.data.max_items, config.train.steps, config.train.epochs) == (3, 70, None)
    assert (config.train.accumulate, config.optim.lr, config.model.gradient_checkpointing) == (5, 3e-5, True)
    assert (config.model.source, config.model.freeze) == ("./my/voxtral", ["audio_tower.*"])
    assert (config.data.train[0].name, config.data.train[0].config, config.data.eval) == ("a/b", "de", {})
    assert not any("not understood" in note for note in result.notes)


def test_what_is_not_understood_is_listed_without_secrets(tmp_path):
    script = SCRIPT.replace("--lora-r 16", "--lora-target q v --hf-token $HF_TOKEN --sav-steps=3 --login $HF_TOKEN")
    path = tmp_path / "run.sh"
    path.write_text(script)
    result, config = converted(tmp_path, path)
    assert config.model.lora.rank == 8
    listed = result.text.partition("# Not understood, so not in this file:\n")[2].splitlines()
    assert listed == [
        "#   --lora-target q v",
        "#   --hf-token (not shown)",
        "#   --sav-steps 3",
        "#   --login (not shown)",
    ]
    assert "not understood: --sav-steps (did you mean 'save-steps'?)" in result.notes
    assert "hf_abcdefgh12345678" not in result.text + " ".join(result.notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2.5", "ten", r"run\.sh:9: 'train\.epochs' must be a number above 0 or null, not 'ten'"),
        ("_size 4", "_size many", r"run\.sh:8: '--batch-size' must be a number above 0"),
        ("--epochs 2.5", "--epochs", r"run\.sh:9: --epochs has no value"),
        ("--epochs 2.5", "--epochs $N", r"run\.sh:9: --epochs takes its value from \$N, which is not set there"),
        ('voices"', "voices", r"run\.sh:3: a quotation mark has no counterpart"),
    ],
)
def test_wrong_values_are_named_at_their_line(script, old, new, message):
    script.write_text(SCRIPT.replace(old, new, 1))
    with pytest.raises(Mistakes, match=message):
        convert(script)


def test_variables_with_defaults(tmp_path, script):
    script.write_text(SCRIPT.replace("--epochs 2.5", "--epochs ${EPOCHS:-6}"))
    assert converted(tmp_path, script)[1].train.epochs == 6


def test_there_must_be_one_command(script):
    script.write_text("python interface.py\n")
    with pytest.raises(ConfigError, match=r"no command with train\.py or train_lora\.py"):
        convert(script)
    script.write_text("python train.py\npython train_lora.py\n")
    with pytest.raises(Mistakes, match=r"run\.sh:2: another training command"):
        convert(script)


def test_command(tmp_path, script, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "convert", "voxtral", "run.sh"]) == 0
    printed = capsys.readouterr()
    assert printed.out == convert(script).text
    assert printed.err.startswith("run.sh: transcripts are learnt with their end token")
    command = "python train.py --use-lora --output-dir out/mine"
    assert main(["config", "convert", "voxtral", "run.sh", command, "--to", "made"]) == 0
    assert "the command line -> made/mine.yaml" in capsys.readouterr().out
    for name in ("our voices", "mine"):
        assert main(["config", "check", f"made/{name}.yaml"]) == 0
    assert main(["config", "convert", "voxtral", "missing.sh"]) == 2
    assert "missing.sh does not exist" in capsys.readouterr().err
