"""The normaliser of the Open ASR Leaderboard."""

import json
from pathlib import Path

import pytest

from stentor.errors import ConfigError
from stentor.text import open_asr
from stentor.text.normalize import normalize
from stentor.text.open_asr import spelled_together

CASES = json.loads(Path(__file__).with_name("open_asr_cases.json").read_text("utf-8"))
"""By language: [text, what normalizer/ of github.com/huggingface/open_asr_leaderboard makes of it (at d1e99b2 of
2026-08-21, with num2words 0.5.14), single spaces]."""


@pytest.mark.parametrize("language", CASES)
def test_texts_are_normalised_as_on_the_leader_board(language):
    if language != "en":
        pytest.importorskip("num2words")
    for text, normalised in CASES[language]:
        assert normalize(text, "open_asr", language) == normalised, text


def test_a_text_without_a_language_is_english():
    assert normalize("the b b c, Anna's colour", "open_asr") == "the bbc anna s color"


@pytest.mark.parametrize(
    ("words", "together"),
    [
        ("b b c", "bbc"),
        ("5 g", "5g"),
        ("a big cat", "a big cat"),
        ("i a", "i a"),
        ("a b c", "abc"),
        ("a", "a"),
        ("", ""),
    ],
)
def test_letters_said_one_by_one_are_one_word(words, together):
    assert spelled_together(words.split()) == together


def test_numbers_without_num2words_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "num2words", None)
    open_asr._in_words.cache_clear()
    assert normalize("keine Zahl", "open_asr", "de") == "keine zahl"
    with pytest.raises(ConfigError, match=r"pip install 'stentor\[evaluate\]'"):
        normalize("genau 21", "open_asr", "de")
