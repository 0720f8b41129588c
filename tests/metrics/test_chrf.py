"""chrF of translations, against figures that were worked out by hand."""

import math

import pytest

from stentor.metrics.wer import chrf


def test_equal_texts_score_one_and_strangers_zero():
    assert chrf(["good morning"], ["good morning"]).value == 1.0
    assert chrf(["abc"], ["xyz"]).value == 0.0
    assert chrf(["abc"], [""]).value == 0.0
    assert math.isnan(chrf([], []).value)


def test_a_pair_by_hand():
    # "abcd" for "abce": 3/4 unigrams, 2/3 bigrams, 1/2 trigrams, 0/1 of four; longer n-grams are on neither side.
    # Precision and recall are both their mean, so the F-score is that mean.
    assert chrf(["abce"], ["ab cd"]).value == pytest.approx((3 / 4 + 2 / 3 + 1 / 2 + 0) / 4)
    # "ab" for "abab": unigrams 2 of 2 and 2 of 4, bigrams 1 of 1 and 1 of 3; recall counts four times.
    precision, recall = 1.0, (2 / 4 + 1 / 3) / 2
    assert chrf(["abab"], ["ab"]).value == pytest.approx(5 * precision * recall / (4 * precision + recall))


def test_counts_are_of_the_set_and_repeat():
    score = chrf(["abcdef", "gh", "kl"], ["abcdef", "xy", "kl"])
    # unigrams 8 of 10, bigrams 6 of 7, then 4/4, 3/3, 2/2, 1/1 of the longest text alone
    assert score.value == pytest.approx((8 / 10 + 6 / 7 + 4) / 6)
    assert score.low < score.value < score.high
    assert chrf(["abcdef", "gh", "kl"], ["abcdef", "xy", "kl"]) == score
