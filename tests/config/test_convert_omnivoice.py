"""`stentor config convert omnivoice`: every field keeps its value, or is named; nothing is dropped in silence."""

import json
from pathlib import Path

import pytest

from stentor.cli import main
from stentor.config.convert import omnivoice
from stentor.config.document import Mistakes
from stentor.config.load import load
from upstream import PRESETS

EMILIA = PRESETS["omnivoice"] | {
    "llm_name_or_path": "Qwen/Qwen3-0.6B",
    **dict.fromkeys(("language_ratio", "use_pinyin_ratio", "instruct_ratio", "only_instruct_ratio"), 0.0),
    "steps": 300000,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2000,
    "num_workers": 4,
    "use_deepspeed": False,
    "deepspeed_config": None,
    "attn_implementation": "flex_attention",
}
OTHERS = """
output_dir data_config max_sample_tokens min_sample_tokens max_batch_size use_lora lora_r lora_alpha lora_dropout
lora_bias lora_target_modules lora_modules_to_save
"""
"""The other fields of OmniVoice's TrainingConfig, with those of LoRA."""
FINETUNE = EMILIA | {
    "init_from_checkpoint": "k2-fsa/OmniVoice",
    "learning_rate": 1e-5,
    "steps": 5000,
    "warmup_ratio": 0.01,
    "language_ratio": 0.8,
    "num_workers": 2,
    "logging_steps": 50,
    "eval_steps": 500,
    "save_steps": 500,
}
SDPA = FINETUNE | {"max_sample_tokens": 1500, "min_sample_tokens": 40, "max_batch_size": 32}
SDPA |= {"attn_implementation": "sdpa"}
DATA = {
    "train": [
        {"language_id": "en", "manifest_path": ["tokens/en/data.lst"], "repeat": 1},
        {"language_id": "zh", "manifest_path": ["tokens/zh/a.lst", "tokens/zh/b.lst"], "repeat": 1},
    ],
    "dev": [{"language_id": "en", "manifest_path": ["tokens/dev/data.lst"], "repeat": 1}],
}


@pytest.fixture
def convert(tmp_path):
    """(run file, config, notes) of a training config and a data config."""

    def run(train: dict, data: dict | None = DATA, **options):
        (tmp_path / "train.json").write_text(json.dumps(train, indent=4))
        data_path = None
        if data is not None:
            data_path = tmp_path / "data.json"
            data_path.write_text(json.dumps(data, indent=4))
        done = omnivoice.convert(tmp_path / "train.json", data_path, **options)
        (tmp_path / "run.yaml").write_text(done.text)
        return done.text, load(tmp_path / "run.yaml").config, done.notes

    return run


def test_every_field_is_known(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    assert omnivoice.convert(tmp_path / "empty.json").known == {*EMILIA, *OTHERS.split()}


def test_emilia(convert):
    text, config, notes = convert(EMILIA, output="exp/omnivoice_emilia")
    assert (config.output, config.name, notes) == ("exp", "omnivoice_emilia", ())
    task, model = config.task, config.model
    assert (task.drop_cond_ratio, task.prompt_ratio_range, task.mask_ratio_range) == (0.1, (0.0, 0.3), (0.0, 1.0))
    assert (task.language_ratio, task.use_pinyin_ratio, task.instruct_ratio, task.only_instruct_ratio) == (0, 0, 0, 0)
    assert (task.min_tokens, task.max_tokens, config.data.max_items) == (None, None, None)
    assert (model.source, model.llm.source, model.entries, model.codebooks) == (None, "Qwen/Qwen3-0.6B", 1024, 8)
    assert (model.attention, model.codec.type, model.lora) == ("flex", "higgs_audio_v2", None)
    assert config.losses["codes"].weights == [8, 8, 6, 6, 4, 4, 2, 2]
    assert (config.optim.lr, config.optim.weight_decay, config.optim.betas) == (1e-4, 0.01, (0.9, 0.999))
    train, schedule = config.train, config.schedule
    assert (train.steps, train.clip, train.seed, train.accumulate, train.precision) == (300000, 1.0, 42, 1, "bf16")
    assert (train.log_every, train.eval_every, train.save_every, train.keep) == (100, 1000, 10000, None)
    assert (schedule.type, schedule.warmup_ratio, schedule.warmup_steps) == ("cosine", 0.03, None)
    assert (config.data.batch_tokens, config.data.workers, config.data.max_seconds) == (8192, 4, 328)
    assert not train.shard
    first, second = config.data.train
    assert (first.type, str(first.path), first.repeat) == ("shards", "tokens/en/data.lst", 1)
    assert list(map(str, second.path)) == ["tokens/zh/a.lst", "tokens/zh/b.lst"]
    assert str(config.data.eval["dev"].path) == "tokens/dev/data.lst"
    for line in ("warmup_steps: 2000", "allow_tf32: true", "language_id: zh"):
        assert line in text


def test_what_is_not_given_is_as_there(convert):
    """OmniVoice's defaults, not ours."""
    _, config, _ = convert({})
    assert (config.name, config.optim.lr, config.train.steps, config.data.workers) == ("train", 1e-4, 300000, 8)
    assert (config.task.language_ratio, config.task.only_instruct_ratio, config.train.seed) == (0.8, 0.5, 42)
    assert (config.model.attention, config.schedule.warmup_ratio, config.train.eval_every) == ("flex", 0.03, 1000)


def test_fine_tuning(convert):
    text, config, _ = convert(FINETUNE)
    assert (config.model.source, config.model.llm, config.model.codec) == ("k2-fsa/OmniVoice", None, None)
    assert (config.optim.lr, config.train.steps, config.schedule.warmup_ratio) == (1e-5, 5000, 0.01)
    assert "llm_name_or_path: Qwen/Qwen3-0.6B" in text and "num_audio_codebook: 8" in text


def test_a_checkpoint_of_its_trainer_has_no_codec(convert, tmp_path):
    _, config, _ = convert(FINETUNE | {"init_from_checkpoint": "exp/omnivoice/checkpoint-100000"})
    assert config.model.codec.type == "higgs_audio_v2"
    (tmp_path / "export" / "audio_tokenizer").mkdir(parents=True)
    _, config, _ = convert(FINETUNE | {"init_from_checkpoint": str(tmp_path / "export")})
    assert config.model.codec is None


def test_padded_batches(convert):
    text, config, _ = convert(SDPA)
    assert (config.model.attention, config.task.max_tokens, config.task.min_tokens) == ("sdpa", 1500, 40)
    assert config.data.max_items == 32
    _, config, _ = convert({"attn_implementation": "sdpa"})
    assert (config.task.max_tokens, config.task.min_tokens, config.data.max_items) == (2000, 50, 64)
    text, config, _ = convert(SDPA | {"attn_implementation": "flex_attention"})
    assert config.task.max_tokens is None and "max_sample_tokens: 1500" in text


def test_lora(convert):
    lora = {"use_lora": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "lora_bias": "none"}
    lora |= {"lora_target_modules": ["q_proj", "v_proj"], "lora_modules_to_save": ["audio_embeddings", "audio_heads"]}
    text, config, _ = convert(FINETUNE | lora)
    peft = config.model.lora
    assert (peft.rank, peft.alpha, peft.dropout, peft.targets) == (8, 16, 0.1, ["llm.*.q_proj", "llm.*.v_proj"])
    assert "lora_bias: none" in text
    _, config, _ = convert(FINETUNE | {"use_lora": True})
    assert (config.model.lora.rank, len(config.model.lora.targets)) == (16, 7)
    text, config, _ = convert(FINETUNE | lora | {"use_lora": False})
    assert config.model.lora is None and "lora_r: 8" in text


def test_deepspeed_warm_up_and_the_rest(convert):
    keys = EMILIA | {"use_deepspeed": True, "mixed_precision": "no", "keep_last_n_checkpoints": 5}
    keys |= {"warmup_type": "steps", "lr_scheduler_type": "constant"}
    text, config, notes = convert(keys)
    assert config.train.shard and "becomes FSDP2 (train.shard)" in notes[0]
    assert (config.schedule.type, config.schedule.warmup_steps, config.train.keep) == ("constant", 2000, 5)
    assert config.train.precision == "fp32"
    text, config, _ = convert(keys | {"deepspeed_config": "ds_zero2.json"})
    assert config.train.shard and "deepspeed_config: ds_zero2.json" in text


def test_a_checkpoint_to_resume_from_is_one_of_stentor_and_named_in_a_command(convert):
    text, _, [note] = convert(EMILIA | {"resume_from_checkpoint": "exp/a/checkpoints/step-000400"}, output="exp/a")
    command = "stentor train a.yaml --resume-from exp/a/checkpoints/step-000400"
    assert command in note and command in text
    with pytest.raises(
        Mistakes, match=r"train.json:29: 'resume_from_checkpoint' must be a checkpoint of a Stentor run"
    ):
        convert(EMILIA | {"resume_from_checkpoint": "exp/omnivoice/checkpoint-100000"})


def test_tensorboard_is_written_as_omnivoice_always_does(convert):
    _, config, _ = convert({})
    [tracking] = config.callbacks
    assert (tracking.type, tracking.tensorboard) == ("tracking", True)


def test_all_mistakes_are_reported_at_once(convert):
    """Unknown keys, wrong types, values outside their range, wrong words, and those of the data config."""
    keys = {"steps": -5, "learning_rate": "1e-5", "learning_rat": 3, "attn_implementation": "flash", "seed": "x"}
    keys |= {"audio_vocab_size": "many", "use_lora": 1, "resume_from_checkpoint": "exp/checkpoint-5"}
    with pytest.raises(Mistakes) as error:
        convert(keys, {"train": [{"manifest_path": 3}], "test": []})
    text = str(error.value)
    for part in (*(f"'{key}'" for key in keys if key not in ("steps", "learning_rate", "seed")), "an entry of 'train'"):
        assert part in text, part
    for part in ("train.steps", "optim.lr", "train.seed", "unknown key 'test'"):
        assert part in text, part
    assert len(error.value.mistakes) == len(keys) + 2


def test_schedules_and_checkpoints_are_as_omnivoice_s_trainer_takes_them(convert):
    """Its trainer knows `constant`, takes all others for cosine, and keeps all checkpoints for 0 and less."""
    for name, ours in (("constant", "constant"), ("cosine", "cosine"), ("linear", "cosine"), ("polynomial", "cosine")):
        text, config, notes = convert(EMILIA | {"lr_scheduler_type": name, "keep_last_n_checkpoints": 0})
        assert (config.schedule.type, config.train.keep) == (ours, None)
        assert (f"#   lr_scheduler_type: {name}" in text) == bool(notes) == (name != ours)


def test_repeats(convert):
    data = {"train": [DATA["train"][0], DATA["train"][1] | {"repeat": 3}]}
    text, config, notes = convert(EMILIA, data)
    assert [s.repeat for s in config.data.train] == [1, 3] and not notes
    assert config.data.eval == {} and config.train.eval_every is None and "eval_steps: 1000" in text


def test_the_data_config_may_be_named_in_the_file(convert, tmp_path):
    (tmp_path / "named.json").write_text(json.dumps(DATA))
    _, config, notes = convert(EMILIA | {"data_config": str(tmp_path / "named.json"), "output_dir": "exp/a"}, None)
    assert len(config.data.train) == 2 and (config.output, config.name) == ("exp", "a") and not notes
    _, config, [note] = convert(EMILIA, None)
    assert "that you have to make" in note and str(config.data.train[0].path) == "tokens/data.lst"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rte": 1e-4}, "unknown key 'learning_rte' (did you mean 'learning_rate'?): OmniVoice would drop it"),
        ({"mask_ratio": 0.5}, "unknown key 'mask_ratio'"),
        ({"audio_mask_id": 0}, "'audio_mask_id' must be the last id of audio_vocab_size, 1024"),
        ({"num_audio_codebook": 4}, "'audio_codebook_weights' must be a weight for each of the 4 codebooks"),
        ({"audio_codebook_weights": [1, 1]}, "a weight for each of the 8 codebooks (num_audio_codebook)"),
        ({"attn_implementation": "flash"}, "'attn_implementation' must be flex_attention or sdpa or eager"),
        ({"warmup_type": "step"}, "'warmup_type' must be ratio or steps"),
        ({"mixed_precision": "fp8"}, "'mixed_precision' must be"),
        ({"keep_last_n_checkpoints": "all"}, "'keep_last_n_checkpoints' must be a whole number"),
        ({"use_lora": True, "lora_bias": "all"}, "'lora_bias' must be none"),
        ({"use_lora": True, "lora_modules_to_save": ["norm"]}, "'lora_modules_to_save' must be audio_embeddings"),
        ({"language_ratio": 2}, "task.language_ratio"),
        ({"steps": "many"}, "train.steps"),
    ],
)
def test_what_has_no_counterpart_is_told_with_its_line(convert, change, message):
    with pytest.raises(Mistakes) as error:
        convert(EMILIA | change)
    assert message in str(error.value) and "train.json:" in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "'train' must list at least one entry"),
        ({"train": [{"language_id": "en"}]}, "needs a manifest_path"),
        ({"train": DATA["train"], "test": []}, "unknown key 'test'"),
        (
            {"train": [{"manifest_path": ["a.lst"], "repeats": 3}]},
            "unknown key 'train.repeats' (did you mean 'repeat'?)",
        ),
        ({"train": {"manifest_path": "a.lst"}}, "'train' must be a list"),
    ],
)
def test_mistakes_of_the_data_config(convert, data, message):
    with pytest.raises(Mistakes) as error:
        convert(EMILIA, data)
    assert message in str(error.value)


def test_command(tmp_path, capsys):
    (tmp_path / "train_config_finetune.json").write_text(json.dumps(FINETUNE))
    (tmp_path / "data.json").write_text(json.dumps(DATA))
    files = [str(tmp_path / "train_config_finetune.json"), str(tmp_path / "data.json")]
    assert main(["config", "convert", "omnivoice", *files]) == 0
    assert capsys.readouterr().out.startswith("# Converted from OmniVoice's train_config_finetune.json")
    assert main(["config", "convert", "omnivoice", *files, "--output-dir", "exp/ft", "--to", str(tmp_path / "d")]) == 0
    assert (tmp_path / "d" / "ft.yaml").is_file()
    assert main(["config", "check", str(tmp_path / "d" / "ft.yaml")]) == 0
    assert main(["config", "convert", "omnivoice", str(Path(files[1]))]) == 2
    assert "unknown key" in capsys.readouterr().err
