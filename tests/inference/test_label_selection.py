"""Thresholds of pseudo-labels: what is kept, what is expected of it, and calibration on records whose errors are
known."""

from math import log

import numpy as np
import pytest

from stentor.config.load import parse_section
from stentor.config.prepare.steps import LabelsStep
from stentor.inference.labels.calibration import ErrorModel, Labelled, Outcome, fit_words, outcome
from stentor.inference.labels.selection import choose, drawn, fit_pace
from stentor.inference.segments.base import Segment
from stentor.inference.segments.label import Decoding, _signs


def records(count: int, seed: int) -> tuple[list[Outcome], np.ndarray]:
    """Outcomes of records of ten words whose confidence is too high: the share of errors is three times its distance
    from 1; and these shares."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.75, 0.99, count)
    errors = 3 * (1 - confidence)
    outcomes = [Outcome((float(c), 1.0), int(generator.binomial(10, e)), 10) for c, e in zip(confidence, errors)]
    return outcomes, errors


def test_the_expected_error_is_the_true_one():
    outcomes, _ = records(400, 0)
    model = ErrorModel(outcomes)
    others, truth = records(2000, 1)
    expected = model.errors([o.signs for o in others])
    assert expected.shape == (201, 2000)
    assert np.abs(expected[0] - truth).mean() < 0.03 and abs(expected[0].mean() - truth.mean()) < 0.02
    raw = ErrorModel().errors([o.signs for o in others])[0]
    assert raw == pytest.approx([1 - o.signs[0] for o in others], abs=1e-9)
    assert np.abs(raw - truth).mean() > 0.15


@pytest.mark.long
def test_an_upper_bound_holds_as_often_as_it_says():
    """The error that was wished for is true of what was kept for about four in five labelled sets of 60 records."""
    others, truth = records(3000, 100)
    below, shares = [], []
    for seed in range(20):
        model = ErrorModel(records(60, seed)[0])
        errors = model.errors([o.signs for o in others])
        chosen = choose(errors, [10] * len(others), [1.0] * len(others), 0.2, 0.8)
        below.append(truth[sorted(chosen.kept)].mean() <= 0.2)
        shares.append(chosen.summary["kept_share"])
    assert 0.6 < np.mean(below) < 1 and 0.2 < np.mean(shares) < 0.6


def test_a_higher_error_keeps_more():
    errors = np.linspace(0.01, 0.5, 50)[None].repeat(3, 0) * np.array([[1.0], [0.9], [1.2]])
    kept = [choose(errors, [5] * 50, [2.0] * 50, wished, 0.8) for wished in (0.005, 0.05, 0.1, 0.2, 0.6)]
    sizes = [len(choice.kept) for choice in kept]
    assert sizes == sorted(sizes) and len(set(sizes)) == 5 and (sizes[0], sizes[-1]) == (0, 50)
    assert kept[0].summary["min_confidence"] is None and kept[0].summary["kept_share"] == 0
    for choice, wished in zip(kept[1:], (0.05, 0.1, 0.2, 0.6)):
        assert choice.summary["expected_error"] < choice.summary["upper"] <= wished
        assert choice.kept == set(range(len(choice.kept))) and choice.seconds == 2 * len(choice.kept)
    points = kept[2].summary["curve"]
    assert len(points) == 20 and points[-1]["kept_share"] == 1
    for key in ("kept_share", "expected_error", "upper", "hours"):
        assert [p[key] for p in points] == sorted(p[key] for p in points)
    assert choose(np.zeros((1, 0)), [], [], 0.1, 0.8).kept == set()


def test_most_hours_and_records_of_one_confidence():
    errors = np.array([[0.1, 0.1, 0.2, 0.2, 0.3]])
    assert len(choose(errors, [1] * 5, [3600.0] * 5, 0.5, 0.8, hours=3).kept) == 2  # the third has the fourth's
    assert len(choose(errors, [1] * 5, [3600.0] * 5, 0.5, 0.8, hours=4).kept) == 4
    assert choose(errors, [1] * 5, [3600.0] * 5, 0.5, 0.8, hours=1.5).kept == set()


def test_long_records_count_by_their_words():
    errors = np.array([[0.0, 0.4]])
    assert len(choose(errors, [30, 10], [1.0, 1.0], 0.1, 0.8).kept) == 2
    assert len(choose(errors, [10, 30], [1.0, 1.0], 0.1, 0.8).kept) == 1


def test_by_lot():
    seconds = [1.0, 2.0, 3.0] * 40
    kept = drawn(seconds, 100.0, 0)
    assert sum(seconds[i] for i in kept) == 100
    assert kept == drawn(seconds, 100.0, 0) != drawn(seconds, 100.0, 1)
    assert drawn(seconds, 0.0, 0) == set() and len(drawn(seconds, 1000.0, 0)) == 120
    uneven = np.random.default_rng(0).uniform(1, 20, 100).tolist()
    assert all(85 < sum(uneven[i] for i in drawn(uneven, 100.0, seed)) <= 100 for seed in range(20))
    assert drawn([20.0, 20.0, 4.0], 5.0, 0) == {2}, "what is too long is passed over"
    assert len(drawn(uneven, sum(sorted(uneven)), 0)) == 100


def test_ways_of_decoding_are_written_as_the_command_line_reads_them():
    """Also a path with a comma."""
    ways = [Decoding(language_model="a,b.txt", beams=4), Decoding(speed=0.9)]
    step = LabelsStep(data={"type": "jsonl", "path": "x"}, to="y", models=["m"], decodings=ways)
    assert [parse_section(spec, Decoding, "--decoding") for spec in step.options()["decoding"]] == ways


def test_words_of_scripts_without_spaces_vote_one_by_one():
    tokens = [{"token": token, "logprob": log(p)} for token, p in (("今日", 0.5), ("は", 0.8), (" ok", 0.9))]
    assert _signs(tokens) == [["今", 0.5, 0.5], ["日", 0.5, 0.5], ["は", 0.8, 0.8], ["ok", 0.9, 0.9]]


def test_words_of_a_model_that_is_too_sure():
    generator = np.random.default_rng(0)
    labelled = []
    for _ in range(100):
        right = generator.random(10) < 0.6
        words = [[f"w{i}" if ok else "x", 0.9, 0.95] for i, ok in enumerate(right)]
        text = " ".join(f"w{i}" for i in range(10))
        labelled.append(Labelled(Segment(0, 1, {"signs": [words], "text": "w0 w1"}), text, None))
    from stentor.metrics.calibration import confidence

    assert confidence([0.9, 0.95], fit_words(labelled, 0)) == pytest.approx(0.6, abs=0.04)
    label = Segment(0, 1, {"text": "W0, w2!", "confidence": 0.5, "agreement": 0.8})
    seen = outcome(Labelled(label, labelled[0].text, None))
    assert seen == Outcome((0.5, 0.8), 8, 10)


def test_speakers_are_resampled_whole_where_there_are_many():
    """Speakers that err apart make the bound wider than as many records alone do."""
    generator = np.random.default_rng(0)
    rates = [0.02, 0.5] * 6
    of = [
        (Outcome((0.9, 1.0), int(generator.binomial(10, rate)), 10, f"s{i}"), rate)
        for i, rate in enumerate(rates)
        for _ in range(20)
    ]
    named = ErrorModel([o for o, _ in of]).errors([(0.9, 1.0)])[:, 0]
    alone = ErrorModel([Outcome(o.signs, o.errors, o.words) for o, _ in of]).errors([(0.9, 1.0)])[:, 0]
    assert named[0] == alone[0] and np.std(named) > 2 * np.std(alone)


def test_pace_of_labelled_records():
    from lhotse.cut import MonoCut
    from lhotse.supervision import SupervisionSegment

    def cut(i: int, text: str, seconds: float) -> MonoCut:
        return MonoCut(str(i), 0, seconds, 0, [SupervisionSegment(str(i), str(i), 0, seconds, text=text)])

    cuts = [cut(i, "a" * (10 + i), 0.5 + (10 + i) / 15) for i in range(60)]
    pace = fit_pace(cuts)
    assert pace is not None and pace.factor("a" * 30, 2.5) == pytest.approx(1, abs=0.01)
    assert pace.low == pytest.approx(0.8, abs=0.01) and pace.high == pytest.approx(1.25, abs=0.01)
    assert fit_pace(cuts[:10]) is None
