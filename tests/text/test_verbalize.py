"""Numbers, dates, times and money in words."""

import builtins

import pytest

from stentor.errors import ConfigError
from stentor.text.number_words import chinese
from stentor.text.verbalize import normalize

pytest.importorskip("num2words")


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "no numbers, B. or 'x'", "no numbers, B. or 'x'"),
        ("en", "1 and 2.", "one and two."),
        ("en", "1,234,567", "one million two hundred and thirty-four thousand five hundred and sixty-seven"),
        ("en", "3.14 or -5", "three point one four or minus five"),
        ("en", "In 1984 and the 1990s", "In nineteen eighty-four and the nineteen nineties"),
        ("en", "the 21st of May, May 3, 2020", "the twenty-first of May, May third, twenty twenty"),
        ("en", "2026-11-21 at 14:30", "November twenty-first, twenty twenty-six at fourteen thirty"),
        ("en", "9:05 or 10:00", "nine oh five or ten o'clock"),
        ("en", "$5.20, $5 and €0.99", "five dollars and twenty cents, five dollars and ninety-nine cents"),
        ("en", "12.5 % up, 3%", "twelve point five percent up, three percent"),
        ("en", "-5 °C, 100 km/h, 1 kg", "minus five degrees Celsius, one hundred kilometers per hour, one kilogram"),
        ("en", "3-5 days, 1914–1918", "three to five days, nineteen fourteen to nineteen eighteen"),
        ("en", "MP3 and 4x4", "MP three and four x four"),
        ("en", "007 or 0176", "zero zero seven or zero one seven six"),
        ("en-US", "5 [B EY1 S] [laughter]", "five [B EY1 S] [laughter]"),
        ("English", "7", "seven"),
        ("de", "5,20 € am 3. November 2026", "fünf Euro zwanzig Cent am dritten November zweitausendsechsundzwanzig"),
        (
            "de",
            "1.234.567, 12 %, um 14:30",
            "eine Million zweihundertvierunddreißigtausendfünfhundertsiebenundsechzig, "
            "zwölf Prozent, um vierzehn Uhr dreißig",
        ),
        ("fr", "Le 1er mai, 3,5 % de 1 204", "Le premier mai, trois virgule cinq pour cent de mille deux cent quatre"),
        ("es", "el 2026-11-21", "el veintiuno de noviembre de dos mil veintiséis"),
        ("sv", "den 2026-11-21", "den tjugoförsta november tvåtusentjugosex"),
        ("zh", "2026年有20005人，占3.5%，$5，ZHE2", "二零二六年有二万零五人，占百分之三点五，五美元，ZHE2"),
        ("cmn", "2026-11-21 14:30", "二零二六年十一月二十一日 十四点三十分"),
        ("ja", "15人", "十五人"),
    ],
)
def test_what_is_written_is_what_is_said(language, text, expected):
    assert normalize(text, language) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "零"),
        (10, "十"),
        (14, "十四"),
        (110, "一百一十"),
        (101, "一百零一"),
        (1001, "一千零一"),
        (20005, "二万零五"),
        (10010, "一万零一十"),
        (100000, "十万"),
        (120000000, "一亿二千万"),
        (100000001, "一亿零一"),
        (-3, "负三"),
    ],
)
def test_chinese_numbers(number, expected):
    assert chinese(number) == expected


def test_a_language_is_needed_where_there_is_a_number():
    assert normalize("nothing to do", None) == "nothing to do"
    with pytest.raises(ConfigError, match=r"their language must be known: give --language"):
        normalize("3 things", None)
    with pytest.raises(ConfigError, match=r"numbers of the language 'xx' here; known: am, ar, .*leave out --normalize"):
        normalize("3 things", "xx")


def test_the_extra_is_asked_for_by_name(monkeypatch):
    from stentor.text.verbalize import check_installed

    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "num2words":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'stentor\[speak\]'"):
        check_installed()
