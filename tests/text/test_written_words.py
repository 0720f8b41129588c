"""Words as they are written, with and without spaces."""

import pytest

from stentor.text.written_words import joined, written_words


@pytest.mark.parametrize(
    ("text", "words", "again"),
    [
        ("turn on - the lights.", ["turn", "on", "-", "the", "lights."], None),
        ("한국어 문장 ㅋㅋ", ["한국어", "문장", "ㅋㅋ"], None),
        ("「我」用Python写。 好", ["「我」", "用", "Python", "写。", "好"], "「我」用 Python 写。好"),
        ("ラーメン", ["ラ", "ー", "メ", "ン"], None),
        ("ครับ ที่", ["ค", "รั", "บ", "ที่"], "ครับที่"),
        ("他说“你好”。这是……什么", ["他", "说“", "你", "好”。", "这", "是……", "什", "么"], None),
        ("", [], None),
    ],
)
def test_words_and_the_text_that_they_make(text, words, again):
    assert written_words(text) == words
    assert joined(words) == (text if again is None else again)
