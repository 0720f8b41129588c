"""What a converter writes checks and trains, or the converter refuses it with the reason; never a file that is called
right and then fails. The folder STENTOR_UPSTREAM may hold bare git directories of the systems, OWNER+NAME/repo."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from codec_shards import token_shards
from stentor.config import checks
from stentor.config.convert import omnivoice, universal, voxlm, voxtral
from stentor.config.load import load, stage_configs
from stentor.config.schema import Config
from stentor.errors import ConfigError
from tiny_configs import WAVE, WHISPER
from upstream import PRESETS, variation

sys.path.append(str(Path(__file__).parents[1] / "models"))

UPSTREAM = os.environ.get("STENTOR_UPSTREAM")
REPOSITORIES = {
    "voxlm": ("suryaumapathy2812+voxlm", "configs/*.yaml"),
    "universal": ("ed-00+TS-DIA", "configs/**/*.y*ml"),
    "omnivoice": ("k2-fsa+OmniVoice", "examples/config/train_config_*.json"),
}
LLM = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
LLMS = {
    "Qwen2-1.5B": {"model_type": "qwen2", "num_key_value_heads": 2, **LLM},
    "Qwen3-0.6B": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8, **LLM},
    "phi-4": {"model_type": "phi3", "num_key_value_heads": 4, "pad_token_id": 0, **LLM},
}
STAND_INS = {
    r"openai/whisper-[\w.-]+": "whisper-small",
    r"Qwen/Qwen2[\w.-]+": "Qwen2-1.5B",
    r"Qwen/Qwen3-0.6B": "Qwen3-0.6B",
}
"""Models of the Hub in upstream's files, and the tiny ones that are read instead."""


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """Tiny models under the names of those that the presets begin with."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, WhisperConfig, WhisperModel

    from stentor.models.text.tokenizers import bpe

    folder, tokenizer = tmp_path_factory.mktemp("bases"), bpe(["one two three " * 9], 300)
    torch.manual_seed(0)
    WhisperModel(WhisperConfig(**WHISPER)).save_pretrained(folder / "whisper-small")
    AutoModel.from_config(AutoConfig.for_model("wav2vec2", **WAVE)).save_pretrained(folder / "mms-1b-all")
    for name, settings in LLMS.items():
        config = AutoConfig.for_model(vocab_size=len(tokenizer), **settings)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def converter(system, file, **files):
    """The function that converts a file of a system."""
    if system == "omnivoice":
        return partial(omnivoice.convert, file, files.get("data"), str(file.parent / "runs"))
    return partial({"voxlm": voxlm.convert, "universal": universal.convert}[system], file)


def written(system, config, folder, bases):
    """The config as the system's file in a folder (of voxtral, a command line); answers what converts it."""
    if system == "voxtral":
        flags = [f"--{k}" if v is True else f"--{k} {v}" for k, v in config.items() if k != "script"]
        return partial(voxtral.convert, f"python {config['script']} {' '.join(flags)}")
    text = json.dumps(config)  # which is YAML too
    for base in bases.iterdir():
        text = text.replace(f'"{base.name}"', f'"{base}"')
    (folder / "theirs.json").write_text(text)
    sets = {name: [{"language_id": "en", "manifest_path": [f"{name}/data.lst"]}] for name in ("train", "dev")}
    (folder / "data.json").write_text(json.dumps(sets))
    return converter(system, folder / "theirs.json", data=folder / "data.json")


def outcome(convert, folder):
    """(`refused` by the converter with the reason, `right`, or what is wrong with the file that it wrote; the configs
    of its stages where all their models are here)."""
    try:
        result = convert()
    except ConfigError as error:
        return "refused" if len(str(error)) > 20 else f"no reason: {error}", []
    ours = folder / "ours.yaml"
    ours.write_text(result.text)
    try:
        loaded = load(ours)
        missing = checks.require(stage_configs(loaded), loaded.roots)
    except ConfigError as error:
        return f"written, but: {error}", []
    return "right", [] if missing else stage_configs(loaded)


@pytest.mark.parametrize("system", PRESETS)
def test_fifty_variations_check_or_are_refused(system, bases, tmp_path):
    outcomes = {}
    for seed in range(50):
        config, changes = variation(system, seed)
        outcomes[str(changes)], _ = outcome(written(system, config, tmp_path, bases), tmp_path)
    assert outcomes["{}"] == "right"
    assert {k: v for k, v in outcomes.items() if v not in ("right", "refused")} == {}
    counts = [list(outcomes.values()).count(kind) for kind in ("right", "refused")]
    assert min(counts) >= 5, counts


# Training


@pytest.fixture
def data(corpus, meetings, tmp_path, monkeypatch):
    """Tiny data for a task, by part. Runs write to a folder of their own."""
    monkeypatch.chdir(tmp_path)

    def make(task, part):
        if task == "speak":
            token_shards(tmp_path / part / "data.lst")
            return {"type": "shards", "path": str(tmp_path / part / "data.lst")}
        return {"type": "jsonl", "path": str((meetings if task == "diarize" else corpus) / f"{part}.jsonl")}

    return make


def train_two_steps(stages, data, folder):
    """Train each stage for two steps on tiny data, with models of one layer."""
    from stentor.commands.train import train

    configs = []
    for stage in stages:
        plain = stage.plain()
        sets = {name: data(stage.task.type, "dev") for name in stage.data.eval}
        plain["data"] |= {"train": [data(stage.task.type, "train")], "eval": sets, "test": {}, "replay": None}
        plain["data"] |= {"workers": 0, "batch_tokens": 2000, "max_items": min(stage.data.max_items or 4, 4)}
        plain["train"] |= {"steps": 2, "epochs": None, "device": "cpu", "precision": "fp32", "compile": False}
        plain["callbacks"] = [c for c in plain["callbacks"] if c["type"] != "tracking"]
        if "codec" in plain["model"]:  # the items have tokens already
            plain["model"]["codec"] = None
        plain |= {"stages": None, "prepare": [], "output": str(folder)}
        configs.append(Config.model_validate(plain))
    run = train(configs, folder / "run", {})
    assert json.loads((run / "results.json").read_text())["steps"] == 2


@pytest.mark.parametrize("system", ["universal", "voxlm"])
def test_a_preset_trains(system, bases, data, tmp_path):
    result, stages = outcome(written(system, PRESETS[system], tmp_path, bases), tmp_path)
    assert result == "right"
    train_two_steps(stages, data, tmp_path / "runs")


@pytest.fixture(scope="session")
def voxtral_base(tmp_path_factory):
    import tiny_voxtral

    from stentor.models.base import Family, TaskRequirements

    tokenizer = tiny_voxtral.write_tokenizer(tmp_path_factory.mktemp("tekken"))
    family = {"type": "audio_llm", "config": tiny_voxtral.CONFIG, "tokenizer": str(tokenizer)}
    bundle = Family.model_validate(family).build(TaskRequirements("transcribe", ("text",)))
    folder = tmp_path_factory.mktemp("voxtral")
    bundle.family.save(bundle, bundle.model.state_dict(), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("system", PRESETS)
def test_variations_train(system, seed, bases, data, tmp_path, request):
    config, _ = variation(system, seed)
    if system == "voxtral":
        config |= {"model-checkpoint": request.getfixturevalue("voxtral_base")}
    result, stages = outcome(written(system, config, tmp_path, bases), tmp_path)
    assert result in ("right", "refused")
    if stages:
        train_two_steps(stages, data, tmp_path / "runs")


@pytest.mark.slow
@pytest.mark.skipif(not UPSTREAM, reason="STENTOR_UPSTREAM is not set")
@pytest.mark.parametrize("system", REPOSITORIES)
def test_upstream_s_own_files_train(system, bases, data, tmp_path, monkeypatch):
    name, pattern = REPOSITORIES[system]
    archive = ["git", f"--git-dir={Path(UPSTREAM) / name / 'repo'}", "archive", "HEAD", pattern.partition("/")[0]]
    subprocess.run(["tar", "-x"], input=subprocess.check_output(archive), cwd=tmp_path, check=True)
    outcomes = {}
    for file in sorted(tmp_path.glob(pattern)):
        text = file.read_text()
        for theirs, base in STAND_INS.items():
            text = re.sub(theirs, str(bases / base), text)
        file.write_text(re.sub(r"num_layers: \d+", "num_layers: 1", text))
        kind = "finetune" if "finetune" in file.name else "emilia"
        convert = converter(system, file, data=file.parent / f"data_config_{kind}.json")
        result, stages = outcome(convert, tmp_path)
        outcomes[str(file.relative_to(tmp_path))] = result
        if stages:
            folder = tmp_path / "runs" / str(len(outcomes))
            folder.mkdir(parents=True)
            monkeypatch.chdir(folder)  # where the stores of features lie that several files name alike
            train_two_steps(stages, data, folder)
    assert "right" in outcomes.values()
    assert {k: v for k, v in outcomes.items() if v not in ("right", "refused")} == {}
