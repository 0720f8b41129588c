"""Pretrained models through the command line: tiny ones learn a few clips by heart, stop by themselves, and
write what transformers alone writes from their exports."""

import json
import subprocess
import sys

import plain_transformers
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import SECTIONS, from_scratch, records_of, run, write_records

from stentor.models.base import Family

pytestmark = pytest.mark.long

torch.set_num_threads(1)

EIGHT = {"steps": 120, "lr": 5e-3, "data.batch_tokens": 4000, "data.max_items": 8}
# What one model of each architecture needs to learn by heart, with all weights and with adapters.
FULL = {
    "whisper": {"steps": 60, "lr": 5e-3, "data.batch_tokens": 8000, "data.max_items": 2},
    "qwen3_asr": {"steps": 150, "lr": 5e-3},
    "voxtral_realtime": {**EIGHT, "steps": 110},
    "parakeet_tdt": {**EIGHT, "steps": 100},
    "parakeet_ctc": {**EIGHT, "steps": 200},
}
ADAPTERS = {
    "whisper": {**FULL["whisper"], "steps": 40, "lr": 1e-2},
    "qwen3_asr": {"steps": 60, "lr": 1e-2},
    "voxtral_realtime": {**EIGHT, "steps": 60, "lr": 1e-2},
    "parakeet_tdt": {**EIGHT, "steps": 70, "lr": 1e-2},
    "parakeet_ctc": EIGHT,
}
WORDS = ("one", "two", "three", "four", "five", "six")
WIDE = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["language_model.*_proj"]}
ADAPTED = {
    "whisper": {"lora": {**WIDE, "targets": ["*_proj", "*.fc?"]}},
    "qwen3_asr": {"lora": WIDE},
    "voxtral_realtime": {"lora": WIDE},
    "parakeet_tdt": {"lora": {**WIDE, "targets": ["encoder.*_proj", "encoder.*.linear?"]}},
    "parakeet_ctc": {"alphabet": "transcripts", "lora": {**WIDE, "targets": ["*.q_proj", "*.v_proj", "*.linear1"]}},
}
SIDE = {"voxtral_realtime": "end"}
"""What models on the frame grid know of their words' times."""
LOSSES = {"parakeet_tdt": {"tdt": "tdt"}, "parakeet_ctc": {"ctc": "ctc"}}
ALWAYS = ("whisper", "parakeet_tdt")
"""Models that are always trained; the others are slow tests."""


@pytest.fixture(scope="module", params=[pytest.param(s, marks=[pytest.mark.slow] * (s not in ALWAYS)) for s in FULL])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def clips(family, request):
    """A manifest of eight clips, of four for what learns slowly, or of two for whole windows of half a minute."""
    return request.getfixturevalue({8: "eight", 2: "two"}.get(FULL[family].get("data.max_items"), "four"))


@pytest.fixture(scope="module")
def learnt(family, clips, tmp_path_factory):
    """The run in which all weights learnt the clips."""
    folder = tmp_path_factory.mktemp("learnt")
    return train(family, folder, "full", from_scratch(family, folder / "tokenizer"), clips, FULL[family])


def train(family, folder, name, model, data, options):
    losses = LOSSES.get(family, {"text": "cross_entropy"})
    return run(folder, name, model, data, losses=json.dumps(losses), **options)


def plain_answers(family, export, data, apart):
    """What transformers alone writes; `apart` in a process that knows no Stentor."""
    records = records_of(data)
    if not apart:
        return plain_transformers.answers(family, str(export), records)
    done = subprocess.run(
        [sys.executable, plain_transformers.__file__, family, str(export)],
        input="\n".join(map(json.dumps, records)),
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_learnt(family, folder, data, apart=False):
    """No error, every answer ended by itself, and transformers alone writes the same."""
    count = len(records_of(data))
    predictions = records_of(folder / "predictions" / "same.jsonl")
    texts = {p["id"]: p["output"]["text"] for p in predictions}
    assert texts == {p["id"]: p["reference"]["text"] for p in predictions} and len(texts) == count
    results = json.loads((folder / "results.json").read_text())
    assert results["eval"]["same"]["wer"]["value"] == 0 and results["export"]["clips"] == count
    written = {p.name for p in (folder / "export").iterdir()}
    assert {"config.json", "training_config.json", "train_results.json", "eval_results.json", "README.md"} <= written
    for words in (p["output"]["words"] for p in predictions if family == "parakeet_tdt"):
        assert [word["start"] for word in words] == sorted(word["start"] for word in words)
        assert all(word["start"] <= word["end"] for word in words)
    answers = plain_answers(family, folder / "export", data, apart)
    assert [text.strip() for text, _ in answers] == [texts[record["id"]] for record in records_of(data)]
    if family not in ("whisper", *SIDE, *LOSSES):  # whose answers come without their end token
        end = Family.choices()[SECTIONS[family]["type"]].load(folder / "export").processor.eos_id
        assert {ids[-1] for _, ids in answers} == {end}


def check_transcribe(family, folder, data, scratch):
    """The command line writes what was learnt, from the export and from the run's folder."""
    from stentor.cli import main

    for record in records_of(data)[:2]:
        language = ["--language", record["language"]] if "language" in record else []
        for source in (folder / "export", folder):
            out = scratch / "transcripts" / source.name / record["id"]
            command = ["transcribe", str(source), record["audio_path"], *language, "--format", "json"]
            assert not main([*command, *(["--words"] if family in SIDE else []), "--out", str(out)])
            (file,) = out.glob("*.json")
            transcript = json.loads(file.read_text())
            assert transcript["text"] == record["text"]
            if side := SIDE.get(family):
                words = zip(transcript["words"], record["words"], strict=True)
                assert all(abs(word[side] - known[side]) < 0.17 for word, known in words)


def test_all_weights_learn_a_tiny_set(family, learnt, clips, tmp_path):
    assert {p.name for p in (learnt / "export").glob("*.safetensors")} == {"model.safetensors"}
    check_learnt(family, learnt, clips, apart=True)
    check_transcribe(family, learnt, clips, tmp_path)


@pytest.mark.parametrize(
    "family", [pytest.param(s, marks=[pytest.mark.slow] * (s != "whisper")) for s in FULL], indirect=True
)
def test_adapters_learn_a_tiny_set(family, learnt, clips, tmp_path):
    """Another text for each clip, on the model that learnt the first ones."""
    records = records_of(clips)
    texts = list(dict.fromkeys(r["text"] for r in records))  # clips of the same text get the same other one
    other = dict(zip(texts, [*texts[1:], texts[0]]))
    moved = [{**r, "text": other[r["text"]], "words": []} for r in records]
    if family in SIDE:  # which has to know when each word is said
        spelled = dict(zip(WORDS, [*WORDS[1:], WORDS[0]]))
        for record in records:
            record["words"] = [{**word, "word": spelled[word["word"]]} for word in record["words"]]
        moved = [{**r, "text": " ".join(word["word"] for word in r["words"])} for r in records]
    data = write_records(tmp_path / "other.jsonl", moved)
    model = {**SECTIONS[family], "from": str(learnt / "export"), **ADAPTED[family]}
    folder = train(family, tmp_path, "lora", model, data, ADAPTERS[family])
    (file,) = (folder / "export").glob("*.safetensors")
    assert file.name == ("model.safetensors" if family == "parakeet_ctc" else "adapter_model.safetensors")
    adapters = [tensor for name, tensor in load_file(file).items() if ".lora_" in name]
    assert all(t.any() for t in adapters)  # the second of the two matrices starts from zero
    parts = json.loads((folder / "results.json").read_text())["parameters"]["parts"]
    assert family not in LOSSES or 0 < parts["encoder"]["trained"] < parts["encoder"]["total"] / 4
    check_learnt(family, folder, data)
    check_transcribe(family, folder, data, tmp_path)


@pytest.mark.parametrize("family", ["parakeet_tdt"], indirect=True)
def test_transducers_search_and_align(learnt, clips, tmp_path):
    from stentor.cli import main

    record = records_of(clips)[2]
    audio = record["audio_path"]
    assert not main(["transcribe", str(learnt), audio, "--format", "json", "--out", str(tmp_path), "--beams", "3"])
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["text"] == record["text"]
    assert not main(["align", str(learnt / "export"), audio, record["text"], "--out", str(tmp_path / "a")])
    (file,) = (tmp_path / "a").glob("*.json")
    greedy = next(p for p in records_of(learnt / "predictions" / "same.jsonl") if p["id"] == record["id"])
    words, written = json.loads(file.read_text())["words"], greedy["output"]["words"]
    assert [word["word"] for word in words] == [word["word"] for word in written]
    assert sorted(abs(a["start"] - b["start"]) for a, b in zip(words, written))[len(words) // 2] < 0.041
