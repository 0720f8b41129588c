"""Texts as they are read aloud: the page of hard lines, and what is no number."""

from collections import Counter

import pytest

from hard_lines import FRESH, PAGE, forms, plain, right
from stentor.errors import ConfigError

FLOOR = {"en": 40, "zh": 25, "de": 22, "fr": 20, "es": 20, "it": 15, "pt": 15, "ru": 14, "ja": 15, "hi": 13}
"""Lines of the page that are right; `docs/speak.md` has the figures of other packages."""


@pytest.fixture
def normalize():
    for package in ("babel", "unicode_rbnf", "kaldifst", "py3langid"):
        pytest.importorskip(package)
    from stentor.text.verbalize import normalize

    return normalize


def test_the_page_has_200_lines_of_ten_languages():
    assert len(PAGE) == 200 and len(Counter(row[0] for row in PAGE)) == 10
    assert all(len(row) == 3 and not any(c.isdigit() for c in row[2]) for row in PAGE)
    assert forms("a {b|c d|}|e") == {"a b", "a c d", "a ", "e"}
    assert (
        plain("en", "At 5 P.M., twenty-one") == "at 5 pm twenty one"
        and plain("de", "Ein und zwanzig") == "einundzwanzig"
    )


def test_hard_lines_are_read_as_people_do(normalize):
    counts, wrong = right(normalize)
    assert {language: counts[language] for language in FLOOR if counts[language] < FLOOR[language]} == {}, wrong

    counts, wrong = right(normalize, FRESH)
    assert counts.total() >= 58 and len(FRESH) == 62, wrong


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "no numbers, B. or 'x'", "no numbers, B. or 'x'"),
        ("en", "I saw it on TV in XXL.", "I saw it on TV in XXL."),
        ("en-US", "5 [B EY1 S] [laughter]", "five [B EY1 S] [laughter]"),
        ("English", "7", "seven"),
        ("en", "MP3 and 4x4", "MP three and four x four"),
        ("en", "1,000,000,000 of 9876543210", "one billion of nine eight seven six five four three two one zero"),
        ("en", "3.14 or -5", "three point one four or minus five"),
        ("en", "-$5, £1.50 and $0.01", "minus five dollars, one pound and fifty pence and zero dollars and one cent"),
        ("en", "$3bn, $20k, €1.5 m", "three billion dollars, twenty thousand dollars, one point five million euros"),
        ("en", "12:30:45 or 3:1", "twelve:thirty:forty five or three to one"),
        ("en", "the '90s and the 1980s", "the nineties and the nineteen eighties"),
        ("de", "in den 1980er Jahren, 20ern", "in den neunzehnhundertachtziger Jahren, zwanzigern"),
        ("de", "um 24:00 Uhr", "um vierundzwanzig Uhr"),
        ("de", "-5,20 €", "minus fünf Euro zwanzig Cent"),
        ("zh", "你好 ZHE2 [laughter] 5", "你好 ZHE2 [laughter] 五"),
        ("zh", '他说"5" a\\b ', '他说"五" a\\b '),
        ("zh", "¥3.5 和 1/3", "三点五元 和 三分之一"),
        ("zh", "写作 \\\\}", "写作 \\\\}"),
        ("ja", ' 彼は"5"と', ' 彼は"五"と'),
        ("xx", "x² is no number in words", "x² is no number in words"),
        ("tr", "1.2.3", "bir iki üç"),
        ("pl", f"{'1' * 30}.2.3", f"{'jeden ' * 30}dwa trzy"),
        (None, "Hello. 5", "Hello. five"),
        (None, "I", "I"),
        ("sv", "den 2026-11-21", "den tjugoförsta november tjugohundratjugosex"),
        ("fi", "25 % ja 10 km", "kaksikymmentäviisi prosenttia ja kymmenen kilometriä"),
        ("ko", "없다", "없다"),
        ("ko", "-5, 20%", "마이너스 오, 이십 퍼센트"),
        ("tr", "3,14 ve 20 %", "üç virgül bir dört ve yüzde yirmi"),
        ("pl", "2,5 km", "dwa przecinek pięć kilometra"),
        (None, "Er hat 3 Kinder und einen großen Hund.", "Er hat drei Kinder und einen großen Hund."),
        (None, "他有3个孩子。", "他有三个孩子。"),
    ],
)
def test_what_is_written_is_what_is_said(normalize, language, text, expected):
    assert normalize(text, language) == expected


def test_no_number_is_left_in_any_language(normalize):
    from unicode_rbnf import RbnfEngine

    line = "-5 °C, 3,14 3.14 $5.20 5:30 3/4/2026 2-3 20% +49 30 123456 v1.2.3 007 1.234.567 12345678901 X ½x ²"
    for code in sorted({name.partition("_")[0] for name in RbnfEngine.get_supported_languages()} - {"zh", "ja", "yue"}):
        assert not any(c in "0123456789" for c in normalize(line, code)), code


def test_the_language_of_a_line_is_found(normalize):
    from stentor.text.detect import detect

    right = [language for language, written, _ in PAGE if detect(written) == language]
    assert len(right) >= 185, Counter(right)


def test_a_language_without_number_words_is_named(normalize):
    assert normalize("nothing to do", "xx") == "nothing to do"
    with pytest.raises(ConfigError, match=r"numbers of the language 'xx' here; known: af, ak, .*leave out --normalize"):
        normalize("3 things", "xx")
