"""Words as they are written, with and without spaces."""

import pytest

from stentor.text.written_words import joined, joined_windows, written_words


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


def test_the_characters_at_the_seam_of_windows_decide_about_a_space():
    glued = "今日は。|「いい」天気 我在北京|上海 他说…|“不” |one"
    spaced = "iPhone|Proが 価格は1998|円 잘지냈어요|네 สวัสดีครับ|วันนี้ ជំរាបសួរ|ខ្ញុំ wait…|“No”"
    for space, seams in (("", glued), (" ", spaced)):
        for seam in seams.split():
            assert joined_windows(seam.split("|")) == seam.replace("|", space)
