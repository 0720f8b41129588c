"""Voxtral through the command line: a tiny one learns, stops by itself, goes on exactly, and is transformers' own."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tiny_voxtral import CONFIG, write_tokenizer

torch.set_num_threads(1)

# Large enough to learn four clips in seconds.
LEARNER = {
    "audio_config": {**CONFIG["audio_config"], "hidden_size": 32, "intermediate_size": 128},
    "text_config": {**CONFIG["text_config"], "hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2},
}
PLAIN = """\
import json, os, sys
import soundfile, torch
from transformers import VoxtralForConditionalGeneration, VoxtralProcessor

torch.set_num_threads(1)
folder = sys.argv[1]
if os.path.exists(os.path.join(folder, "adapter_config.json")):
    from peft import PeftConfig, PeftModel
    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    model = PeftModel.from_pretrained(VoxtralForConditionalGeneration.from_pretrained(base), folder)
else:
    model = VoxtralForConditionalGeneration.from_pretrained(folder)
processor = VoxtralProcessor.from_pretrained(folder)
answers = []
for line in sys.stdin:
    record = json.loads(line)
    audio, rate = soundfile.read(record["audio_path"], dtype="float32")
    inputs = processor.apply_transcription_request(
        audio=[audio], model_id=folder, language=record.get("language"), sampling_rate=rate, format=["WAV"]
    )
    new = model.generate(**inputs, max_new_tokens=30, do_sample=False)[:, inputs.input_ids.shape[1]:]
    answers.append([processor.batch_decode(new, skip_special_tokens=True)[0], new.shape[1]])
assert "stentor" not in sys.modules
print(json.dumps(answers))
"""
RUN = """\
task: {{type: transcribe, normalizer: none}}
model: {{type: voxtral, token_rate: 20.0, max_text_tokens: 64, {model}}}
data:
  train: [{{type: jsonl, path: "{data}"}}]
  eval: {{same: {{type: jsonl, path: "{data}"}}}}
  batch_tokens: 4000
  max_items: 4
  workers: 0
optim: {{type: adamw, lr: {lr}, weight_decay: 0.0}}
schedule: {{type: constant, warmup_steps: 5}}
train: {{steps: {steps}, log_every: 1, eval_every: 1000, save_every: 1000, device: cpu}}
output: "{runs}"
"""


def run(folder, name, model, steps, data, lr, **options):
    """Train through the command line; answers the run's folder."""
    from stentor.cli import main

    path = folder / f"{name}.yaml"
    path.write_text(RUN.format(model=model, data=data, runs=folder / "runs", steps=steps, lr=lr))
    code = main(["train", str(path), f"name={name}", *(f"{k}={v}" for k, v in options.items())])
    assert not code, f"exit {code}"
    return folder / "runs" / name


@pytest.fixture(scope="module")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()[:4]]
    for i, record in enumerate(records):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": "en"} if i else {})
    path = tmp_path_factory.mktemp("four") / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="module")
def from_scratch(tmp_path_factory):
    """The keys of a model with untrained weights."""
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tekken"))
    return f"config: {json.dumps(LEARNER)}, tokenizer: {tokenizer}"


@pytest.fixture(scope="module")
def learnt(four, from_scratch, tmp_path_factory):
    """The run in which all weights learnt the four clips."""
    return run(tmp_path_factory.mktemp("learnt"), "full", from_scratch, 80, four, 3e-3)


def check_learnt(folder, data):
    """Near-zero loss, no error, every answer ended by itself, and transformers alone writes the same."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/loss"] for row in rows if "train/loss" in row][-1] < 0.05
    predictions = [json.loads(line) for line in (folder / "predictions" / "same.jsonl").read_text().splitlines()]
    texts = {p["id"]: p["output"]["text"] for p in predictions}
    assert texts == {p["id"]: p["reference"]["text"] for p in predictions} and len(texts) == 4
    assert {
        "config.json",
        "generation_config.json",
        "tekken.json",
        "processor_config.json",
        "training_config.json",
        "train_results.json",
        "eval_results.json",
        "README.md",
    } <= {p.name for p in (folder / "export").iterdir()}
    assert json.loads((folder / "results.json").read_text())["export"]["clips"] == 4
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder / "export")], input=data.read_text(), capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [text for text, _ in answers] == [texts[json.loads(line)["id"]] for line in data.read_text().splitlines()]
    assert all(tokens < 30 for _, tokens in answers)


def test_all_weights_learn_a_tiny_set(learnt, four):
    check_learnt(learnt, four)


def test_adapters_learn_a_tiny_set(learnt, four, tmp_path):
    """Another text for each clip, on the model that learnt the first ones."""
    records = [json.loads(line) for line in four.read_text().splitlines()]
    texts = [r["text"] for r in records]
    other = tmp_path / "other.jsonl"
    moved = [{**r, "text": t, "words": []} for r, t in zip(records, [*texts[1:], texts[0]])]
    other.write_text("\n".join(map(json.dumps, moved)) + "\n")
    lora = '{rank: 8, alpha: 16, dropout: 0.0, targets: ["language_model.*_proj"]}'
    model = f'from: "{learnt / "export"}", lora: {lora}, freeze: ["audio_tower.*"]'
    folder = run(tmp_path, "lora", model, 45, other, 1e-2)
    assert not list((folder / "export").glob("model*.safetensors"))
    check_learnt(folder, other)


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_goes_on_as_if_it_had_not_stopped(four, from_scratch, tmp_path, lora):
    model = from_scratch
    if lora:
        model += ', lora: {rank: 2, alpha: 4, dropout: 0.1, targets: ["language_model.*.q_proj"]}'
    options = {
        "data.augment.speed": "[0.9, 1.0, 1.1]",
        "data.augment.spec_augment": "{time_masks: 1, freq_masks: 1}",
        "data.max_items": 2,
        "train.save_every": 3,
    }
    straight = run(tmp_path, "straight", model, 6, four, 1e-3, **options)
    run(tmp_path, "stopped", model, 3, four, 1e-3, **options)
    stopped = run(tmp_path, "stopped", model, 6, four, 1e-3, **options)
    assert "Going on from step 3" in (stopped / "log.txt").read_text()
    one, two = (load_file(f / "export" / "model.safetensors") for f in (straight, stopped))
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)


def test_a_language_that_the_prompt_cannot_name(four, from_scratch, tmp_path, capsys):
    """Left out and counted up to `data.max_bad`; beyond that the run stops before training, with the record's name."""
    from stentor.cli import main

    records = [json.loads(line) for line in four.read_text().splitlines()]
    records[1]["language"] = "klingon"
    odd = tmp_path / "odd.jsonl"
    odd.write_text("\n".join(map(json.dumps, records)) + "\n")
    sentence = f"{records[1]['id']}: Voxtral's prompt can name no language 'klingon': give a code"
    folder = run(tmp_path, "odd", from_scratch, 2, odd, 1e-3, **{"data.max_bad": 0.5, "data.eval.same.path": four})
    results = json.loads((folder / "results.json").read_text())
    assert results["data"]["dropped"] == {"unknown_language": 1}
    capsys.readouterr()
    for train, dev in ((odd, four), (four, odd)):
        assert (
            main(
                [
                    "train",
                    str(tmp_path / "odd.yaml"),
                    f"data.train.0.path={train}",
                    f"data.eval.same.path={dev}",
                    "name=none",
                ]
            )
            == 3
        )
        said = capsys.readouterr()
        assert sentence in said.err and "Traceback" not in said.err and "step 1" not in said.out
