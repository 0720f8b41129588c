"""Pretrained models through the command line: tiny ones learn a few clips by heart, stop by themselves, go on exactly,
and write what transformers alone writes from their exports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import torch
from plain_transformers import PREPARED
from safetensors.torch import load_file
from tiny_audio_llm import LORA
from tiny_runs import SECTIONS, SEQ2SEQ, from_scratch, records_of, run, write_records

from stentor.data.batch import Example
from stentor.models.base import Family
from tiny_configs import WHISPER

pytestmark = pytest.mark.long

torch.set_num_threads(1)

EIGHT = {"steps": 120, "lr": 5e-3, "data.batch_tokens": 4000, "data.max_items": 8}
# What each family needs to learn by heart, with all weights and with adapters.
FULL = {
    "whisper": {"steps": 100, "lr": 5e-3, "data.batch_tokens": 8000, "data.max_items": 4},
    "voxtral": {"steps": 80, "lr": 3e-3, "data.batch_tokens": 4000, "data.max_items": 4},
    "qwen3_asr": {"steps": 150, "lr": 5e-3},
    "moonshine": EIGHT,
    "moonshine_streaming": EIGHT,
    "cohere_asr": {**EIGHT, "steps": 200, "lr": 3e-3},
    "glmasr": {"steps": 90, "lr": 5e-3},
    "granite_speech": {"steps": 90, "lr": 5e-3},
    "fun_asr_nano": {"steps": 90, "lr": 5e-3},
}
ADAPTERS = {
    "whisper": {**FULL["whisper"], "steps": 40, "lr": 1e-2},
    "voxtral": {**FULL["voxtral"], "steps": 45, "lr": 1e-2},
    "qwen3_asr": {"steps": 60, "lr": 1e-2},
    "moonshine": {**EIGHT, "lr": 1e-2},
    "moonshine_streaming": {**EIGHT, "lr": 1e-2},
    "cohere_asr": {**EIGHT, "steps": 200, "lr": 1e-2},
    "glmasr": {"steps": 60, "lr": 1e-2},
    "granite_speech": {"steps": 110, "lr": 5e-3},
    "fun_asr_nano": {"steps": 60, "lr": 1e-2},
}
WIDE = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["language_model.*_proj"]}
ADAPTED = {
    **{kind: {"lora": {**WIDE, "targets": ["*_proj", "*.fc?"]}} for kind in SEQ2SEQ},
    "voxtral": {"lora": WIDE, "freeze": ["audio_tower.*"]},
    **{name: {"lora": WIDE} for name in ("qwen3_asr", "glmasr", "fun_asr_nano")},
    "granite_speech": {"lora": {**WIDE, "targets": [*WIDE["targets"], "projector.*"]}},
}


ALWAYS = ("whisper",)
"""Models that are always trained; the others, which share their code, are slow tests."""


@pytest.fixture(
    scope="module", params=[pytest.param(s, marks=[pytest.mark.slow] * (s not in ALWAYS)) for s in SECTIONS]
)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def clips(family, request):
    """A manifest of eight clips, or of four for what learns slowly."""
    return request.getfixturevalue("eight" if FULL[family].get("data.max_items") == 8 else "four")


@pytest.fixture(scope="module")
def learnt(family, clips, tmp_path_factory):
    """The run in which all weights learnt the clips."""
    folder = tmp_path_factory.mktemp("learnt")
    return run(folder, "full", from_scratch(family, folder / "tokenizer"), clips, **FULL[family])


def plain_answers(family, export, data):
    """What transformers alone writes, in a process that knows no Stentor."""
    script = Path(__file__).with_name("plain_transformers.py")
    records = records_of(data)
    if family in PREPARED:
        processor = Family.choices()["audio_llm"].load(export).processor
        for record in records:
            audio, _ = soundfile.read(record["audio_path"], dtype="float32")
            inputs = processor.collate([Example(record["id"], audio, "", record.get("language"))], labels=False).inputs
            names = ("input_ids", "attention_mask", "input_features", "input_features_mask")
            record["inputs"] = {name: inputs[name].tolist() for name in names if name in inputs}
    done = subprocess.run(
        [sys.executable, str(script), family, str(export)],
        input="\n".join(map(json.dumps, records)),
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_learnt(family, folder, data):
    """Near-zero loss, no error, every answer ended by itself, and transformers alone writes the same."""
    losses = [row["train/loss"] for row in records_of(folder / "metrics.jsonl") if "train/loss" in row]
    assert losses[-1] < 0.05
    count = len(records_of(data))
    predictions = records_of(folder / "predictions" / "same.jsonl")
    texts = {p["id"]: p["output"]["text"] for p in predictions}
    assert texts == {p["id"]: p["reference"]["text"] for p in predictions} and len(texts) == count
    results = json.loads((folder / "results.json").read_text())
    assert results["eval"]["same"]["wer"]["value"] == 0 and results["export"]["clips"] == count
    assert {
        "config.json",
        "generation_config.json",
        "tekken.json" if family == "voxtral" else "tokenizer.json",
        "processor_config.json",
        "training_config.json",
        "train_results.json",
        "eval_results.json",
        "README.md",
    } <= {p.name for p in (folder / "export").iterdir()}
    answers = plain_answers(family, folder / "export", data)
    assert [text for text, _ in answers] == [texts[record["id"]] for record in records_of(data)]
    if family != "whisper":  # whose answers come without their end token
        end = Family.choices()[SECTIONS[family]["type"]].load(folder / "export").processor.eos_id
        assert {ids[-1] for _, ids in answers} == {end}
        assert family != "voxtral" or all(len(ids) < 30 for _, ids in answers)


def check_transcribe(folder, data, scratch):
    """The command line writes what was learnt, from the export and from the run's folder."""
    from stentor.cli import main

    for record in records_of(data)[:4]:
        language = ["--language", record["language"]] if "language" in record else []
        for source in (folder / "export", folder):
            out = scratch / "transcripts" / source.name / record["id"]
            command = ["transcribe", str(source), record["audio_path"], *language, "--format", "json"]
            assert not main([*command, "--out", str(out)])
            (file,) = out.glob("*.json")
            assert json.loads(file.read_text())["text"] == record["text"]


def test_all_weights_learn_a_tiny_set(family, learnt, clips, tmp_path):
    assert {p.name for p in (learnt / "export").glob("*.safetensors")} == {"model.safetensors"}
    check_learnt(family, learnt, clips)
    check_transcribe(learnt, clips, tmp_path)


@pytest.mark.parametrize(
    "family", [pytest.param(s, marks=[pytest.mark.slow] * (s not in ALWAYS)) for s in SECTIONS], indirect=True
)
def test_adapters_learn_a_tiny_set(family, learnt, clips, tmp_path):
    """Another text for each clip, on the model that learnt the first ones."""
    records = records_of(clips)
    texts = list(dict.fromkeys(r["text"] for r in records))  # clips of the same text get the same other one
    other = dict(zip(texts, [*texts[1:], texts[0]]))
    moved = [{**r, "text": other[r["text"]], "words": []} for r in records]
    data = write_records(tmp_path / "other.jsonl", moved)
    model = {**SECTIONS[family], "from": str(learnt / "export"), **ADAPTED[family]}
    folder = run(tmp_path, "lora", model, data, **ADAPTERS[family])
    assert {p.name for p in (folder / "export").glob("*.safetensors")} == {"adapter_model.safetensors"}
    adapters = load_file(folder / "export" / "adapter_model.safetensors")
    assert all(t.any() for t in adapters.values())  # the second of the two matrices starts from zero
    layers = [name for name in adapters if ".language_model." in name]
    assert family in SEQ2SEQ or len(layers) == 2 * 7 * 2  # layers x projections x matrices
    check_learnt(family, folder, data)
    check_transcribe(folder, data, tmp_path)


@pytest.mark.slow
def test_short_and_whole_windows_of_whisper_learn_together(four, tmp_path):
    """... and what is learnt holds on the whole window, which evaluation and transformers use."""
    model = {**from_scratch("whisper", tmp_path), "full_window": 0.5}
    check_learnt("whisper", run(tmp_path, "mix", model, four, steps=200, lr=5e-3, **{"data.batch_tokens": 4000}), four)


@pytest.mark.parametrize(
    "family, kind",
    [
        pytest.param("whisper", "full", marks=pytest.mark.slow),
        pytest.param("voxtral", "full", marks=pytest.mark.slow),
        pytest.param("moonshine", "full", marks=pytest.mark.slow),
        pytest.param("moonshine_streaming", "full", marks=pytest.mark.slow),
        pytest.param("cohere_asr", "full", marks=pytest.mark.slow),
        ("voxtral", "lora"),
        pytest.param("qwen3_asr", "full", marks=pytest.mark.slow),
        pytest.param("qwen3_asr", "lora", marks=pytest.mark.slow),
    ],
    indirect=["family"],
)
def test_a_run_goes_on_as_if_it_had_not_stopped(family, kind, request, clips, tmp_path, rows):
    model = from_scratch(family, tmp_path / "tokenizer")
    if family == "whisper":
        model |= {"config": {**WHISPER, "dropout": 0.1}, "full_window": 0.5}
    elif kind == "lora" and family == "voxtral":
        model["lora"] = {**LORA, "dropout": 0.1, "targets": ["language_model.*.q_proj"]}
    elif kind == "lora":
        export = request.getfixturevalue("learnt") / "export"
        model = {**SECTIONS[family], "from": str(export), "lora": {**LORA, "dropout": 0.1}}
    options = {
        "lr": 1e-3,
        "data.augment.speed": "[0.9, 1.0, 1.1]",
        "data.augment.spec_augment": "{time_masks: 1, freq_masks: 1}",
        "data.batch_tokens": FULL[family].get("data.batch_tokens", 2000),
        "train.save_every": 3,
        "train.use": "last",  # the best may be that of step 3
    }
    straight = run(tmp_path, "straight", model, clips, steps=6, **options)
    run(tmp_path, "stopped", model, clips, steps=3, **options)
    stopped = run(tmp_path, "stopped", model, clips, steps=6, **options)
    assert "Going on from step 3" in (stopped / "log.txt").read_text()
    losses = [[(row["step"], row["train/loss"], row["grad_norm"]) for row in rows(f)] for f in (straight, stopped)]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    name = "adapter_model.safetensors" if "from" in model else "model.safetensors"
    one, two = (load_file(f / "export" / name) for f in (straight, stopped))
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)
