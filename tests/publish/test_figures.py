import itertools
import re

import pytest

from stentor.metrics.format import count, duration, figure
from stentor.report.curves import all_charts
from stentor.report.examples import choose, compare
from stentor.report.figures import POINTS, ChartStyle, Curve, chart


def points(path):
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_axes_start_and_end_at_round_values():
    drawn = chart("t", [Curve("a", [0, 100], [0.013, 0.47])], ChartStyle(log=False))
    assert [t.label for t in drawn.yticks] == ["0", "0.2", "0.4", "0.6"]
    assert [t.at for t in drawn.yticks] == pytest.approx([0, 33.33, 66.67, 100], abs=0.01)
    assert [t.label for t in drawn.xticks] == ["0", "20", "40", "60", "80", "100"]
    (x0, y0), (x1, y1) = points(drawn.lines[0].path)
    assert (x0, x1) == (0, 1000)
    assert y0 == pytest.approx(1000 - 1000 * 0.013 / 0.6, abs=0.1)
    assert y1 == pytest.approx(1000 - 1000 * 0.47 / 0.6, abs=0.1)


@pytest.mark.parametrize(
    ("values", "zero", "ends"),
    [
        ([0.05, 1.0], True, ("0 %", "100 %")),
        ([1.0, 1.0], False, ("90 %", "100 %")),
        ([0.1, 1.02], True, ("0 %", "150 %")),
    ],
)
def test_shares_end_at_100_percent_unless_the_values_exceed_it(values, zero, ends):
    drawn = chart("t", [Curve("a", [0, 1], values)], ChartStyle(percent=True, zero=zero, log=False))
    assert (drawn.yticks[0].label, drawn.yticks[-1].label) == ends and drawn.yticks[-1].at == 100


def test_a_wide_spread_gets_a_logarithmic_axis():
    drawn = chart("t", [Curve("a", [0, 1, 2], [100, 1, 0.01])])
    assert drawn.log
    assert "log scale" in drawn.note
    ys = [y for _, y in points(drawn.lines[0].path)]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)
    assert {"0.01", "1", "100"} <= {t.label for t in drawn.yticks}
    assert not chart("t", [Curve("a", [0, 1], [100, 0.0])]).log  # zero has no logarithm


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [0.0, 0.0], [-3.0, -3.0], [1e-12, 1e12], [1e-9, 2e-9]])
def test_odd_values_still_make_an_axis(values):
    drawn = chart("t", [Curve("a", list(range(len(values))), values)])
    assert len(drawn.yticks) >= 2
    assert all(-0.01 <= t.at <= 100.01 for t in drawn.yticks + drawn.xticks)


def test_no_spike_is_lost_to_thinning():
    n = 20_000
    values = [1.0] * n
    values[12_345] = 9.0
    drawn = chart("t", [Curve("a", list(range(n)), values)], ChartStyle(smooth=True))
    line = drawn.lines[0]
    assert len(line.xs) <= POINTS
    assert line.xs[-1] == n - 1
    top = min(y for _, y in points(line.raw))
    assert top == pytest.approx(1000 - 1000 * (9 - drawn.bounds[2]) / (drawn.bounds[3] - drawn.bounds[2]), abs=0.2)


def test_the_best_value_is_ringed():
    curve = Curve("a", [0, 50, 100], [3, 1, 2])
    assert chart("t", [curve], ChartStyle(best="min")).lines[0].best[0] == 50
    assert chart("t", [curve], ChartStyle(best="max")).lines[0].best[0] == 0


def test_texts_beside_near_points_do_not_lie_over_one_another():
    xs, ys = [70, 70.2, 70.4, 70.6, 95], [0.11, 0.11, 0.12, 0.11, 0.11]
    curve = Curve("wer", xs, ys, ["1:3:0.5", "1:3:1", "1:3:2", "1:3:4", "1:3:8"])
    labels = chart("t", [curve], ChartStyle(percent=True, log=False, unit="%")).lines[0].labels
    assert labels[4][1] == labels[0][1] and all(0 <= bottom <= 100 for _, bottom, _ in labels)  # the last has room
    bottoms = sorted(bottom for _, bottom, _ in labels[:4])
    assert all(high - low > 7.9 for low, high in itertools.pairwise(bottoms))


@pytest.mark.parametrize(
    ("xs", "ends"), [([67, 80], (65, 80.75)), ([20, 80], (0, 84)), ([80], (0, 84)), ([80, 80], (0, 84))]
)
def test_an_axis_that_counts_no_steps_begins_where_the_values_do(xs, ends):
    assert chart("t", [Curve("a", xs, xs)], ChartStyle(unit="%")).bounds[:2] == pytest.approx(ends)


def test_stages_are_laid_end_to_end():
    rows = [{"step": s, "train/loss": 1.0 + s, "stage": stage} for stage in ("1", "2") for s in (10, 20)]
    (drawn,) = all_charts(rows)
    assert drawn.lines[0].xs == [10, 20, 30, 40]
    assert [(b.at, b.label) for b in drawn.borders] == [(50, "stage 2")]


def test_missing_and_infinite_values_leave_gaps():
    rows = [{"step": 1, "train/loss": None}, {"step": 2, "train/loss": float("inf")}, {"step": 3, "train/loss": 2.0}]
    assert all_charts(rows)[0].lines[0].xs == [3]
    assert all_charts([]) == []


def kinds(cells):
    return [(c.kind, c.reference, c.output) for c in cells]


def test_differences_are_found_on_normalised_words_and_shown_as_written():
    cells = compare("Hello, World . Good day", "hello word good fine day", "whisper_basic", "en")
    assert kinds(cells) == [
        ("equal", "Hello,", "hello"),
        ("substitute", "World", "word"),
        ("equal", "Good", "good"),
        ("insert", None, "fine"),
        ("equal", "day", "day"),
    ]
    assert [c[0] for c in kinds(compare("Hello World", "hello world", "none", "en"))] == ["substitute"] * 2


def test_languages_without_spaces_are_compared_by_characters():
    assert [c.kind for c in compare("今日は雨", "今日も雨", "whisper_basic", "ja")] == [
        "equal",
        "equal",
        "substitute",
        "equal",
    ]


def test_confidence_belongs_to_the_word():
    words = [{"word": "a", "confidence": 0.9}, {"word": "c", "confidence": 0.1}]
    assert [c.confidence for c in compare("a b c", "a c", "none", "en", words)] == [0.9, None, 0.1]


def test_the_worst_come_first_and_none_twice():
    rows = [
        {"id": str(i), "reference": {"text": "a b c d"}, "output": {"text": " ".join("abcd"[: 4 - i % 4])}}
        for i in range(40)
    ]
    worst, typical = choose(rows, "none", worst=5, typical=5)
    assert [e.errors for e in worst] == [3] * 5
    assert len({e.id for e in worst + typical}) == 10
    assert choose(rows, "none", worst=5, typical=5) == (worst, typical)


def test_figures_for_people():
    assert figure("wer", 0.03611) == "3.61 %"
    assert figure("dev/ctc_wer", 1.0) == "100.00 %"
    assert figure("loss", 0.04183) == "0.04183"
    assert [duration(s) for s in (4.25, 59.7, 200, 7500)] == ["4.2 s", "1 min 00 s", "3 min 20 s", "2 h 05 min"]
    assert [count(n) for n in (950, 12_345, 4_210_000, 7.3e9)] == ["950", "12.3 k", "4.21 M", "7.3 G"]
