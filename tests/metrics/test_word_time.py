"""Word time metrics against figures worked out by hand and against straightforward computations."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.metrics import wer
from stentor.metrics.format import figure, is_rate
from stentor.metrics.word_match import match
from stentor.metrics.word_time import score


def timed(text, *times, **more):
    """Words with (start, end) pairs; `confidence=[...]` gives each its own."""
    extra = [dict(zip(more, values, strict=True)) for values in zip(*more.values(), strict=True)] or [{}] * len(times)
    return [{"word": w, "start": s, "end": e, **x} for w, (s, e), x in zip(text.split(), times, extra, strict=True)]


REFERENCE = timed("the cat sat down", (0.0, 0.2), (0.2, 0.6), (0.7, 1.0), (1.0, 1.5))
# "cat" is heard as "hat"; "the" is 10 and 30 ms late, "sat" 20 ms early and right, "down" right and 150 ms late.
HYPOTHESIS = timed(
    "The hat sat, down.", (0.01, 0.23), (0.2, 0.6), (0.68, 1.0), (1.0, 1.65), confidence=[0.95, 0.9, 0.8, 0.55]
)


def test_errors_worked_out_by_hand():
    scores = score([REFERENCE], [HYPOTHESIS])
    assert next(iter(scores)) == "word_time_mean_ms"
    values = {name: s.value for name, s in scores.items()}
    assert values["word_time_median_ms"] == pytest.approx(15)  # of 0 0 10 20 30 150
    assert values["word_time_mean_ms"] == values["aas_ms"] == pytest.approx(35)
    assert values["word_start_median_ms"] == pytest.approx(10) and values["word_start_mean_ms"] == pytest.approx(10)
    assert values["word_end_median_ms"] == pytest.approx(30) and values["word_end_mean_ms"] == pytest.approx(60)
    shares = [(scores[f"within_{t}ms"].errors, scores[f"within_{t}ms"].total) for t in (20, 50, 100, 200)]
    assert shares == [(2, 6), (1, 6), (1, 6), (0, 6)]
    assert [values[f"within_{t}ms"] for t in (20, 50, 100, 200)] == pytest.approx([4 / 6, 5 / 6, 5 / 6, 1])
    assert [values[f"word_f1_{t}ms"] for t in (20, 50, 100, 200)] == pytest.approx([1 / 4, 2 / 4, 2 / 4, 3 / 4])
    assert (values["words_matched"], scores["words_matched"].errors) == (0.75, 1)
    details = scores["word_time_mean_ms"].details
    assert (details["matched_words"], details["boundaries"], details["reference_words"]) == (3, 6, 4)
    json.dumps({k: s.as_dict() for k, s in scores.items()}, allow_nan=False)


def test_calibration():
    scores = score([REFERENCE], [HYPOTHESIS])
    # 0.95 and 0.9 share a bin, of which one word is right; 0.8 and 0.55 are alone and right.
    assert scores["ece"].value == pytest.approx((abs(1.85 - 1) + abs(0.8 - 1) + abs(0.55 - 1)) / 4)
    bins = scores["ece"].details["bins"]
    assert [b["words"] for b in bins] == [0, 0, 0, 0, 0, 1, 0, 0, 1, 2]
    assert (bins[9]["confidence"], bins[9]["accuracy"]) == (pytest.approx(0.925), 0.5)
    assert bins[0]["confidence"] is None
    sure = score([REFERENCE], [[{**w, "confidence": 1.0} for w in REFERENCE]])["ece"]
    assert (sure.value, sure.details["bins"][9]["words"]) == (0.0, 4)


def test_late_is_positive_and_the_histogram_counts_every_boundary():
    details = score([REFERENCE], [HYPOTHESIS])["word_time_mean_ms"].details
    edges, ends = details["histogram"]["edges_ms"], details["histogram"]["end"]
    assert {edges[i]: n for i, n in enumerate(ends["counts"]) if n} == {0: 1, 30: 1, 150: 1}
    assert (ends["mean_ms"], ends["below"], ends["above"]) == (pytest.approx(60), 0, 0)
    early = timed("the", (-0.5, 0.4))
    histogram = score([REFERENCE[:1]], [early])["word_time_mean_ms"].details["histogram"]
    assert (histogram["start"]["below"], histogram["end"]["above"]) == (1, 1)


def test_the_worst_come_first_by_name():
    scores = score([REFERENCE, REFERENCE], [REFERENCE, HYPOTHESIS], ids=["good", "bad"])
    details = scores["word_time_mean_ms"].details
    assert [(w["item"], w["word"]) for w in details["worst_words"]] == [("bad", "down"), ("bad", "the"), ("bad", "sat")]
    assert details["worst_words"][0]["end_error_ms"] == pytest.approx(150)
    assert details["worst_words"][0]["hypothesis"] == [1.0, 1.65]
    assert [(i["item"], i["mean_ms"]) for i in details["worst_items"]] == [("bad", pytest.approx(35)), ("good", 0)]


def test_a_boundary_on_the_collar_is_inside():
    # 0.37 - 0.35 is more than 0.02 in floating point.
    scores = score([timed("a", (0.35, 0.35))], [timed("a", (0.37, 0.37))])
    assert scores["within_20ms"].value == scores["word_f1_20ms"].value == 1.0


@pytest.mark.parametrize(
    ("references", "hypotheses"),
    [
        ([], []),
        ([[]], [[]]),
        ([REFERENCE], [[]]),
        ([REFERENCE], [timed("nothing alike", (0, 1), (1, 2))]),
        ([timed("—", (0, 1))], [timed("...", (0, 1))]),
    ],
)
def test_without_matches_there_is_no_error_to_give(references, hypotheses):
    scores = score(references, hypotheses)
    for name in ("word_time_median_ms", "word_time_mean_ms", "aas_ms", "within_50ms", "ece"):
        plain = scores[name].as_dict()
        assert plain["value"] is None and "low" not in plain, name
        assert figure(name, scores[name].value) == "–"
    judged = sum(map(len, references)) and references != [timed("—", (0, 1))]
    assert scores["word_f1_50ms"].as_dict()["value"] == (0.0 if judged else None)
    json.dumps({k: s.as_dict() for k, s in scores.items()}, allow_nan=False)


def test_an_empty_reference_costs_precision_only():
    f1 = score([REFERENCE, []], [REFERENCE, timed("noise", (0, 1))])["word_f1_20ms"]
    assert (f1.details["precision"], f1.details["recall"]) == (4 / 5, 1.0)


def test_missing_times_are_counted():
    reference = [{"word": "the"}, {"word": "cat", "start": 0.2, "end": None}, *REFERENCE[2:]]
    scores = score([reference], [REFERENCE])
    details = scores["word_time_mean_ms"].details
    assert details["reference_words_without_times"] == 2
    assert details["boundaries"] == 5  # the start of "cat" is known
    f1 = scores["word_f1_50ms"]
    assert (f1.value, f1.details["hypothesis_words"], f1.details["reference_words"]) == (1.0, 2, 2)
    assert scores["words_matched"].value == 1.0

    hypothesis = [{"word": "the"}, {**REFERENCE[1], "end": math.nan}, *REFERENCE[2:]]
    scores = score([REFERENCE], [hypothesis])
    assert scores["word_time_mean_ms"].details["hypothesis_words_without_times"] == 2
    assert scores["word_f1_50ms"].value == 0.5
    json.dumps({k: s.as_dict() for k, s in scores.items()}, allow_nan=False)


def test_words_that_the_normaliser_leaves_nothing_of_are_not_scored():
    hypothesis = [{"word": "–", "start": 0.0, "end": 0.0}, *REFERENCE]
    scores = score([REFERENCE], [hypothesis])
    assert scores["word_f1_20ms"].value == 1.0
    assert scores["word_time_mean_ms"].details["words_not_scored"] == 1
    assert score([REFERENCE], [hypothesis], normalizer="none")["word_f1_20ms"].value == pytest.approx(8 / 9)


def test_words_that_one_side_writes_as_two_match_together():
    reference = timed("it's late", (0.0, 0.4), (0.4, 0.8))
    hypothesis = timed("it is late", (0.0, 0.2), (0.2, 0.45), (0.45, 0.8))
    matched = match(reference, hypothesis, "whisper_english", "en")
    assert [(len(m.reference), len(m.hypothesis), m.start_error, m.end_error) for m in matched.pairs] == [
        (1, 2, 0.0, 50.0),
        (1, 1, 50.0, 0.0),
    ]
    assert [m.reference[0]["word"] for m in match(reference, hypothesis).pairs] == ["late"]  # "it s" is not "it is"


def test_languages_without_spaces_match_by_character_whatever_the_words_are():
    reference = [{"word": "今日", "start": 0.0, "end": 0.4}, {"word": "は", "start": 0.4, "end": 0.5}]
    hypothesis = [{"word": c, "start": i * 0.2, "end": (i + 1) * 0.2} for i, c in enumerate("今日は")]
    scores = score([reference], [hypothesis], languages=["ja"])
    assert scores["words_matched"].value == 1.0
    assert scores["word_time_mean_ms"].value == pytest.approx(25)
    assert scores["word_f1_50ms"].value == pytest.approx((1 + 2) / 5)
    # One wrong character: the word that it is in is not matched, and neither is a part of it.
    hypothesis[1]["word"] = "月"
    assert [m.reference[0]["word"] for m in match(reference, hypothesis, language="ja").pairs] == ["は"]


def test_the_end_of_a_word_is_not_the_word():
    today = [{"word": "今日", "start": 0.0, "end": 0.4}]
    day = [{"word": "日", "start": 0.2, "end": 0.4}]
    assert match(today, day, language="ja").pairs == match(day, today, language="ja").pairs == []


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="2 references, 1 hypotheses"):
        score([REFERENCE, REFERENCE], [HYPOTHESIS])
    with pytest.raises(ValueError, match="one of each per item"):
        score([REFERENCE], [HYPOTHESIS], ids=["a", "b"])


def test_what_people_read_in_percent():
    assert all(map(is_rate, ("word_f1_50ms", "within_50ms", "words_matched", "ece")))
    assert not is_rate("word_time_median_ms") and not is_rate("aas_ms")


WORDS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 3000), st.integers(0, 300), st.integers(0, 20)), max_size=8
).map(
    lambda rows: [
        {"word": w, "start": s / 1000, "end": (s + d) / 1000, "confidence": c / 20}
        for w, s, d, c in sorted(rows, key=lambda row: row[1])
    ]
)
SETS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5)


@settings(max_examples=20, deadline=None)
@given(SETS)
def test_agrees_with_the_plain_computation(pairs):
    references, hypotheses = map(list, zip(*pairs))
    scores = score(references, hypotheses, normalizer="none")
    errors, good, reference_words, hypothesis_words = [], {50: 0, 200: 0}, 0, 0
    sure, right = [], []
    for reference, hypothesis in pairs:
        steps = wer.align([w["word"] for w in reference], [w["word"] for w in hypothesis])
        left, over = iter(reference), iter(hypothesis)
        for step, a, b in steps:
            r = next(left) if a is not None else None
            h = next(over) if b is not None else None
            if h is not None:
                sure.append(h["confidence"])
                right.append(step == "equal")
            if step == "equal":
                both = [1000 * (h[k] - r[k]) for k in ("start", "end")]
                errors += both
                for collar in good:
                    good[collar] += max(map(abs, both)) <= collar + 1e-6
        reference_words, hypothesis_words = reference_words + len(reference), hypothesis_words + len(hypothesis)
    if errors:
        assert scores["word_time_median_ms"].value == pytest.approx(np.median(np.abs(errors)), abs=1e-6)
        assert scores["word_time_mean_ms"].value == pytest.approx(np.mean(np.abs(errors)), abs=1e-6)
        assert scores["within_100ms"].value == pytest.approx(np.mean(np.abs(errors) <= 100 + 1e-6))
        for name in ("word_time_median_ms", "word_time_mean_ms", "word_end_median_ms", "within_100ms"):
            interval = scores[name]
            assert interval.low - 1e-9 <= interval.high and np.isfinite([interval.low, interval.high]).all()
    for collar, count in good.items():
        if reference_words + hypothesis_words:
            assert scores[f"word_f1_{collar}ms"].value == pytest.approx(
                2 * count / (reference_words + hypothesis_words)
            )
    if sure:
        places = np.minimum((np.array(sure) * 10).astype(int), 9)
        expected = sum(
            abs(np.array(sure)[places == b].sum() - np.array(right)[places == b].sum()) for b in range(10)
        ) / len(sure)
        assert scores["ece"].value == pytest.approx(expected)


def test_intervals_are_those_of_resampled_sets():
    rng = np.random.default_rng(3)
    references, hypotheses = [], []
    for _ in range(30):
        count = int(rng.integers(1, 6))
        starts = np.sort(rng.uniform(0, 5, count))
        references.append([{"word": str(i), "start": s, "end": s + 0.1} for i, s in enumerate(starts)])
        hypotheses.append(
            [
                {**w, "start": w["start"] + rng.normal(0, 0.03), "end": w["end"] + rng.normal(0, 0.05)}
                for w in references[-1]
            ]
        )
    scores = score(references, hypotheses)
    assert scores["word_time_median_ms"].as_dict() == score(references, hypotheses)["word_time_median_ms"].as_dict()
    per_item = [
        np.abs([1000 * (h[k] - r[k]) for r, h in zip(rs, hs) for k in ("start", "end")])
        for rs, hs in zip(references, hypotheses)
    ]
    drawn = np.random.default_rng(0)  # the same resamples, written out
    medians = [np.median(np.concatenate([per_item[i] for i in drawn.integers(30, size=30)])) for _ in range(1000)]
    median = scores["word_time_median_ms"]
    np.testing.assert_allclose((median.low, median.high), np.quantile(medians, [0.025, 0.975]), rtol=1e-6)
    assert median.low < median.value < median.high
    assert scores["word_time_mean_ms"].low < scores["word_time_mean_ms"].value < scores["word_time_mean_ms"].high
