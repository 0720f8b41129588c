"""Voxtral, on a tiny model: prompts, features and languages."""

import json

import numpy as np
import pytest
import torch
from tiny_audio_llm import LENGTHS, examples
from tiny_runs import from_scratch, records_of, run, write_records
from tiny_voxtral import build, write_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tekken"))


@pytest.fixture(scope="module")
def bundle(tokenizer):
    return build(tokenizer)


def request(bundle, items):
    """What transformers' processor makes of the same items."""
    return bundle.processor.hf.apply_transcription_request(
        audio=[e.audio for e in items],
        language=[e.language for e in items],
        model_id="x",
        sampling_rate=16000,
        format=["WAV"] * len(items),
    )


def test_prompts_are_those_of_the_processor(bundle):
    items = examples(LENGTHS)
    theirs = request(bundle, items)
    batch = bundle.processor.collate(items, labels=False)
    assert torch.equal(batch.inputs["input_ids"], theirs["input_ids"])
    assert torch.equal(batch.inputs["attention_mask"], theirs["attention_mask"])
    assert len(set(map(tuple, [bundle.processor.prompt_parts(e.language)[1] for e in items]))) == 3


def test_features_are_those_of_the_processor(bundle):
    items = examples((*LENGTHS, 60.0))  # the end of the last window is mirrored, which clips that reach it show
    hf = bundle.processor.hf
    padded = [np.pad(e.audio, (0, -len(e.audio) % 480000)) for e in items]
    theirs = hf._retrieve_input_features(
        padded,
        3000,
        sampling_rate=16000,
        padding=True,
        truncation=False,
        pad_to_multiple_of=480000,
        return_tensors="pt",
    )
    ours = bundle.processor.features(items)
    assert ours.shape == theirs.shape == (11, 128, 3000)
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["fr", "FR", "fr-CA", "fr_fr", "French", "fra"])
def test_languages_are_known_by_code_locale_and_name(bundle, name):
    assert bundle.processor.prompt(name, 16000) == bundle.processor.prompt("fr", 16000)
    assert bundle.processor.prompt(name, 16000) != bundle.processor.prompt("", 16000)
    assert bundle.processor.prompt("", 16000) == bundle.processor.prompt(None, 16000)


def test_a_language_that_the_prompt_cannot_name(four, tmp_path, attempt):
    """Left out and counted up to `data.max_bad`; beyond that the run stops before training, with the record's name."""
    records = records_of(four)
    records[1]["language"] = "klingon"
    odd = write_records(tmp_path / "odd.jsonl", records)
    sentence = f"{records[1]['id']}: Voxtral's prompt can name no language 'klingon': give a code"
    model = from_scratch("voxtral", tmp_path / "tekken")
    options = {"data.max_bad": 0.5, "data.eval.same.path": four, "data.batch_tokens": 4000}
    folder = run(tmp_path, "odd", model, odd, steps=2, lr=1e-3, **options)
    results = json.loads((folder / "results.json").read_text())
    assert results["data"]["dropped"] == {"unknown_language": 1}
    for train, dev in ((odd, four), (four, odd)):
        paths = (f"data.train.0.path={train}", f"data.eval.same.path={dev}")
        code, printed = attempt("train", tmp_path / "odd.json", *paths, "name=none")
        assert code == 3 and sentence in printed and "Traceback" not in printed and "step 1" not in printed
