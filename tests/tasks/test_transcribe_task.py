"""The task with a model that says what the test tells it to."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from stentor.data.batch import Batch, Example, Prediction
from stentor.data.cut import cut_from_record
from stentor.models.base import Bundle
from stentor.tasks.base import Task
from stentor.tasks.transcribe import Transcribe

LOOP = "la " * 60


class Alphabet:
    """CTC head's alphabet: classes are code points."""

    def decode(self, classes):
        return "".join(map(chr, classes))


class FakeProcessor:
    """Tokens are code points."""

    sample_rate = 16000
    max_seconds = None
    eos_id = 0

    def __init__(self, ctc=None):
        self.ctc = ctc

    def collate(self, examples, packed=False, labels=True):
        assert not labels
        return Batch({"which": torch.tensor([int(e.id) for e in examples])}, {}, [e.id for e in examples])

    def decode(self, ids):
        return "".join(map(chr, ids))

    def max_new_tokens(self, seconds):
        return int(25 * seconds) + 16


class FakeModel(torch.nn.Module):
    """Says `answers[item](temperature, random number)` -> (text, log-probability of each token)."""

    def __init__(self, answers):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.answers = answers
        self.calls = []

    def generate(self, inputs, max_new_tokens, eos_ids, beams=1, temperature=0.0, generators=None):
        which = inputs["which"].tolist()
        self.calls.append((which, temperature, beams, max_new_tokens))
        numbers = [None if generators is None else torch.rand(1, generator=g).item() for g in generators or which]
        answers = [self.answers[i](temperature, number) for i, number in zip(which, numbers, strict=True)]
        return [([ord(c) for c in text], [p] * len(text)) for text, p in answers]

    def ctc_classes(self, which):
        return [[ord(c) for c in f"ctc {i}"] for i in which.tolist()]


def says(text, log_prob=-0.1):
    return lambda temperature, number: (text, log_prob)


def bundle(*answers, ctc=None):
    return Bundle(FakeModel(answers), FakeProcessor(ctc), None)


def examples(n, seconds=6.0):
    return [Example(str(i), np.zeros(round(16000 * seconds), np.float32)) for i in range(n)]


def test_outputs():
    model = bundle(says("hello world", -0.5), says(" "))
    first, second = Transcribe().predict(model, examples(2))
    assert first["text"] == "hello world"
    assert [w["word"] for w in first["words"]] == ["hello", "world"]
    assert first["words"][0]["confidence"] == pytest.approx(np.exp(-0.5), abs=1e-4)
    assert (first["log_prob"], first["temperature"], first["failed"]) == (-0.5, 0.0, [])
    assert "ctc" not in first
    assert (second["text"], second["words"]) == ("", [])
    assert model.model.calls == [([0, 1], 0.0, 1, [166, 166])]


def test_only_failed_items_are_decoded_again_and_at_rising_temperatures():
    def loops_until(limit):
        return lambda temperature, number: ("a fine sentence at last" if temperature >= limit else LOOP, -0.2)

    model = bundle(says("all is well"), loops_until(0.4), says("and here too"))
    outputs = Transcribe(beams=4).predict(model, examples(3, 20.0), checked=True)
    assert [o["text"] for o in outputs] == ["all is well", "a fine sentence at last", "and here too"]
    assert [o["temperature"] for o in outputs] == [0.0, 0.4, 0.0]
    assert outputs[1]["failed"] == []
    assert [(which, t, beams) for which, t, beams, _ in model.model.calls] == [
        ([0, 1, 2], 0.0, 4),
        ([1], 0.2, 1),
        ([1], 0.4, 1),
    ]


def test_when_all_fail_the_least_bad_answer_is_kept():
    def worse(temperature, number):
        if temperature == 0.2:
            return "short but unsure", -1.5
        return LOOP, -1.2 if temperature == 0.6 else -2.0

    model = bundle(worse)
    outputs = Transcribe().predict(model, examples(1, 20.0), checked=True)
    assert (outputs[0]["text"], outputs[0]["temperature"], outputs[0]["failed"]) == (
        "short but unsure",
        0.2,
        ["mean_log_prob"],
    )
    assert [t for _, t, _, _ in model.model.calls] == [0.0, 0.2, 0.4, 0.6, 0.8]


def test_evaluation_does_not_check_unless_told():
    model = bundle(says(LOOP))
    assert Transcribe().predict(model, examples(1))[0]["failed"] == []
    assert len(model.model.calls) == 1
    outputs = Transcribe(checks={"evaluate": True, "temperatures": [0.0, 1.0]}).predict(model, examples(1))
    assert outputs[0]["failed"] and len(model.model.calls) == 3


def test_sampling_repeats_and_leaves_the_global_generator_alone():
    numbers = []

    def unsure(temperature, number):
        numbers.append(number)
        return LOOP, -3.0

    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    for _ in range(2):
        Transcribe().predict(bundle(unsure), examples(1), checked=True)
    assert torch.equal(before, torch.random.get_rng_state())
    assert numbers[0] is None and numbers[:5] == numbers[5:]
    assert len(set(numbers[1:5])) == 4


def test_ctc_text_of_the_first_decoding_is_kept():
    model = bundle(says("x"), lambda temperature, number: ("good" if temperature else LOOP, -0.1), ctc=Alphabet())
    outputs = Transcribe().predict(model, examples(2), checked=True)
    assert [o["ctc"] for o in outputs] == ["ctc 0", "ctc 1"]
    assert outputs[1]["text"] == "good"


def prediction(i, text, hypothesis, **more):
    reference = {"text": text, "language": more.pop("language", "en"), "speaker": more.pop("speaker", None)}
    return Prediction(str(i), reference, {"text": hypothesis, **more})


def test_scores():
    items = [prediction(0, "One two", "one two", speaker="a"), prediction(1, "three", "tree", speaker="b")]
    scores = Transcribe().score(items)
    assert list(scores) == ["wer", "cer"]
    assert (scores["wer"].errors, scores["wer"].total) == (1, 3)
    assert (scores["cer"].errors, scores["cer"].total) == (1, 12)
    assert scores["wer"].details["by_speaker"]["b"]["value"] == 1
    assert scores["wer"].details["frequent"]["substitutions"] == [["three", "tree", 1]]
    assert Transcribe(normalizer="none").score(items)["wer"].errors == 2
    assert Transcribe(normalizer="whisper_english").score(items)["wer"].total == 2  # "one two" is 12


def test_main_metric_comes_first():
    task = Transcribe(metric="cer")
    assert task.main_metric() == ("cer", "min")
    assert next(iter(task.score([prediction(0, "a", "a")]))) == "cer"
    assert Transcribe().main_metric() == ("wer", "min")


def test_ctc_is_scored_when_every_answer_has_it():
    with_ctc = [prediction(0, "a b", "a b", ctc="a c")]
    assert Transcribe().score(with_ctc)["ctc_wer"].value == 0.5
    assert "ctc_wer" not in Transcribe().score([*with_ctc, prediction(1, "a", "a")])
    assert Transcribe().score([])["wer"].total == 0


def record(tmp_path, **fields):
    return cut_from_record({"audio_path": "a.wav", "duration": 1.0, **fields}, tmp_path, "x.jsonl:1")


def test_from_cut_to_example_and_reference(tmp_path):
    cut = record(tmp_path, text="Hello", language="en", speaker="ann", context="names: Stentor")
    audio = np.zeros(16000, np.float32)
    task = Transcribe(context="a general hint")
    example = task.example(cut, audio, None)
    assert (example.id, example.text, example.language, example.context) == (cut.id, "Hello", "en", "names: Stentor")
    assert task.example(record(tmp_path, text="x"), audio, None).context == "a general hint"
    assert task.reference(cut) == {"text": "Hello", "language": "en", "speaker": "ann"}
    assert task.drop_reason(cut) is None
    for empty in (record(tmp_path), record(tmp_path, text="  ")):
        assert task.drop_reason(empty) == ("empty_text", empty.id)


def test_as_a_config_section():
    assert Task.model_validate("transcribe") == Transcribe()
    task = Task.model_validate({"type": "transcribe", "normalizer": "whisper_english", "checks": {"on": False}})
    assert task.checks.on is False
    assert Task.model_validate(task.model_dump(mode="json")) == task
    with pytest.raises(ValidationError):
        Transcribe(normalizer="whisper")


def test_needs_the_configured_terms():
    task = Transcribe()
    assert list(task.losses()) == ["text"]
    assert task.requirements({**task.losses(), "ctc": None}).terms == ("text", "ctc")


def test_sampling_does_not_depend_on_the_batch():
    def draws(temperature, number):
        return f"{number} {LOOP}", -3.0

    clips = [Example(str(i), np.full(16000, i, np.float32)) for i in range(3)]
    together = Transcribe().predict(bundle(draws, draws, draws), clips, checked=True)
    alone = [Transcribe().predict(bundle(draws, draws, draws), [clip], checked=True)[0] for clip in clips]
    assert [o["text"] for o in together] == [o["text"] for o in alone]
