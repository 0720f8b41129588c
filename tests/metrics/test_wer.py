"""Error rates against jiwer, what they are made of and what their intervals draw, and chrF by hand."""

import math

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.callbacks.console import scores_text
from stentor.metrics.diarization import DiarizedRecording, der
from stentor.metrics.format import interval
from stentor.metrics.score import FEWEST_SPEAKERS, bootstrap, by_unit
from stentor.metrics.speech import share
from stentor.metrics.wer import align, chrf, count_errors, frequent_errors, rate, relative_change, score

WORDS = st.lists(st.sampled_from(["a", "b", "c", "the", "cat", "sat", "on", "mat"]), max_size=8).map(" ".join)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8)


def word_errors(pairs):
    return count_errors((reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


@settings(max_examples=200, deadline=None)
@given(PAIRS)
def test_word_errors_agree_with_jiwer(pairs):
    references, hypotheses = [list(side) for side in zip(*pairs)]
    counts = word_errors(pairs)
    theirs = jiwer.process_words(references, hypotheses)
    assert rate(counts) == pytest.approx(theirs.wer)
    assert counts[:, :3].sum() == theirs.substitutions + theirs.deletions + theirs.insertions
    # The number of insertions minus deletions is fixed by the lengths, however ties are aligned.
    assert counts[:, 2].sum() - counts[:, 1].sum() == theirs.insertions - theirs.deletions


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_character_errors_agree_with_jiwer(pairs):
    references, hypotheses = [list(side) for side in zip(*pairs)]
    assert rate(count_errors((list(r), list(h)) for r, h in pairs)) == pytest.approx(
        jiwer.process_characters(references, hypotheses).cer
    )


@settings(max_examples=100, deadline=None)
@given(WORDS, WORDS)
def test_alignment_spells_both_sides_with_the_fewest_edits(reference, hypothesis):
    steps = align(reference, hypothesis)
    assert [r for _, r, _ in steps if r is not None] == reference.split()
    assert [h for _, _, h in steps if h is not None] == hypothesis.split()
    for step, r, h in steps:
        assert step == ("insert" if r is None else "delete" if h is None else "equal" if r == h else "substitute")
    edits = sum(step != "equal" for step, _, _ in steps)
    assert edits == word_errors([(reference, hypothesis)])[0, :3].sum()


def test_counts_of_a_known_pair():
    assert word_errors([("the cat sat", "a cat sat down")]).tolist() == [[1, 0, 1, 3]]
    assert count_errors([(["the", "cat", "sat"], ["cat"])]).tolist() == [[0, 2, 0, 3]]


def test_empty_references_count_insertions_and_nothing_else():
    assert rate(word_errors([("", "a b"), ("x y", "x y")])) == pytest.approx(2 / 2)
    # A set without any reference word: the total is taken as 1, as jiwer does.
    assert rate(word_errors([("", "a b")])) == jiwer.wer([""], ["a b"]) == 2
    assert rate(word_errors([("", "")])) == 0
    assert score([], []).value == 0


def test_bootstrap_repeats_and_holds_the_rate():
    rng = np.random.default_rng(1)
    totals = rng.integers(3, 20, 500)
    errors = rng.binomial(totals, 0.1)
    low, high = bootstrap(errors, totals)
    assert (low, high) == bootstrap(errors, totals)
    assert low < errors.sum() / totals.sum() < high
    # Binomial errors: the interval is close to the normal approximation, and shrinks with the square root.
    expected = 1.96 * np.sqrt(0.1 * 0.9 / totals.sum())
    assert (high - low) / 2 == pytest.approx(expected, rel=0.15)
    low4, high4 = bootstrap(np.tile(errors, 4), np.tile(totals, 4))
    assert (high4 - low4) / (high - low) == pytest.approx(0.5, rel=0.15)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(200):
        totals = np.full(100, 10)
        low, high = bootstrap(rng.binomial(totals, 0.2), totals, resamples=400, seed=seed)
        hits += low <= 0.2 <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_bootstrap_of_certain_and_of_no_items():
    assert bootstrap(np.zeros(5, int), np.full(5, 3)) == (0, 0)
    assert bootstrap(np.full(5, 3), np.full(5, 3)) == (1, 1)
    assert bootstrap(np.zeros(0, int), np.zeros(0, int)) == (0, 0)


def test_frequent_errors_in_order_of_count_then_alphabet():
    pairs = [("five", "nine"), ("five", "nine"), ("one two", "one"), ("b", "x"), ("a", "x"), ("one", "one oh")]
    errors = frequent_errors([(r.split(), h.split()) for r, h in pairs], top=2)
    assert errors == {
        "substitutions": [["five", "nine", 2], ["a", "x", 1]],
        "deletions": [["two", 1]],
        "insertions": [["oh", 1]],
    }


def test_score_normalises_and_breaks_down():
    result = score(
        ["Hello, World.", "good day", "bye"],
        ["hello world", "good night", "bye bye"],
        groups={"speaker": ["ann", "ben", "ben"], "language": ["en", "en", "en"]},
    )
    assert (result.errors, result.total, result.value) == (2, 5, pytest.approx(0.4))
    assert result.low <= result.value <= result.high
    assert result.details["by_speaker"]["ann"] == {"value": 0.0, "errors": 0, "total": 2, "items": 1}
    assert result.details["by_speaker"]["ben"]["errors"] == 2
    assert "by_language" not in result.details
    assert (result.details["substitutions"], result.details["insertions"], result.details["deletions"]) == (1, 1, 0)
    assert result.details["items_with_errors"] == 2
    assert score(["Hello, World."], ["hello world"], normalizer="none").errors == 2


def test_languages_without_spaces_count_characters():
    result = score(["今日は いい天気"], ["今日はいい天気です"], languages=["ja"])
    assert (result.errors, result.total) == (2, 7)
    english = score(["a b", "今日は"], ["a c", "今日"], languages=["en", "ja-JP"], normalizer="none")
    assert (english.errors, english.total) == (2, 5)


def test_insertions_are_no_words_that_are_wrong():
    """As many errors as words, and yet every word is right."""
    made = score(["one two", "three four"], ["one two a b", "three four c d"])
    assert made.value == 1 and (made.low, made.high) == (1.0, 1.0)
    wrong = score(["one two", "three four"], ["a b", "c d"])
    assert (wrong.low, wrong.high) == (0.25, 1.0)


def test_no_error_is_a_bound_and_no_certainty():
    """The rule of three against the exact bound, 1 - 0.05^(1/n), and in the words that people read."""
    texts = [f"word number {i}" for i in range(50)]
    clean, wrong = score(texts, texts), score(texts, [""] * 50)
    assert (clean.low, clean.high) == (0.0, 3 / 150)
    assert clean.high == pytest.approx(1 - 0.05 ** (1 / 150), rel=0.02)
    assert (wrong.low, wrong.high) == (1 - 3 / 150, 1.0)
    assert interval("wer", clean.as_dict()) == "0.00–2.00 %"
    assert scores_text({"wer": clean}) == "wer 0.00 % (0/150, 95 %: 0.00–2.00 %)"
    assert score(["one"], ["one"]).high == 1.0  # one word says nothing
    assert interval("wer", score(["one two"], ["one"]).as_dict()) == ""  # nor do resamples of a single item
    right = share([True] * 60)
    assert (right.low, right.high) == (0.95, 1.0)
    talk = [{"speaker": "x", "start": 0.0, "end": 1.0}]
    alone = DiarizedRecording("a", talk, talk, None, 1.0)
    assert (der([alone] * 100).low, der([alone] * 100).high) == (0.0, pytest.approx(0.03))  # recordings, not seconds


# Intervals: speakers where enough are known, else recordings ----------------------------------------------------------

SPEAKERS = [f"s{i // 20}" for i in range(120)]
REFERENCES = ["a b c d e"] * 120
HYPOTHESES = ["x y c d e" if s in ("s1", "s4") else "a b c d e" for s in SPEAKERS]
"""Two of six speakers have all errors."""


def test_speakers_are_drawn_whole():
    result = score(REFERENCES, HYPOTHESES, "none", groups={"speaker": SPEAKERS})
    assert (result.resampled, result.units) == ("speakers", 6)
    sums = np.array([0, 40, 0, 0, 40, 0]), np.full(6, 100)
    assert (result.low, result.high) == bootstrap(*sums)
    recordings = score(REFERENCES, HYPOTHESES, "none")
    assert (recordings.resampled, recordings.units) == ("recordings", 120)
    assert recordings.value == result.value and recordings.high - recordings.low < (result.high - result.low) / 2
    assert {"resampled": "speakers", "units": 6}.items() <= result.as_dict().items()
    assert "by 6 speakers" in scores_text({"wer": result})


@pytest.mark.parametrize(
    "speakers",
    [
        [f"s{i % 2}" for i in range(120)],  # two
        [f"s{i % (FEWEST_SPEAKERS - 1)}" for i in range(120)],  # too few
        [None, *SPEAKERS[1:]],  # one not known
        ["", *SPEAKERS[1:]],
        [None] * 120,
    ],
)
def test_recordings_are_drawn_where_speakers_are_few_or_not_known(speakers):
    result = score(REFERENCES, HYPOTHESES, "none", groups={"speaker": speakers})
    plain = score(REFERENCES, HYPOTHESES, "none")
    assert (result.resampled, result.units, result.low, result.high) == ("recordings", 120, plain.low, plain.high)
    known = len(set(speakers))
    assert (f"by 120 recordings of {known} speakers" in scores_text({"wer": result})) == (known > 1)


def test_without_speakers_the_text_says_nothing_of_them():
    assert "by" not in scores_text({"wer": score(REFERENCES, HYPOTHESES, "none")})


def test_changes_draw_speakers_too():
    after = ["x b c d e" if h != r else h for r, h in zip(REFERENCES, HYPOTHESES)]
    after[0] = "z b c d e"  # one more error for a speaker who had none
    change = relative_change(REFERENCES, HYPOTHESES, after, "none", speakers=SPEAKERS)
    assert (change.resampled, change.units) == ("speakers", 6)
    before = np.array([0, 40, 0, 0, 40, 0])
    assert (change.low, change.high) == bootstrap(np.array([1, -20, 0, 0, -20, 0]), before)
    assert change.details["better"] == pytest.approx(1 - (4 / 6) ** 6, abs=0.03)  # one of two speakers is drawn
    plain = relative_change(REFERENCES, HYPOTHESES, after, "none")
    assert plain.value == change.value and (plain.resampled, plain.units) == ("recordings", 120)


def test_sums_keep_their_kind():
    units, (whole, real) = by_unit(list("abcdea"), np.arange(6), np.full(6, 0.5))
    assert units == {"resampled": "speakers", "units": 5}
    assert (
        whole.tolist() == [5, 1, 2, 3, 4] and whole.dtype == np.arange(6).dtype and real.tolist() == [1.0, *[0.5] * 4]
    )


# chrF -----------------------------------------------------------------------------------------------------------------


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
