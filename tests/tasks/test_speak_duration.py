"""How long a text takes, and where a long one is divided."""

from pathlib import Path

import pytest

from stentor.data.speaking_rate import weight
from stentor.inference.speak.pieces import PACE_TEXT, estimate
from stentor.tasks.speak.chunks import chunks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", 3.0),
        ("Привет", 6.0),
        ("你好", 6.0),
        ("안녕", 5.0),
        ("ひらカタ", 8.8),
        ("नम", 3.6),
        ("مرحب", 6.0),
        ("שלום", 6.0),
        ("ไทย", 4.5),
        ("42", 7.0),
        ("a, b.", 3.2),
        ("a b", 2.2),
        ("", 0.0),
        ("e\u0301", 1.0),
        ("नि", 1.8),
        ("三", 3.0),
        ("ー", 2.2),
        ("￥５", 4.0),
        ("\u200d", 0.0),
        ("𠀀", 3.0),
        ("ａ", 1.0),
    ],
)
def test_each_script_has_its_weight(text, expected):
    assert weight(text) == pytest.approx(expected)


def test_the_pace_without_a_reference_is_a_known_sentence_in_one_second():
    long = "abcdefghi " * 10
    assert estimate(long) == pytest.approx(weight(long) / weight(PACE_TEXT))
    assert weight(PACE_TEXT) == pytest.approx(14.1) and estimate("x" * 141) == pytest.approx(10)


def test_a_reference_tells_the_pace():
    assert estimate("x" * 40, "y" * 10, 3.0) == pytest.approx(12.0)
    assert estimate("x" * 40, "y" * 10, 3.0) == pytest.approx(12)
    assert estimate("x" * 40, "y" * 10, 3.0, speed=2.0) == pytest.approx(6.0)
    assert estimate("x" * 60, "...", 0.0) == estimate("x" * 60, "\u0301", 5.0) == estimate("x" * 60)


def test_short_phrases_are_said_slower():
    """Below 50 frames at 25 Hz: 50 (d / 50) ** (1/3)."""
    assert estimate("Nice to meet you.") == pytest.approx(2 * (1 / 2) ** (1 / 3))
    assert estimate("x", "y" * 10, 0.8) == pytest.approx(2 * (0.08 / 2) ** (1 / 3))
    assert estimate("x" * 20, "y" * 10, 1.0) == 2.0
    assert estimate(".") > 0


def seconds(text):
    return len(text) / 10


def test_what_can_be_said_in_one_go_is_left_whole():
    assert chunks("  a b. c d  ", seconds) == ["a b. c d"]
    assert chunks(" \n ", seconds) == []
    assert chunks("x" * 300, seconds) == ["x" * 300]


def test_sentences_are_kept_whole_and_nothing_is_lost():
    text = " ".join(f"This is sentence number {i}, which is said in one go." for i in range(12))
    parts = chunks(text, seconds)
    assert " ".join(parts) == text
    assert all(part.endswith(".") for part in parts)
    assert len(parts) == round(seconds(text) / 15) and all(10 <= seconds(part) <= 20 for part in parts)


def test_abbreviations_numbers_and_initials_end_no_sentence():
    text = ("He met Dr. Smith and J. S. Bach at 3.14 a.m. on example.com yesterday evening! " * 6).strip()
    assert {part[-1] for part in chunks(text, seconds)} == {"!"}


def test_without_sentences_commas_then_words_then_anything():
    commas = ", ".join(["some words that belong together"] * 12)
    assert all(part.endswith((",", "together")) for part in chunks(commas, seconds))
    words = "word " * 80
    assert set(" ".join(chunks(words, seconds)).split()) == {"word"}
    solid = chunks("y" * 700, seconds)
    assert "".join(solid) == "y" * 700 and all(seconds(part) <= 20 for part in solid)


def test_scripts_without_spaces_and_quotes():
    text = "今天天气很好。我们去公园吧！" * 30
    parts = chunks(text, seconds)
    assert "".join(parts) == text and all(part[-1] in "。！" for part in parts) and len(parts) == 3
    quoted = "他说：「好的。」然后走了。" * 30
    assert all(part.endswith(("。", "」")) for part in chunks(quoted, seconds))
    assert not any(part.startswith("」") for part in chunks(quoted, seconds))


def test_a_paragraph_is_the_best_place_to_divide():
    paragraphs = "\n".join(["one two three. four five six. " * 4] * 4)
    assert [part.find("\n") for part in chunks(paragraphs, seconds)] == [119, 119, 119, -1]


def records(points):
    from stentor.data.cut import cut_from_record

    return [
        cut_from_record({"id": str(i), "audio_path": "-", "duration": seconds, "text": text}, Path(), str(i))
        for i, (text, seconds) in enumerate(points)
    ]


def test_the_pace_of_records_is_measured():
    from stentor.data.speaking_rate import SpeakingRate, fit_speaking_rate

    points = [("x" * n, 0.3 + 0.07 * n + 0.01 * (-1) ** n) for n in range(4, 60)]
    rate = fit_speaking_rate(records([*points, ("x" * 10, 30.0), ("", 3.0)]))  # one record is far off, one says nothing
    assert rate.start == pytest.approx(0.3, abs=0.02) and rate.unit == pytest.approx(0.07, rel=0.02)
    assert fit_speaking_rate(records(points[:10])) is None  # too few
    assert fit_speaking_rate(records([("x" * n, 5.0 - 0.05 * n) for n in range(4, 60)])) is None
    assert fit_speaking_rate(records([("abc", 1.0)] * 50)) is None
    through = fit_speaking_rate(records([("x" * n, 0.1 * n - 0.2) for n in range(4, 60)]))
    assert through.start == 0 and through.unit == pytest.approx(0.093, abs=0.003)
    assert estimate("x" * 10, pace=SpeakingRate(0.3, 0.07)) == pytest.approx(1.0)  # no short phrases stretched
    assert estimate("x" * 10, pace=SpeakingRate(0.3, 0.07), speed=2.0) == pytest.approx(0.5)
    assert estimate("x" * 10, "y" * 10, 3.0, pace=SpeakingRate(0.3, 0.07)) == pytest.approx(3.0)
