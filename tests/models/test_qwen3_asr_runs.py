"""Qwen3-ASR through the command line: a tiny one learns, stops by itself, goes on exactly, and is transformers' own."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_audio_llm import LORA
from tiny_qwen3_asr import CONFIG, write_processor

from stentor.models.base import Family

torch.set_num_threads(1)

RUN = """\
task: {{type: transcribe, normalizer: none}}
model: {model}
data:
  train: [{{type: jsonl, path: "{data}"}}]
  eval: {{same: {{type: jsonl, path: "{data}"}}}}
  batch_tokens: 2000
  max_items: 2
  workers: 0
optim: {{type: adamw, lr: {lr}, weight_decay: 0.0}}
schedule: {{type: constant, warmup_steps: 5}}
train: {{steps: {steps}, log_every: 1, eval_every: 1000, save_every: 1000, device: cpu}}
output: "{runs}"
"""
PLAIN = """\
import json, os, sys
import numpy as np
import torch
from peft import PeftModel
from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

torch.set_num_threads(1)
folder, clips, languages = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if os.path.exists(os.path.join(folder, "adapter_config.json")):
    with open(os.path.join(folder, "adapter_config.json")) as file:
        base = json.load(file)["base_model_name_or_path"]
    model = PeftModel.from_pretrained(Qwen3ASRForConditionalGeneration.from_pretrained(base), folder)
else:
    model = Qwen3ASRForConditionalGeneration.from_pretrained(folder)
processor = Qwen3ASRProcessor.from_pretrained(folder)
answers = []
for audio, language in zip(np.load(clips).values(), languages):
    inputs = processor.apply_transcription_request(audio=[audio], language=language)
    ids = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    answers.append([processor.decode(ids, return_format="transcription_only"), int(ids[-1]), len(ids)])
assert "stentor" not in sys.modules
print(json.dumps(answers))
"""
TINY = {"config": CONFIG}
WIDE = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["language_model.*_proj"]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_processor(tmp_path_factory.mktemp("processor"))


def run(folder, name, model, steps, data, lr, **options):
    """Train through the command line; answers the run's folder."""
    from stentor.cli import main

    path = folder / f"{name}.yaml"
    model = json.dumps({"type": "qwen3_asr", "max_text_tokens": 64, "token_rate": 10.0, **model})
    path.write_text(RUN.format(model=model, data=data, runs=folder / "runs", steps=steps, lr=lr))
    code = main(["train", str(path), f"name={name}", *(f"{k}={v}" for k, v in options.items())])
    assert not code, f"exit {code}"
    return folder / "runs" / name


def manifest(path, records):
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="module")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()[:4]]
    for i, record in enumerate(records):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": "en"} if i else {})
    return manifest(tmp_path_factory.mktemp("four") / "train.jsonl", records)


@pytest.fixture(scope="module")
def learnt(tokenizer, four, tmp_path_factory):
    """The run in which all weights learnt the four clips."""
    model = {**TINY, "tokenizer": str(tokenizer)}
    return run(tmp_path_factory.mktemp("learnt"), "full", model, 150, four, 5e-3)


def check_learnt(folder, data, scratch, capsys):
    """Near-zero loss, no error, and the command line and transformers alone, without Stentor, write the same, with an
    end token."""
    from stentor.audio.io import read
    from stentor.cli import main

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/loss"] for row in rows if "train/loss" in row][-1] < 0.05
    predictions = [json.loads(line) for line in (folder / "predictions" / "same.jsonl").read_text().splitlines()]
    texts = [p["output"]["text"] for p in predictions]
    assert texts == [p["reference"]["text"] for p in predictions] and len(texts) == 4
    assert json.loads((folder / "results.json").read_text())["eval"]["same"]["wer"]["value"] == 0
    records = {r["id"]: r for r in map(json.loads, data.read_text().splitlines())}
    records = [records[p["id"]] for p in predictions]
    np.savez(scratch / "clips.npz", *[read(r["audio_path"], rate=16000) for r in records])
    languages = json.dumps([r.get("language") for r in records])
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder / "export"), str(scratch / "clips.npz"), languages],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [text for text, _, _ in answers] == texts
    bundle = Family.choices()["qwen3_asr"].load(folder / "export")
    assert {end for _, end, _ in answers} == {bundle.processor.eos_id}
    capsys.readouterr()
    for record, text in zip(records, texts):
        out = scratch / "said" / record["id"]
        language = ["--language", record["language"]] if "language" in record else []
        command = ["transcribe", str(folder / "export"), record["audio_path"], *language, "--format", "json"]
        assert not main([*command, "--out", str(out)])
        (file,) = out.glob("*.json")
        assert json.loads(file.read_text())["text"] == text


def test_all_weights_learn_a_tiny_set(learnt, four, tmp_path, capsys):
    check_learnt(learnt, four, tmp_path, capsys)


def test_adapters_learn_a_tiny_set(learnt, four, tmp_path, capsys):
    """Another text for each clip, on the model that learnt the first ones."""
    records = [json.loads(line) for line in four.read_text().splitlines()]
    texts = [r["text"] for r in records]
    other = [{**r, "text": t, "words": []} for r, t in zip(records, [*texts[1:], texts[0]])]
    data = manifest(tmp_path / "other.jsonl", other)
    folder = run(tmp_path, "lora", {"from": str(learnt / "export"), "lora": WIDE}, 60, data, 1e-2)
    assert not list((folder / "export").glob("model*.safetensors"))
    check_learnt(folder, data, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {**LORA, "dropout": 0.1}])
def test_a_run_goes_on_as_if_it_had_not_stopped(tokenizer, learnt, four, tmp_path, rows, lora):
    from safetensors.torch import load_file

    options = {
        "data.augment.speed": "[0.9, 1.0, 1.1]",
        "data.augment.spec_augment": "{time_masks: 1, freq_masks: 1}",
        "train.save_every": 3,
    }
    model = {**TINY, "tokenizer": str(tokenizer)} if lora is None else {"from": str(learnt / "export"), "lora": lora}
    straight = run(tmp_path, "straight", model, 6, four, 1e-3, **options)
    run(tmp_path, "stopped", model, 3, four, 1e-3, **options)
    stopped = run(tmp_path, "stopped", model, 6, four, 1e-3, **options)
    assert "Going on from step 3" in (stopped / "log.txt").read_text()
    losses = [[(row["step"], row["train/loss"], row["grad_norm"]) for row in rows(f)] for f in (straight, stopped)]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    name = "model.safetensors" if lora is None else "adapter_model.safetensors"
    one, two = (load_file(f / "export" / name) for f in (straight, stopped))
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)


def test_an_unknown_language_stops_the_run(tokenizer, four, tmp_path, capsys):
    from stentor.cli import main

    records = [{**json.loads(line), "language": "la"} for line in four.read_text().splitlines()]
    model = json.dumps({"type": "qwen3_asr", **TINY, "tokenizer": str(tokenizer)})
    path = tmp_path / "run.yaml"
    data = manifest(tmp_path / "latin.jsonl", records)
    path.write_text(RUN.format(model=model, data=data, runs=tmp_path / "runs", steps=2, lr=1e-3))
    assert main(["train", str(path), "name=latin"]) == 3
    assert "Qwen3-ASR knows no language 'la': there is ar (Arabic)" in capsys.readouterr().err
