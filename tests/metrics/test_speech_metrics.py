"""Figures of synthetic speech, against values that can be worked out by hand."""

import math

import numpy as np
import pytest

from stentor.metrics.speech import (
    VoiceSpace,
    intelligibility,
    level,
    mean,
    real_time_factor,
    share,
    similarity,
    speaking_rate,
)


def test_error_rates_of_each_column():
    texts = ["one two three", "four five", "six"]
    transcripts = {
        "synthetic": ["one two", "four five", "six six"],
        "codec": ["one two three", "four five", None],
        "real": [None, None, None],
    }
    scores = intelligibility(texts, transcripts, "none")
    assert list(scores) == ["wer", "wer_codec", "cer", "cer_codec"]  # nothing real was heard
    assert (scores["wer"].errors, scores["wer"].total) == (2, 6)
    assert (scores["wer_codec"].errors, scores["wer_codec"].total) == (0, 5)
    assert scores["cer"].errors == len(" three") + len(" six")


def test_error_rates_are_broken_down():
    scores = intelligibility(["a b", "c d"], {"synthetic": ["a b", "c x"]}, "none", groups={"speaker": ["ann", "bob"]})
    assert scores["wer"].details["by_speaker"]["bob"]["value"] == 0.5


def test_units_follow_the_language():
    scores = intelligibility(["你好吗"], {"synthetic": ["你好"]}, "none", ["zh"])
    assert scores["wer"].total == 3 and scores["wer"].errors == 1


def test_mean_and_share_leave_out_what_is_not_known():
    score = mean([1.0, None, 3.0])
    assert score.value == 2.0 and score.details["items"] == 2 and 1 <= score.low <= score.high <= 3
    score = share([True, True, None, False])
    assert (score.value, score.errors, score.total) == (2 / 3, 1, 3)
    assert math.isnan(mean([]).value) and share([None]).total is None


def test_real_time_factor_and_level():
    assert real_time_factor(2.0, 8.0).value == 0.25
    assert math.isnan(real_time_factor(1.0, 0.0).value)
    assert level(np.full(100, 0.1, np.float32)) == pytest.approx(-20, abs=1e-4)
    assert level(np.zeros(10, np.float32)) == level(np.zeros(0, np.float32)) == -math.inf


def voices(count: int, noise: float, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Vectors of 3 speakers around 3 axes, with noise along a shared fourth one."""
    rng = np.random.default_rng(seed)
    speakers = [f"s{i % 3}" for i in range(count)]
    table = np.eye(4)[[i % 3 for i in range(count)]] + 0.05 * rng.standard_normal((count, 4))
    table[:, 3] += noise * rng.standard_normal(count)
    return table.astype(np.float32), speakers


def test_similarity_is_the_mean_cosine_with_the_reference():
    real = [np.array(v, np.float32) for v in ([1, 0], [1, 1], [0, 2])]
    spoken = [np.array(v, np.float32) for v in ([1, 0], [1, 0], [3, 0])]
    scores = similarity({"synthetic": spoken, "real": real}, "real", ["a", "a", "b"], [1, 0, 2])
    assert scores["similarity"].value == pytest.approx((math.sqrt(0.5) + 1 + 0) / 3)
    # The third item is its own reference, which says nothing about real audio.
    assert scores["similarity_real"].value == pytest.approx(math.sqrt(0.5)) and (
        scores["similarity_real"].details["items"] == 2
    )


def test_accuracy_finds_the_right_voice_and_notices_a_wrong_one():
    table, speakers = voices(30, noise=0.0)
    other = np.roll(table, 1, axis=0)  # each item in the next speaker's voice
    columns = {"synthetic": list(table), "codec": list(other), "real": list(table)}
    scores = similarity(columns, "real", speakers, [None] * 30)
    assert scores["voice_accuracy"].value == scores["voice_accuracy_real"].value == 1.0
    assert scores["voice_accuracy_codec"].value == 0.0 and scores["voice_accuracy_codec"].total == 30
    assert "similarity" not in scores


def test_relative_embeddings_lose_what_varies_within_speakers():
    table, speakers = voices(60, noise=20.0)
    columns = {"real": list(table)}
    plain = similarity(columns, "real", speakers, [None] * 60)["voice_accuracy_real"].value
    relative = similarity(columns, "real", speakers, [None] * 60, relative=True)["voice_accuracy_real"].value
    assert plain < 0.7 < 0.95 < relative


def test_relative_embeddings_lose_what_a_codec_does_to_all_voices():
    table, speakers = voices(60, noise=0.0)
    columns = {"codec": list(table + np.array([3.0, 0, 0, 0], np.float32)), "real": list(table)}
    plain = similarity(columns, "real", speakers, [None] * 60)
    relative = similarity(columns, "real", speakers, [None] * 60, relative=True)
    assert plain["voice_accuracy_codec"].value < 0.5
    assert relative["voice_accuracy_codec"].value == relative["voice_accuracy_real"].value == 1.0
    # One voice for all is not made right by it.
    one = similarity({"codec": [table[0]] * 60, "real": list(table)}, "real", speakers, [None] * 60, relative=True)
    assert one["voice_accuracy_codec"].value < 0.5


def test_an_items_own_recording_does_not_help_it():
    """Random vectors: without the halves each would be nearest to the centroid that it is part of."""
    rng = np.random.default_rng(1)
    table, speakers = rng.standard_normal((80, 200)), [f"s{i % 4}" for i in range(80)]
    scores = similarity({"real": list(table)}, "real", speakers, [None] * 80, relative=True)
    assert scores["voice_accuracy_real"].value < 0.5
    space = VoiceSpace.of(table, speakers, relative=True)
    assert np.mean([a == b for a, b in zip(space.nearest(table), speakers)]) > 0.9


def test_speakers_that_are_not_known_or_alone():
    vectors = [np.array(v, np.float32) for v in ([1, 0], [1, 0.1], [0, 1], [0.5, 0.5])]
    scores = similarity({"synthetic": vectors, "real": vectors}, "real", ["a", "a", "b", None], [None] * 4)
    assert scores["voice_accuracy"].total == 2  # b has one recording only, the last no name
    assert similarity({"synthetic": vectors, "real": [None] * 4}, "real", ["a"] * 4, [None] * 4) == {}


def test_speaking_rate_is_of_all_items_and_counts_what_is_spoken():
    texts = ["One, two: three!", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "nothing"]
    seconds = {"synthetic": [2.0, 0.5, 0.0], "codec": [1.0, None, None], "real": [None, None, None]}
    scores = speaking_rate(texts, seconds, ["en", "zh", None])
    assert list(scores) == ["speaking_rate", "speaking_rate_codec"]
    assert scores["speaking_rate"].value == (11 + 4) / 2.5 and scores["speaking_rate_codec"].value == 11
    assert scores["speaking_rate"].details == {"items": 2, "words_per_second": (3 + 4) / 2.5}
    assert 11 / 2 <= scores["speaking_rate"].low <= scores["speaking_rate"].high <= 4 / 0.5
