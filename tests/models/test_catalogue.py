"""The list of known models: its table, the run file of each, and figures that are those of the models themselves."""

import json
from dataclasses import replace

import pytest

from stentor.commands.models import CAN, find, memory, run_file
from stentor.config.load import load_text
from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from stentor.models.catalogue import FULL, LORA, known_models
from stentor.tasks.base import Task

WHISPER_TINY = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "num_mel_bins": 80,
}
RUNS = [(task, m.name, how) for m in known_models().values() for task in m.tasks for how in m.methods]
SAME_SIZES = {
    "voxtral_mini": "VoxtralForConditionalGeneration",
    "qwen3_asr": "Qwen3ASRForConditionalGeneration",
    "wav2vec2": "Wav2Vec2ForCTC",
    "dia": "DiaForConditionalGeneration",
    "pocket_tts": "PocketTTSForConditionalGeneration",
}
"""Models whose checkpoint has the sizes that transformers' class has by default."""


@pytest.fixture
def rows(here):
    return lambda *options: {row["name"]: row for row in json.loads(here("models", *options, "--json"))}


def test_the_table_has_a_line_for_each_model_and_says_how_to_go_on(here):
    lines = here("models").splitlines()
    assert lines[0].split() == ["model", "task", "family", "size", "languages", "LoRA", "full", "licence", "can"]
    labels = [model.label for model in known_models().values()]
    assert [line.split()[0] for line in lines[1 : len(labels) + 1]] == labels
    small = next(line for line in lines if line.startswith("openai/whisper-small"))
    assert small.split()[3:] == ["242", "M", "99", "0.9", "3.6", "Apache-2.0", "translation"]
    assert "stentor models show MODEL > run.yaml" in lines[-1]


@pytest.mark.long
def test_filters_leave_what_passes_all(rows, here, attempt):
    everything = rows()
    assert set(everything) == set(known_models())
    assert set(rows("--task", "diarize")) == {"small_diarize", "wavlm_diarize"}
    swedish = rows("--language", "sv")
    assert {"whisper_small", "small_speech_llm"} <= set(swedish)
    assert not {"distil_whisper", "voxtral_mini", "mms"} & set(swedish)  # MMS does not list its languages
    for row in rows("--gpu", "8").values():
        assert min((n for n in row["memory_gib"].values() if n), default=0) <= 6.4
    assert "voxtral_mini" not in rows("--gpu", "8") and "voxtral_mini" in rows("--gpu", "16")
    assert all("translation" in row["can"] for row in rows("--can", "translation").values())
    assert "leave out a filter" in here("models", "--task", "speak", "--can", "words")
    for option in ("--task", "--can"):
        code, error = attempt("models", option, "juggle")
        assert code == 2 and f"{option} juggle is none of" in error


@pytest.mark.parametrize(("task", "name", "method"), RUNS)
def test_every_run_file_is_right_and_complete(task, name, method):
    model = known_models()[name]
    text = run_file(model, task, method)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert len(comments) == 1 and "in place of data/train" in comments[0]
    config = load_text(text).config
    assert (config.task.type, config.model.type) == (task, model.family)
    assert model.id is None or config.model.source == model.id
    assert (getattr(config.model, "lora", None) is not None) == (method == LORA)
    assert list(config.data.eval) == ["dev"] and config.optim.lr


def test_show_prints_the_run_file_of_a_hub_id_or_name(here, tmp_path):
    shown = here("models", "show", "openai/whisper-small")
    assert shown == here("models", "show", "whisper_small") == run_file(find("Whisper_Small"), "transcribe", FULL)
    (tmp_path / "run.yaml").write_text(shown, encoding="utf-8")
    assert "is right" in here("config", "check", tmp_path / "run.yaml")
    assert "lora: {}" in here("models", "show", "openai/whisper-small", "--method", "lora")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["openai/whisper-smal"], "Did you mean openai/whisper-small"),
        (["someone/parakeet-ctc-1b"], "nvidia/parakeet-ctc-1.1b"),
        (["zzzz"], "There is no model 'zzzz' in the list"),
        (["whisper_tiny", "--task", "speak"], "--task speak is not for openai/whisper-tiny: it has transcribe"),
        (["small_speak", "--method", "lora"], "--method lora is not for small_speak: it has full"),
    ],
)
def test_what_there_is_not_is_one_sentence_with_the_mend(attempt, arguments, message):
    code, error = attempt("models", "show", *arguments)
    assert code == 2 and message in error and len(error.strip().splitlines()) == 1


def test_the_list_says_nothing_that_stentor_does_not_know():
    for model in known_models().values():
        assert set(model.tasks) <= set(Task.choices()) and set(model.can) <= set(CAN)
        assert (model.download is None) == (not model.parameters)
        assert model.download is None or model.adapters or LORA not in model.methods
        assert 0 <= model.frozen < max(model.parameters, 1)
    with pytest.raises(ConfigError):
        find("")


def test_memory_is_what_the_plan_counts():
    from stentor.commands.plan.memory import methods

    run = load_text(run_file(find("whisper_tiny"), "transcribe", FULL)).config
    family = Family.model_validate({"type": run.model.type, "config": {"model_type": "whisper", **WHISPER_TINY}})
    bundle = family.build(TaskRequirements("transcribe", ("text",)))
    config = run.model_copy(update={"model": family})
    estimates = {m.name.lower(): m.estimate.total for m in methods(config, bundle.model, None, [], 1)}
    parameters = sum(p.numel() for p in bundle.model.parameters())
    known = replace(find("whisper_tiny"), parameters=parameters)  # its tokenizer is smaller
    for method in (FULL, LORA):
        assert memory(known, method) == pytest.approx(estimates[method], rel=0.03)


@pytest.mark.parametrize("name", SAME_SIZES)
def test_sizes_are_those_of_the_models(name):
    import torch
    import transformers

    kind = getattr(transformers, SAME_SIZES[name])
    with torch.device("meta"):
        model = kind(kind.config_class())
    model.tie_weights()
    known = known_models()[name]
    assert known.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=2e-3)
    if known.frozen:
        assert known.frozen == pytest.approx(sum(p.numel() for p in model.model.audio_tower.parameters()), rel=2e-3)
