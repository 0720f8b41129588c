"""Voxtral, on a tiny model: prompts, features, languages and decoding."""

import json

import numpy as np
import pytest
import torch
from tiny_audio_llm import LENGTHS, examples, plain
from tiny_runs import from_scratch, records_of, run, write_records
from tiny_voxtral import build, model_class, write_tokenizer

from stentor.errors import ConfigError, DataError

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


def test_an_unknown_language_is_refused_and_counted(bundle):
    from lhotse import MonoCut, SupervisionSegment

    items = examples((1.0, 1.0), languages=("en", "klingon"))  # a language, but without a code of two letters
    batch = bundle.processor.collate(items)
    assert batch.ids == ["0"]
    ((name, reason, message),) = batch.dropped
    assert (name, reason) == ("1", "unknown_language") and "can name no language 'klingon'" in message
    with pytest.raises(DataError, match="1: Voxtral's prompt can name no language 'klingon': give a code"):
        bundle.processor.collate(items, labels=False)
    for language, refused in (("klingon", True), ("en", False), (None, False)):  # before batches are planned
        segment = SupervisionSegment("a", "r", 0, 1.0, text="one", language=language)
        answer = bundle.family.drop_reason(bundle.processor, MonoCut("a", 0, 1.0, 0, supervisions=[segment]), True)
        assert (answer is not None) == refused
        if refused:
            assert answer[0] == "unknown_language" and answer[1].startswith("a: Voxtral's prompt can name")


@pytest.mark.parametrize("name", ["fr", "FR", "fr-CA", "fr_fr", "French", "fra"])
def test_languages_are_known_by_code_locale_and_name(bundle, name):
    assert bundle.processor.prompt(name, 16000) == bundle.processor.prompt("fr", 16000)
    assert bundle.processor.prompt(name, 16000) != bundle.processor.prompt("", 16000)
    assert bundle.processor.prompt("", 16000) == bundle.processor.prompt(None, 16000)


def test_decoding_is_that_of_transformers(bundle):
    items = examples((0.5, 5.0, 30.1))
    batch = bundle.processor.collate(items, labels=False)
    answers = bundle.model.generate(batch.inputs, max_new_tokens=[6] * 3, eos_ids={bundle.processor.eos_id})
    inputs = batch.inputs
    out = plain(bundle, model_class()).generate(
        input_ids=inputs["input_ids"],
        input_features=inputs["input_features"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=bundle.processor.eos_id,
        pad_token_id=bundle.processor.pad_id,
    )
    for (ids, log_probs, *_), row in zip(answers, out[:, inputs["input_ids"].shape[1] :].tolist()):
        assert ids == [t for t in row if t not in (bundle.processor.eos_id, bundle.processor.pad_id)]
        assert len(log_probs) == len(ids) and all(p <= 0 for p in log_probs)


def test_a_context_without_room_for_a_window_is_refused(tokenizer):
    with pytest.raises(ConfigError, match="leave no room for audio"):
        build(tokenizer, max_text_tokens=4000)


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
