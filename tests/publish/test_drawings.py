"""Answers drawn for pages that Gradio makes: every word and stretch is there once, texts are escaped."""

import re

import numpy as np
import pytest
from page import Page

from stentor.report import drawings

RATE = 16000
EVIL = '"><img src=x onerror=alert(1)>'


def tone(seconds: float) -> np.ndarray:
    return (0.3 * np.sin(np.arange(round(seconds * RATE)) / 8)).astype(np.float32)


def words(*times, confidence=0.9):
    return [{"word": f"w{i}", "start": a, "end": b, "confidence": confidence} for i, (a, b) in enumerate(times)]


def test_words_stand_at_their_times_and_play_them():
    timed_words = words((0.5, 1.0), (9.5, 10.5), (12.0, 12.5))  # 16 s: two lines; the second word crosses none
    page = Page(drawings.words(timed_words, tone(16), RATE))
    buttons = page.all("button")
    assert [(b["data-start"], b["data-end"]) for b in buttons] == [
        ("0.500", "1.000"),
        ("9.500", "10.500"),
        ("12.000", "12.500"),
    ]
    assert "left:6.250%;width:6.250%" in buttons[0]["style"] and "left:18.750%;width:12.500%" in buttons[1]["style"]
    lines = [d for d in page.all("div") if d.get("class") == "score"]
    assert [(d["data-begin"], d["data-seconds"]) for d in lines] == [("0.0000", "8.0000"), ("8.0000", "8.0000")]
    assert len(page.all("audio")) == 1 and page.all("audio")[0]["src"].startswith("data:audio/flac;base64,")
    assert len(page.all("img")) == 2


def test_a_word_across_two_lines_is_on_both():
    page = Page(drawings.words(words((7.5, 8.5)), tone(16), RATE))
    assert [(b["data-start"], b["data-end"]) for b in page.all("button")] == [("7.500", "8.500")] * 2


def test_unsure_words_are_marked():
    (button,) = Page(drawings.words(words((0, 1), confidence=0.2), tone(2), RATE)).all("button")
    assert "unsure" in button["class"] and "confidence 0.20" in button["title"]


def test_long_recordings_are_drawn_in_part():
    timed_words = words((1, 2), (300, 301))
    drawn = drawings.words(timed_words, tone(310), RATE)
    assert "The first 120 of 310 s are drawn." in drawn and drawn.count("<button") == 1


def test_speakers_have_lanes():
    segments = [
        {"speaker": "ann", "start": 1.0, "end": 3.0},
        {"speaker": "ben", "start": 2.0, "end": 4.0},
        {"speaker": "ann", "start": 6.0, "end": 8.0},
    ]
    drawn = drawings.speakers(segments, tone(10), RATE)
    page = Page(drawn)
    places = [(r["x"], r["width"]) for r in page.all("rect")]
    assert places == [("100.00", "200.00"), ("600.00", "200.00"), ("200.00", "200.00")]
    assert "missed" not in drawn and "not heard" not in drawn  # nobody knows what is right


def test_speakers_over_a_reference_show_what_is_wrong():
    real = [{"speaker": "ann", "start": 1.0, "end": 3.0}]
    drawn = drawings.judged_speakers(real, [{"speaker": "A", "start": 1.0, "end": 2.0}], tone(5), RATE)
    assert "DER 50.00 %" in drawn and "missed 1.0 s" in drawn


def test_differences_are_marked():
    drawn = drawings.differences("one two three", "one too three four", ("First", "Second"))
    kinds = [s["class"] for s in Page(drawn).all("span") if s.get("class", "").startswith("pair")]
    assert kinds == ["pair equal", "pair substitute", "pair equal", "pair insert"]
    assert "First: one two three. Second: one too three four." in drawn


def test_a_sound_has_its_player_and_picture():
    page = Page(drawings.sound(tone(3), RATE))
    assert len(page.all("audio")) == len(page.all("img")) == 1 and not page.all("button")


@pytest.mark.parametrize("draw", ["words", "speakers"])
def test_nothing_is_told_as_such(draw):
    assert "Nothing was heard." in getattr(drawings, draw)([], tone(1), RATE)


def test_texts_are_escaped():
    evil = [{"word": EVIL, "start": 0.1, "end": 0.5, "confidence": 0.4}]
    spoken = [{"speaker": EVIL, "start": 0.1, "end": 0.5}]
    for drawn in (
        drawings.words(evil, tone(1), RATE),
        drawings.speakers(spoken, tone(1), RATE),
        drawings.judged_speakers(spoken, spoken, tone(1), RATE, EVIL),
        drawings.differences(EVIL, "b", (EVIL, EVIL)),
    ):
        assert "<img src=x" not in drawn and "&lt;img src=x" in drawn
        Page(drawn)


def test_the_style_reaches_nothing_but_drawings():
    """Every rule is nested below the drawings' own class."""
    css = re.sub(r"/\*.*?\*/", "", drawings.style(), flags=re.S)
    depth, outer, rule = 0, [], ""
    for c in css:
        if c == "{":
            if depth == 0:
                outer.append(rule.strip())
            depth, rule = depth + 1, ""
        elif c == "}":
            depth, rule = depth - 1, ""
        else:
            rule += c
    assert depth == 0 and outer == [".stentor-drawn", ".dark .stentor-drawn"]
    assert ".row" in css and "url(" not in css
