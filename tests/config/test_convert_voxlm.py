"""VoxLM's configs become run files that keep every value."""

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
        lora_alpha: 48, lora_dropout: 0.07, projection_dropout: 0.2, downsample_factor: 2, alignment_num_layers: 3,
        alignment_num_heads: 4, alignment_dropout: 0.3, alignment_loss_weight: 1.0, monotonicity_loss_weight: 0.4,
        alignment_interp_frames: 4, alignment_heads: null, median_filter_width: 9, confidence_aggregation: mean,
        confidence_temperature: 1.5, timestamp_loss_weight: 1.0, confidence_loss_weight: 0.5}
training:
  phase1: {warmup_steps: 1234, gradient_accumulation: 6}
  phase2: {alignment_weight: 1.5, weight_decay: 0.02, warmup_steps: 77, gradient_accumulation: 3}
  max_audio_length: 25
  max_text_length: 400
  use_amp: false
  compile_model: true
  num_workers: 7
data: {timestamps_dir: ./my times, whisper_model: large-v3, max_wer: 0.15}
output: {checkpoint_dir: ./checkpoints, final_model_dir: ./final, use_wandb: true, wandb_project: voxlm-production}
device: {type: auto}
"""
UNUSED = """\
#   model.architecture_version: v2
#   model.audio_encoder_dim: 768
#   model.llm_dim: 1536
#   model.alignment_loss_weight: 1.0
#   model.alignment_interp_frames: 4
#   model.alignment_heads: null
#   model.median_filter_width: 9
#   model.confidence_aggregation: mean
#   model.confidence_temperature: 1.5
#   model.timestamp_loss_weight: 1.0
#   model.confidence_loss_weight: 0.5
#   training.max_text_length: 400
#   output.final_model_dir: "./final"
"""
FULL = f"_base_: base.yaml\n{GUIDE}"


def converted(tmp_path, text=GUIDE):
    path = tmp_path / "given.yaml"
    path.write_text(text)
    result = convert(path)
    (tmp_path / "ours.yaml").write_text(result.text)
    loaded = load(tmp_path / "ours.yaml")
    assert [c.task.type for c in loaded.stages] == ["transcribe", "words"]
    assert loaded.stages[0].model_dump(exclude={"stages"}) == loaded.config.model_dump(exclude={"stages"})
    return result, loaded.config


def second(tmp_path):
    """The stage of word times of what `converted` wrote."""
    return load(tmp_path / "ours.yaml").stages[1]


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
    assert (train.type, train.name, str(train.from_)) == ("corpus", "librispeech", "data")
    assert (train.split, dev.split) == ("train-clean-100", "dev-clean")
    assert train.options == dev.options == {"normalize_text": "lower"}, "VoxLM's texts are in lower case"


def test_word_times_are_the_second_stage(tmp_path):
    _, config = converted(tmp_path)
    words = second(tmp_path)
    assert (words.train.epochs, words.train.accumulate, words.optim.lr, words.data.max_items) == (5, 1, 5e-5, 16)
    assert words.schedule.warmup_steps is None and words.optim.betas == config.optim.betas
    assert (words.model.aligner.layers, words.model.aligner.heads, words.model.aligner.dropout) == (2, 8, 0.1)
    assert words.model.model_copy(update={"aligner": None}) == config.model and config.model.aligner is None
    assert [(name, term.type) for name, term in words.losses.items()] == [("text", "cross_entropy"), ("alignment",) * 2]
    assert (words.losses["alignment"].weight, words.losses["alignment"].monotonicity) == (1.0, 0.1)
    [train], dev = words.data.train, words.data.eval["dev-clean"]
    assert str(train.path) == "data/timestamps/train-clean-100.jsonl"
    assert str(dev.path) == "data/timestamps/dev-clean.jsonl"
    assert list(words.data.eval) == ["dev-clean"]
    converted(tmp_path, GUIDE.replace("lora_r: 16", "alignment_num_heads: 12"))
    assert (second(tmp_path).model.aligner.heads, second(tmp_path).model.aligner.width) == (12, 132)


def test_one_command_prepares_corpus_and_word_times(tmp_path):
    """The steps of `prepare` fetch what the first stage reads, and write what the second one reads."""
    odd = GUIDE.replace('"./data"', '"./my, data"') + "device: {type: cpu}\n"
    for text, model, most in (
        (GUIDE, "openai/whisper-small", 0.1),
        (FULL, "openai/whisper-large-v3", 0.15),
        (odd, "openai/whisper-small", 0.1),
    ):
        (tmp_path / "base.yaml").write_text(BASE)
        result, config = converted(tmp_path, text)
        words = second(tmp_path)
        transcribed = [*config.data.train, *config.data.eval.values()]
        manifests = [str(source.path) for source in (*words.data.train, *words.data.eval.values())]
        corpus, timed = config.prepare[:2], config.prepare[2:]
        assert [(s.type, s.from_, s.split, s.download) for s in corpus] == [
            ("corpus", source.from_, source.split, True) for source in transcribed
        ]
        assert {s.to for s in corpus} == {transcribed[0].from_ / "manifests"}
        assert [(s.type, s.data, str(s.to)) for s in timed] == [
            ("words", *pair) for pair in zip(transcribed, manifests, strict=True)
        ]
        assert {(s.engine, s.model, s.max_wer) for s in timed} == {("whisper", model, most)}
        assert {s.device for s in timed} == {config.train.device}
        assert "`stentor train` with this file does everything" in result.notes[-1]


def test_frozen_parts_are_in_bfloat16_but_on_a_cpu(tmp_path):
    assert converted(tmp_path)[1].model.dtype == second(tmp_path).model.dtype == "bfloat16"
    assert converted(tmp_path, f"{GUIDE}device: {{type: cuda}}\n")[1].model.dtype == "bfloat16"
    assert converted(tmp_path, f"{GUIDE}device: {{type: cpu}}\n")[1].model.dtype == "float32"


@pytest.mark.parametrize(
    ("encoder", "window"),
    [
        ("facebook/mms-1b-all", "natural"),
        ("ai4bharat/indicwhisper-large-v2", "30s"),
        ("microsoft/wavlm-large", "natural"),
        ("{here}/wav2vec2", "natural"),
        ("{here}/my-encoder", "30s"),
    ],
)
def test_only_whisper_has_a_window(tmp_path, encoder, window):
    for name, kind in (("wav2vec2", "wav2vec2"), ("my-encoder", "whisper")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    text = GUIDE.replace("openai/whisper-small", encoder.format(here=tmp_path))
    assert converted(tmp_path, text)[1].model.encoder.window == window


def test_every_value_arrives(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    result, config = converted(tmp_path, FULL)
    assert (config.model.lora.alpha, config.model.lora.dropout, config.model.projector.dropout) == (48, 0.07, 0.2)
    assert config.model.projector.rate == 25
    assert (config.schedule.warmup_steps, config.train.accumulate, config.train.compile) == (1234, 6, True)
    assert (config.data.max_seconds, config.data.workers, config.train.precision) == (25, 7, "fp32")
    assert config.output == "./checkpoints"
    assert config.callbacks[0].wandb.project == "voxlm-production"
    assert config.data.batch_tokens >= 8 * (25 * 25 + 400)
    words = second(tmp_path)
    assert (words.model.aligner.layers, words.model.aligner.heads, words.model.aligner.dropout) == (3, 4, 0.3)
    assert (words.losses["alignment"].weight, words.losses["alignment"].monotonicity) == (1.5, 0.4)
    assert (words.optim.weight_decay, words.schedule.warmup_steps, words.train.accumulate) == (0.02, 77, 3)
    assert str(words.data.train[0].path) == "my times/train-clean-100.jsonl"
    assert words.data.batch_tokens >= 16 * (25 * 25 + 400)
    assert words.callbacks == config.callbacks
    assert not {*UNUSED.splitlines()} - {*result.text.splitlines()}


@pytest.mark.parametrize(
    ("name", "encoder", "llm", "lora", "heads"),
    [
        ("voxlm-edge", "openai/whisper-tiny", "Qwen/Qwen2.5-0.5B", (8, 32), 4),
        ("voxlm-2b", "openai/whisper-small", "Qwen/Qwen2-1.5B", (16, 32), 8),
        ("voxlm-phi-4", "openai/whisper-large-v3", "microsoft/phi-4", (32, 64), 8),
    ],
)
def test_a_name_alone_is_the_variant_that_voxlm_means(tmp_path, name, encoder, llm, lora, heads):
    result, config = converted(tmp_path, f"model: {{name: {name}}}\n")
    model = config.model
    assert (model.encoder.source, model.llm.source, (model.lora.rank, model.lora.alpha)) == (encoder, llm, lora)
    assert second(tmp_path).model.aligner.heads == heads
    assert result.notes[0] == f"filled in by the name {name}: {encoder} and {llm}."


def test_an_unknown_name_needs_its_models(tmp_path):
    with pytest.raises(Mistakes, match=r"given.yaml:1: 'model.name' mine is none of .*: give model.llm_model$"):
        converted(tmp_path, "model: {name: mine, audio_encoder: openai/whisper-base}\n")
    text = "model: {name: mine, audio_encoder: openai/whisper-base, llm_model: Qwen/Qwen2-0.5B}\n"
    assert converted(tmp_path, text)[1].model.lora.rank == 16


def test_the_instruction_is_trained_with(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(GUIDE)
    words = "Transcribe this audio clearly."
    assert main(["config", "convert", "voxlm", str(tmp_path / "a.yaml"), "--instruction", words]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    assert [stage.model.prompt.instruction for stage in load(tmp_path / "run.yaml").stages] == [words, words]


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


SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
SIZES |= {"intermediate_size": 64, "ffn_dim": 64, "word_embed_proj_dim": 32, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("llm", "kind", "layers"),
    [
        ("microsoft/phi-4", "phi3", 2),
        ("microsoft/Phi-3.5-mini-instruct", "phi3", 2),
        ("microsoft/phi-2", "phi", 4),
        ("facebook/opt-1.3b", "opt", 4),
        ("EleutherAI/pythia-1b", "gpt_neox", 2),
        ("bigscience/bloom-560m", "bloom", 2),
        ("tiiuae/falcon-7b", "falcon", 2),
        ("tiiuae/Falcon3-7B-Base", "llama", 4),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama", 4),
        ("google/gemma-2-9b-it", "gemma2", 4),
        ("mistralai/Mistral-7B-v0.3", "mistral", 4),
    ],
)
def test_targets_are_layers_of_the_language_model(tmp_path, llm, kind, layers):
    """Each glob matches one layer of a model of that kind, with and without a list of VoxLM's."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from stentor.models.pretrained.lora import lora_targets

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES))
    tree = torch.nn.ModuleDict({"llm": model})
    local = tmp_path / "local"
    local.mkdir()
    (local / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    for name, given in ((llm, ""), (llm, "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]"), (str(local), "")):
        text = GUIDE.replace("Qwen/Qwen2-1.5B", name).replace("lora_r: 16", given or "lora_r: 16")
        result, config = converted(tmp_path, text)
        assert len(lora_targets(tree, config.model.lora.targets)) == len(config.model.lora.targets) == layers
        assert ("LoRA is on" in result.notes[0]) == (kind in ("phi3", "phi", "opt", "gpt_neox", "bloom", "falcon"))


def test_what_has_no_counterpart_is_named(tmp_path):
    with pytest.raises(Mistakes) as caught:
        converted(tmp_path, GUIDE.replace("lora_r", "lora_rr") + "  cache: true\n")
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "given.yaml:6: unknown key 'model.lora_rr' (did you mean 'model.lora_r'?): it has no counterpart",
        "given.yaml:22: unknown key 'data.cache': it has no counterpart",
    ]


def test_the_weight_of_the_model_counts_where_phase_2_has_none(tmp_path):
    text = GUIDE.replace("lora_r: 16", "lora_r: 16\n  alignment_loss_weight: 0.7")
    result, _ = converted(tmp_path, text)
    assert second(tmp_path).losses["alignment"].weight == 0.7
    assert "model.alignment_loss_weight" not in result.text


def test_all_mistakes_are_reported_at_once(tmp_path):
    text = BASE.replace("downsample_factor: 2", "downsample_factor: 0, sample_rate: 8000, beams: 5")
    text = text.replace("max_audio_length: 25", "max_audio_length: long").replace("use_amp: false", "use_amp: 1")
    with pytest.raises(Mistakes) as caught:
        converted(tmp_path, text.replace("max_wer: 0.15", "max_wer: -1"))
    for key in ("downsample_factor", "sample_rate", "model.beams", "max_audio_length", "use_amp", "max_wer"):
        assert key in str(caught.value), key


def test_names_of_whisper_models(tmp_path):
    for name, model in (("turbo", "openai/whisper-large-v3-turbo"), ("./my/whisper", "./my/whisper")):
        _, config = converted(tmp_path, f"{GUIDE}  whisper_model: {name}\n")
        assert [step.model for step in config.prepare[2:]] == [model, model]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs: 10", "epochs: ten", r"10: 'train.epochs' must be a number above 0 or null, not 'ten'"),
        ("batch_size: 8", "batch_size: many", r"11: 'training.phase1.batch_size' must be a number above 0"),
        ("epochs: 5", "epochs: few", r"14: 'train.epochs' must be a number above 0 or null, not 'few'"),
        ("lora_r: 16", "alignment_num_heads: 0", r"6: 'model.alignment_num_heads' must be a number above 0"),
        ("5.0e-5\n", "5.0e-5\n    patience: 3\n", r"17: unknown key 'training.phase2.patience'"),
    ],
)
def test_wrong_values_are_named_at_their_line(tmp_path, old, new, message):
    with pytest.raises(Mistakes, match=f"given.yaml:{message}"):
        converted(tmp_path, GUIDE.replace(old, new))


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(GUIDE)
    (tmp_path / "b.yaml").write_text(GUIDE.replace("voxlm-2b", "other"))
    assert main(["config", "convert", "voxlm", "a.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out == convert(tmp_path / "a.yaml").text
    assert printed.err.startswith("a.yaml: `stentor train` with this file does everything")
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
    loaded = load(RECIPES / f"{name}.yaml")
    model = loaded.config.model
    assert loaded.stages[1].model.lora == model.lora and loaded.stages[1].model.aligner.heads == 8
    assert (model.encoder.source, model.llm.source, model.lora.rank, model.lora.alpha) == (encoder, llm, rank, 2 * rank)
    assert model.freeze == ["encoder.*"] and model.encoder.window == "30s"


def test_the_recipe_is_the_conversion(tmp_path):
    converted(tmp_path)
    recipe, ours = load(RECIPES / "voxlm_2b.yaml"), load(tmp_path / "ours.yaml")
    for mine, expected in ((recipe.config, ours.config), (recipe.stages[1], ours.stages[1])):
        for section in ("model", "optim", "losses", "train", "prepare"):
            assert getattr(mine, section) == getattr(expected, section)
        for key in ("train", "eval", "max_items"):
            assert getattr(mine.data, key) == getattr(expected.data, key)
