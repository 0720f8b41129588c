"""VoxLM's configs become run files that keep every value."""

import re
from pathlib import Path

import pytest

from stentor.cli import main
from stentor.config.convert.voxlm import convert
from stentor.config.document import Mistakes
from stentor.config.load import load

GUIDE = """\
model:
  name: "voxlm-2b"                    # Model name (for checkpoints)
  audio_encoder: "openai/whisper-small"  # Whisper variant
  llm_model: "Qwen/Qwen2-1.5B"        # LLM backbone
  use_lora: true                       # Enable LoRA (recommended)
  lora_r: 16                           # LoRA rank

training:
  phase1:
    epochs: 10                         # Transcription training
    batch_size: 8
    learning_rate: 1.0e-4
  phase2:
    epochs: 5                          # Timestamp alignment
    batch_size: 16
    learning_rate: 5.0e-5

data:
  data_dir: "./data"
  train_split: "train-clean-100"
  val_split: "dev-clean"
"""
BASE = """\
model: {architecture_version: v2, audio_encoder_dim: 768, freeze_audio_encoder: true, llm_dim: 1536, freeze_llm: true,
        lora_alpha: 48, lora_dropout: 0.07, projection_dropout: 0.2, downsample_factor: 2, alignment_num_layers: 3}
training:
  phase1: {warmup_steps: 1234, gradient_accumulation: 6}
  phase2: {alignment_weight: 1.5}
  max_audio_length: 25
  max_text_length: 400
  use_amp: false
  compile_model: true
  num_workers: 7
data: {timestamps_dir: ./data/timestamps, whisper_model: small, max_wer: 0.15}
output: {checkpoint_dir: ./checkpoints, final_model_dir: ./final, use_wandb: true, wandb_project: voxlm-production}
device: {type: auto}
"""


def converted(tmp_path, text=GUIDE):
    path = tmp_path / "given.yaml"
    path.write_text(text)
    result = convert(path)
    (tmp_path / "ours.yaml").write_text(result.text)
    return result, load(tmp_path / "ours.yaml").config


def test_the_guide_s_config(tmp_path):
    result, config = converted(tmp_path)
    assert config.name == result.name == "voxlm-2b"
    assert (config.model.encoder.source, config.model.encoder.window) == ("openai/whisper-small", "30s")
    assert config.model.llm.source == "Qwen/Qwen2-1.5B"
    assert (config.model.lora.rank, config.model.lora.alpha, config.model.lora.dropout) == (16, 32, 0.05)
    assert config.model.freeze == ["encoder.*"]
    assert (config.model.projector.type, config.model.projector.rate) == ("conv", 12.5)
    assert (config.train.epochs, config.optim.lr, config.data.max_items) == (10, 1e-4, 8)
    [train], dev = config.data.train, config.data.eval["dev-clean"]
    assert (train.type, train.name, str(train.from_), train.split) == (
        "corpus",
        "librispeech",
        "data",
        "train-clean-100",
    )
    assert dev.split == "dev-clean"
    assert "#   training.phase2.learning_rate: 5.0e-05\n" in result.text
    assert len(result.notes) == 1 and "phase 2" in result.notes[0]


def test_every_value_arrives(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    result, config = converted(tmp_path, f"_base_: base.yaml\n{GUIDE}")
    assert (config.model.lora.alpha, config.model.lora.dropout, config.model.projector.dropout) == (48, 0.07, 0.2)
    assert config.model.projector.rate == 25
    assert (config.schedule.warmup_steps, config.train.accumulate, config.train.compile) == (1234, 6, True)
    assert (config.data.max_seconds, config.data.workers, config.train.precision) == (25, 7, "fp32")
    assert config.output == "./checkpoints"
    assert config.callbacks[0].wandb.project == "voxlm-production"
    assert config.data.batch_tokens >= 8 * (25 * 25 + 400)
    comments = "".join(line for line in result.text.splitlines(True) if line.startswith("#"))
    kept = {
        "model.architecture_version": "v2", "model.audio_encoder_dim": "768", "model.llm_dim": "1536",
        "model.alignment_num_layers": "3", "training.phase2.alignment_weight": "1.5",
        "training.max_text_length": "400", "data.whisper_model": "small", "data.max_wer": "0.15",
        "data.timestamps_dir": '"./data/timestamps"', "output.final_model_dir": '"./final"',
    }  # fmt: skip
    for key, value in kept.items():
        assert f"  {key}: {value}\n" in comments


def test_without_lora_and_freezing(tmp_path):
    text = GUIDE.replace("use_lora: true", "use_lora: false").replace("lora_r: 16", "freeze_llm: true\n  lora_r: 16")
    result, config = converted(tmp_path, text)
    assert config.model.lora is None and config.model.freeze == ["encoder.*", "llm.*"]
    assert "model.lora.rank: 16" in result.text
    text = text.replace("freeze_llm: true", "freeze_llm: false\n  freeze_audio_encoder: false")
    assert converted(tmp_path, text)[1].model.freeze == []


def test_targets_become_paths(tmp_path):
    _, config = converted(tmp_path, GUIDE.replace("lora_r: 16", "lora_target_modules: [q_proj, v_proj]"))
    assert config.model.lora.targets == ["llm.*.q_proj", "llm.*.v_proj"]


def test_what_has_no_counterpart_is_named(tmp_path):
    with pytest.raises(Mistakes) as caught:
        converted(tmp_path, GUIDE.replace("lora_r", "lora_rr") + "  cache: true\n")
    said = re.sub(r"\S*given\.yaml", "given.yaml", str(caught.value)).splitlines()
    assert said == [
        "given.yaml:6: unknown key 'model.lora_rr' (did you mean 'model.lora_r'?): it has no counterpart",
        "given.yaml:22: unknown key 'data.cache': it has no counterpart",
    ]


def test_wrong_values_are_named_at_their_line(tmp_path):
    with pytest.raises(Mistakes, match=r"given.yaml:10: 'train.epochs' must be a number above 0 or null, not 'ten'"):
        converted(tmp_path, GUIDE.replace("epochs: 10", "epochs: ten"))
    with pytest.raises(Mistakes, match=r"given.yaml:11: 'training.phase1.batch_size' must be a number above 0"):
        converted(tmp_path, GUIDE.replace("batch_size: 8", "batch_size: many"))


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(GUIDE)
    (tmp_path / "b.yaml").write_text(GUIDE.replace("voxlm-2b", "other"))
    assert main(["config", "convert", "voxlm", "a.yaml"]) == 0
    said = capsys.readouterr()
    assert said.out == convert(tmp_path / "a.yaml").text
    assert said.err.startswith("a.yaml: phase 2 (word times)")
    assert main(["config", "convert", "voxlm", "a.yaml", "b.yaml"]) == 2
    assert main(["config", "convert", "voxlm", "a.yaml", "b.yaml", "--to", "out"]) == 0
    assert main(["config", "check", "out/other.yaml"]) == 0
    assert main(["config", "convert", "voxlm", "a.yaml", "--to", "out"]) == 2  # never overwrites


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("name", "encoder", "llm", "rank"),
    [
        ("voxlm_05b", "openai/whisper-tiny", "Qwen/Qwen2-0.5B", 16),
        ("voxlm_2b", "openai/whisper-small", "Qwen/Qwen2-1.5B", 16),
        ("voxlm_9b_global", "openai/whisper-large-v3", "Qwen/Qwen2.5-7B", 32),
    ],
)
def test_recipes(name, encoder, llm, rank):
    model = load(RECIPES / f"{name}.yaml").config.model
    assert (model.encoder.source, model.llm.source, model.lora.rank, model.lora.alpha) == (encoder, llm, rank, 2 * rank)
    assert model.freeze == ["encoder.*"] and model.encoder.window == "30s"


def test_the_recipe_is_the_conversion(tmp_path):
    _, ours = converted(tmp_path)
    recipe = load(RECIPES / "voxlm_2b.yaml").config
    assert recipe.model.model_dump(exclude={"dtype"}) == ours.model.model_dump(exclude={"dtype"})
    assert (recipe.optim, recipe.data.train, recipe.data.eval) == (ours.optim, ours.data.train, ours.data.eval)
