"""Latency and churn of events that are written by hand."""

import math

import pytest

from stentor.metrics.stream import StreamedRecording, stream_scores

SAID = [{"word": "One", "start": 0.1, "end": 0.4}, {"word": "two", "start": 0.5, "end": 0.9}]


def event(kind, time, computed=0.0, **facts):
    return {"type": kind, "time": time, "done": time + computed, **facts}


def test_times_of_words():
    events = [
        event("partial", 0.3, text="on"),
        event("partial", 0.5, text="one"),
        event("partial", 0.8, text="one too"),
        event("word", 1.0, 0.2, word="one"),
        event("partial", 1.0, text="two"),
        event("word", 1.5, 0.1, word="two"),
        event("partial", 1.5, text=""),
    ]
    scores = {name: score.value for name, score in stream_scores([StreamedRecording(SAID, events, 2.0, 0.5)]).items()}
    assert scores["final_p50"] == pytest.approx(0.6) and scores["final_p90_computed"] == pytest.approx(0.79)
    assert scores["shown_p50"] == pytest.approx(0.1)  # "one" since 0.5 s, "two" since 1.0 s
    assert scores["first_p50"] == pytest.approx(0.2)
    assert scores["churn"] == 0.5  # "too"; "on" went on to "one"
    assert scores["rtf"] == 0.25


def test_words_that_were_not_recognised_have_no_latency():
    events = [event("word", 1.0, word="ten"), event("word", 1.0, word="two")]
    scores = stream_scores([StreamedRecording(SAID, events, 1.0, 0.1), StreamedRecording([], [], 1.0, 0.1)])
    assert scores["final_p50"].total == 1 and scores["final_p50"].value == pytest.approx(0.1)
    nothing = stream_scores([StreamedRecording(SAID, [], 1.0, 0.0)])
    assert math.isnan(nothing["final_p50"].value) and math.isnan(nothing["churn"].value)
