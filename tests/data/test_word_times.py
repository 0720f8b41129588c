"""Word times in order, for all commands and formats."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.data.word_times import LEAST, in_order


def timed(*spans, **options):
    words = in_order([{"word": "w", "start": start, "end": end} for start, end in spans], **options)
    return [(word["start"], word["end"]) for word in words]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0.1, 0.5), (0.46, 0.9)], [(0.1, 0.48), (0.48, 0.9)]),
        ([(0.1, 0.4), (0.6, 0.6), (0.8, 1.0)], [(0.1, 0.4), (0.58, 0.6), (0.8, 1.0)]),
        ([(0.1, 0.5), (0.5, 0.5), (0.5, 0.9)], [(0.1, 0.5), (0.5, 0.52), (0.52, 0.9)]),
        ([(0.5, 0.3), (0.4, 0.9)], [(0.28, 0.3), (0.4, 0.9)]),
        ([(0.2, 0.4), (0.99, 1.3), (1.2, 1.2)], [(0.2, 0.4), (0.96, 0.98), (0.98, 1.0)]),
        ([(0.1, 0.2), (0.300001, 0.4)], [(0.1, 0.2), (0.3, 0.4)]),
    ],
)
def test_words_that_overlap_are_too_short_or_end_before_they_begin(spans, expected):
    assert timed(*spans, end=1.0) == expected


def test_speakers_may_overlap_and_words_without_times_stay():
    words = [{"speaker": "A", "start": 0.0, "end": 1.0}, {"speaker": "B", "start": 0.5, "end": 0.7}]
    assert in_order(words) == words
    assert in_order([{"start": None, "end": None}, {"start": 0.1, "end": 0.2}], begin=0.15) == [
        {"start": None, "end": None},
        {"start": 0.15, "end": 0.2},
    ]


@given(st.lists(st.tuples(st.floats(-1, 4), st.floats(-1, 4)), max_size=250), st.floats(0, 0.5))
def test_any_times_are_put_in_order(spans, begin):
    times = [round(1000 * t) for span in timed(*spans, end=3.0, begin=begin) for t in span]
    assert times == sorted(times) and all(round(1000 * begin) <= t <= 3000 for t in times)
    least = min(round(1000 * LEAST), (3000 - round(1000 * begin)) // max(1, len(spans)))
    assert all(end - start >= least for start, end in zip(times[::2], times[1::2]))
    opened = timed(*spans, begin=begin)
    assert all(a[1] <= b[0] for a, b in pairwise(opened)) and all(b - a > LEAST - 1e-6 for a, b in opened)
