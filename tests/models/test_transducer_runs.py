"""Transducers of transformers through the command line: tiny ones learn eight clips by heart, go on exactly, and write
what transformers alone writes from their exports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_transducers
import torch
from safetensors.torch import load_file
from tiny_runs import records_of, run, write_records

from stentor.cli import main

pytestmark = pytest.mark.long

torch.set_num_threads(1)

OPTIONS = {"data.batch_tokens": 4000, "data.max_items": 8}
STEPS = {"parakeet_tdt": 100, "parakeet_rnnt": 160}
LORA = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["encoder.*_proj", "encoder.*.linear?"]}


def term(kind):
    return "tdt" if kind == "parakeet_tdt" else "rnnt"


def train(folder, name, kind, data, model, **options):
    term_of = {"losses": f"{{{term(kind)}: {term(kind)}}}"}
    return run(folder, name, {"type": "transducer", **model}, data, **{**OPTIONS, **term_of, **options})


def from_config(kind, **encoder):
    config = tiny_transducers.CONFIGS[kind]
    encoder = {**config["encoder_config"], **encoder}
    # The tiny config's few tokens at one frame are for tests of decoding: what is learnt by heart is written at once.
    return {"config": {"model_type": kind, **config, "encoder_config": encoder, "max_symbols_per_step": 10}}


@pytest.fixture(scope="module")
def eight(corpus, tmp_path_factory):
    records = records_of(corpus / "train.jsonl")[:8]
    records = [{**r, "audio_path": str(corpus / r["audio_path"])} for r in records]
    return write_records(tmp_path_factory.mktemp("eight") / "train.jsonl", records)


KINDS = ["parakeet_tdt", pytest.param("parakeet_rnnt", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=KINDS)
def learnt(request, eight, tmp_path_factory):
    """A kind and the run in which all its weights learnt the eight clips."""
    kind = request.param
    folder = tmp_path_factory.mktemp("learnt")
    return kind, train(folder, "full", kind, eight, from_config(kind), steps=STEPS[kind], lr=5e-3)


def check_learnt(kind, folder, data, weights="model.safetensors"):
    """Every text, with words in their times, and transformers alone, with PEFT for adapters, writes the same from the
    export."""
    predictions = records_of(folder / "predictions" / "same.jsonl")
    texts = {p["id"]: p["output"]["text"] for p in predictions}
    assert texts == {p["id"]: p["reference"]["text"] for p in predictions} and len(texts) == 8
    results = json.loads((folder / "results.json").read_text())
    assert results["eval"]["same"]["wer"]["value"] == 0 and results["export"]["clips"] == 8
    for p in predictions:
        words = p["output"]["words"]
        assert [word["word"] for word in words] == p["output"]["text"].split()
        starts = [word["start"] for word in words]
        assert starts == sorted(starts) and all(word["start"] <= word["end"] for word in words)
    assert {"config.json", weights, "generation_config.json", "processor_config.json"} <= {
        p.name for p in (folder / "export").iterdir()
    }
    script = Path(__file__).with_name("plain_transformers.py")
    done = subprocess.run(
        [sys.executable, str(script), term(kind), str(folder / "export")],
        input=data.read_text(),
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert [text for text, _ in answers] == [texts[record["id"]] for record in records_of(data)]


def test_all_weights_learn_a_tiny_set(learnt, eight, tmp_path):
    kind, folder = learnt
    check_learnt(kind, folder, eight)
    record = records_of(eight)[2]
    assert not main(
        ["transcribe", str(folder), record["audio_path"], "--format", "json", "--out", str(tmp_path), "--beams", "3"]
    )
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["text"] == record["text"]
    assert not main(
        ["align", str(folder / "export"), record["audio_path"], record["text"], "--out", str(tmp_path / "a")]
    )
    (file,) = (tmp_path / "a").glob("*.json")
    greedy = next(p for p in records_of(folder / "predictions" / "same.jsonl") if p["id"] == record["id"])
    words, written = json.loads(file.read_text())["words"], greedy["output"]["words"]
    assert [word["word"] for word in words] == [word["word"] for word in written]
    assert sorted(abs(a["start"] - b["start"]) for a, b in zip(words, written))[len(words) // 2] < 0.041


@pytest.mark.slow
def test_adapters_learn_a_tiny_set(learnt, eight, tmp_path):
    """Another text for each clip, on the model that learnt the first ones."""
    kind, folder = learnt
    records = records_of(eight)
    texts = sorted({r["text"] for r in records})
    after = dict(zip(texts, [*texts[1:], texts[0]]))
    data = write_records(tmp_path / "other.jsonl", [{**r, "text": after[r["text"]], "words": []} for r in records])
    model = {"from": str(folder / "export"), "lora": LORA}
    other = train(tmp_path, "lora", kind, data, model, steps=STEPS[kind] - 30, lr=1e-2)
    check_learnt(kind, other, data, "adapter_model.safetensors")
    assert not main(["export", str(other), "--to", str(tmp_path / "merged"), "--merge"])
    assert (tmp_path / "merged" / "model.safetensors").exists()
    parts = json.loads((other / "results.json").read_text())["parameters"]["parts"]
    assert 0 < parts["encoder"]["trained"] < parts["encoder"]["total"] / 4


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_run_goes_on_as_if_it_had_not_stopped(lora, eight, tmp_path, rows):
    model = {**from_config("parakeet_tdt", dropout=0.1, attention_dropout=0.1), "lora": lora}
    options = {
        "lr": 1e-3,
        "data.max_items": 4,
        "data.augment.speed": "[0.9, 1.0, 1.1]",
        "data.augment.spec_augment": "{time_masks: 1, freq_masks: 1}",
        "train.save_every": 2,
    }
    straight = train(tmp_path, "straight", "parakeet_tdt", eight, model, steps=4, **options)
    train(tmp_path, "stopped", "parakeet_tdt", eight, model, steps=2, **options)
    stopped = train(tmp_path, "stopped", "parakeet_tdt", eight, model, steps=4, **options)
    assert "Going on from step 2" in (stopped / "log.txt").read_text()
    losses = [[(row["step"], row["train/loss"], row["grad_norm"]) for row in rows(f)] for f in (straight, stopped)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    one, two = (load_file(f / "export" / "model.safetensors") for f in (straight, stopped))
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)
