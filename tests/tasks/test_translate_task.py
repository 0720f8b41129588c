"""The task `transcribe` with `translate: true`: its target is the record's translation, its metric chrF."""

from pathlib import Path

import numpy as np
import pytest

from stentor.config.load import load
from stentor.data.batch import Prediction
from stentor.data.cut import cut_from_record, field_of, text_of
from stentor.errors import ConfigError, DataError
from stentor.inference.decoding_options import with_translation
from stentor.models.base import Family
from stentor.tasks.transcribe import Transcribe

RECORD = {"audio_path": "a.wav", "duration": 1.0, "text": "god morgon", "language": "sv"}
TRANSLATE = Transcribe(translate=True)
RUN = """
name: translated
task: {type: TASK, translate: true}
model: {type: speech_llm, encoder: {from: openai/whisper-tiny}, llm: {from: Qwen/Qwen2.5-0.5B}}
data: {train: [{type: jsonl, path: train.jsonl}]}
"""


def cut(**fields):
    return cut_from_record({**RECORD, **fields}, Path("/data"), where="here:1")


def test_the_translation_is_the_target():
    record = cut(translation="good morning")
    assert TRANSLATE.drop_reason(record) is None
    example = TRANSLATE.example(record, np.zeros(16000, np.float32), np.random.default_rng(0))
    assert (example.text, example.language, example.extra) == ("good morning", "sv", {"translate": True})
    assert TRANSLATE.reference(record)["text"] == "good morning"
    assert text_of(record) == "good morning"  # what costs, alphabets and tokenizers are made from


def test_without_the_key_the_transcript_is_the_target():
    record = cut(translation="good morning")
    assert Transcribe().drop_reason(record) is None
    example = Transcribe().example(record, np.zeros(16000, np.float32), np.random.default_rng(0))
    assert (example.text, example.extra) == ("god morgon", {})


@pytest.mark.parametrize("fields", [{}, {"translation": " "}])
def test_a_record_without_translation_is_dropped_and_named(fields):
    reason, message = TRANSLATE.drop_reason(cut(**fields))
    assert reason == "no_translation" and "a.wav" in message


def test_joined_records_have_the_translations_of_their_parts():
    joined = cut(id="a", translation="good").append(cut(id="b", translation="morning"))
    assert TRANSLATE.drop_reason(joined) is None
    assert text_of(joined) == "good morning"
    assert TRANSLATE.drop_reason(cut(id="a", translation="good").append(cut(id="b")))[0] == "no_translation"
    assert field_of(cut(translation="good"), "text") == "god morgon"


def test_a_translation_that_is_no_text_is_named():
    with pytest.raises(DataError, match="here:1: `translation` must be a string"):
        cut(translation=3)


def test_it_is_scored_by_chrf():
    assert TRANSLATE.main_metric() == ("chrf", "max")
    predictions = [Prediction("a", {"text": "good morning", "language": "sv"}, {"text": "good morning", "words": []})]
    assert list(TRANSLATE.score(predictions)) == ["chrf"]
    assert TRANSLATE.score(predictions)["chrf"].value == 1.0
    assert TRANSLATE.change(predictions, predictions) == {}


@pytest.mark.parametrize(
    ("task", "why"), [("transcribe", "cannot translate: leave `translate` out"), ("words", "have no times")]
)
def test_what_cannot_be_translated_is_refused_at_the_key(tmp_path, task, why):
    run = tmp_path / "run.yaml"
    run.write_text(RUN.replace("TASK", task), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"run.yaml:3: 'task.translate': .*{why}"):
        load(run)


def test_one_call_may_ask_for_a_translation():
    family = Family.model_validate({"type": "ctc", "from": "facebook/wav2vec2-base"})
    assert with_translation(Transcribe(), family, None).translate is False
    with pytest.raises(ConfigError, match="translate: a model of the family ctc"):
        with_translation(Transcribe(), family, True)
    assert with_translation(TRANSLATE, family, False).translate is False
