"""The task `speak` on records: what is asked, what is refused, what is the same each time."""

from pathlib import Path

import numpy as np
import pytest

from stentor.data.audio_base64 import decode_audio, encode_audio, is_encoded_audio
from stentor.data.cut import cut_from_record
from stentor.data.seeding import rng
from stentor.tasks.speak.task import Speak


def cut(**fields):
    record = {"id": "a", "audio_path": "a.wav", "duration": 2.0, "text": "good morning", **fields}
    return cut_from_record(record, Path(), "test:1")


def test_fields_of_the_record():
    spoken = Speak().spoken(
        cut(language_id="de", instruct="male", text_pinyin="x1", clean_start_token_idx=9, speaker="anna")
    )
    assert (spoken.text, spoken.language, spoken.instruct, spoken.pinyin, spoken.clean_from) == (
        "good morning",
        "de",
        "male",
        "x1",
        9,
    )


def test_another_field_may_stand_in_for_the_instruct():
    task = Speak(instruct_from="speaker")
    assert task.spoken(cut(speaker="anna")).instruct == "anna"
    assert task.spoken(cut(speaker="anna", instruct="low voice")).instruct == "low voice"
    assert task.spoken(cut()).instruct is None
    assert Speak().spoken(cut(speaker="anna")).instruct is None


def test_records_without_text_are_refused():
    assert Speak().drop_reason(cut(text="  "))[0] == "empty_text"
    assert Speak().drop_reason(cut()) is None


def test_samples_that_are_too_short_or_too_long_are_refused_with_a_reason():
    task = Speak(min_tokens=50, max_tokens=100)
    assert task.length_drop_reason(cut(), lambda: 49)[0] == "too_few_tokens"
    assert task.length_drop_reason(cut(), lambda: 101) == (
        "too_many_tokens",
        "a: 101 positions, more than `task.max_tokens` (100)",
    )
    assert task.length_drop_reason(cut(), lambda: 50) is None and task.length_drop_reason(cut(), lambda: 100) is None
    assert Speak().length_drop_reason(cut(), lambda: pytest.fail("nothing is counted without limits")) is None


def test_an_evaluation_draws_by_the_id_alone():
    task, record = Speak(), cut(language="en")
    one, two = task.example(record, None, None), task.example(record, None, None)
    assert one.extra["conditions"] == two.extra["conditions"]
    np.testing.assert_array_equal(one.rng.random(8), two.rng.random(8))
    other = task.example(cut(id="b", language="en"), None, None)
    assert other.extra["conditions"] != one.extra["conditions"]


def test_training_draws_from_the_randomness_of_the_item():
    task, record = Speak(), cut(language="en", instruct="male")
    masks = {task.example(record, None, rng(0, epoch, "a")).extra["conditions"].mask_ratio for epoch in range(5)}
    assert len(masks) == 5
    again = task.example(record, None, rng(0, 3, "a")).extra["conditions"].mask_ratio
    assert again in masks


def test_the_samples_of_a_set_are_the_same_whatever_its_order():
    task, ids = Speak(samples=3), [f"u{i}" for i in range(20)]
    chosen = task.prediction_subset(ids)
    assert len(chosen) == 3 and chosen == task.prediction_subset(ids[::-1])
    assert task.prediction_subset(ids[:2]) == set(ids[:2]) and Speak(samples=0).prediction_subset(ids) == set()
    assert task.prediction_subset([i for i in ids if i not in chosen]).isdisjoint(chosen)


def test_sound_as_plain_data():
    samples = np.linspace(-0.9, 0.9, 4000, dtype=np.float32)
    packed = encode_audio(samples, 24000)
    assert (
        is_encoded_audio(packed)
        and packed["rate"] == 24000
        and not is_encoded_audio({"text": "a"})
        and not is_encoded_audio("a")
    )
    np.testing.assert_allclose(decode_audio(packed), samples, atol=1e-4)
    assert decode_audio(encode_audio(2 * samples, 24000)).max() <= 1.0
