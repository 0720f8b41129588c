"""Numbers, dates, times and money in words, as they are read aloud, by language (num2words; Chinese is built in).

What is read: whole and decimal numbers with the separators of the language, negative ones, ordinals (English and
French), ranges, percentages, degrees, money, dates (2026-11-21, November 21, 2026, 21. November 2026), times (14:30),
years and decades (English), units (English). Numbers that begin with 0 or are longer than 15 digits are read digit by
digit. What stands in [brackets] (pronunciations, [laughter]) and pinyin such as ZHE2 stays as it is.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from stentor.errors import ConfigError
from stentor.text.normalize import language_code
from stentor.text.number_words import (
    CHINESE_CURRENCY,
    CURRENCIES,
    DEGREES,
    HOURS,
    MONTHS,
    PERCENT,
    PLAIN_CURRENCY,
    POINT_COMMA,
    RANGE,
    UNITS,
    chinese,
    chinese_digits,
)

VERBATIM = re.compile(r"(\[[^\]]*\])")
"""Text that stays as it is: tags and phones in brackets, in Chinese also pinyin."""
VERBATIM_CHINESE = re.compile(r"(\[[^\]]*\]|(?<![A-Za-z])[A-ZÜ]{0,4}[AEIOUÜ][A-ZÜ]{0,4}[1-5](?!\d))")
DATE = re.compile(r"\b(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\b")
TIME = re.compile(r"(?<![\d:.,])([01]?\d|2[0-3]):([0-5]\d)(?![\d:])")
SIGN = "[" + "".join(CURRENCIES) + "]"
SPACE = "[ \u00a0\u202f]"
GERMAN_CASES = ("am", "bis", "dem", "den", "des", "vom", "zum")
LONGEST = 15
"""Digits of the longest number that is read as one."""


def check_installed() -> None:
    """Raises ConfigError with the mend when num2words is missing."""
    try:
        import num2words  # noqa: F401
    except ImportError:
        raise ConfigError(
            "Writing numbers in words needs the package num2words: `pip install 'stentor[speak]'`, or leave out "
            "--normalize."
        ) from None


def normalize(text: str, language: str | None) -> str:
    """The text with its numbers in words. Raises ConfigError when there are some and the language is not given, or has
    no words for them here."""
    if not any(c.isdigit() for c in VERBATIM.sub("", text)):
        return text
    if language is None:
        raise ConfigError("To write numbers in words, their language must be known: give --language.")
    reader = NumberReader(_code(language))
    verbatim = VERBATIM_CHINESE if reader.chinese else VERBATIM
    return "".join(part if i % 2 else reader.read(part) for i, part in enumerate(verbatim.split(text)))


@lru_cache
def _known() -> dict[str, str]:
    from num2words import CONVERTER_CLASSES

    return {name.lower(): name for name in CONVERTER_CLASSES} | {"zh": "zh", "nb": "no", "nn": "no"}


def _code(language: str) -> str:
    """The name that num2words has for a language."""
    known = _known()
    full = language.strip().lower().replace("-", "_")
    short = (language_code(language) or full).lower().replace("-", "_").partition("_")[0]
    for name in (full, {"cmn": "zh", "yue": "zh"}.get(short, short)):
        if name in known:
            return known[name]
    raise ConfigError(
        f"There are no words for the numbers of the language {language!r} here; known: {', '.join(sorted(known))}. "
        "Write them in words, or leave out --normalize."
    )


class NumberReader:
    """Reads the numbers of one language."""

    def __init__(self, language: str):
        self.language = language
        self.short = language.partition("_")[0]
        self.chinese = language == "zh"
        comma = self.short in POINT_COMMA.split()
        group, point = (rf"(?:\.|{SPACE})", ",") if comma else (",", r"\.")
        self.number = rf"(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)(?:{point}\d+)?"
        self.group, self.point = re.compile(group), "," if comma else "."
        self.months = MONTHS.get(self.short, [])

    def read(self, text: str) -> str:
        """The text with its numbers in words."""
        text = DATE.sub(lambda m: self._date(int(m[1]), int(m[2]), int(m[3])), text)
        text = self._written_dates(text)
        text = TIME.sub(lambda m: self._time(int(m[1]), int(m[2])), text)
        if self.chinese:
            text = re.sub(r"(\d{4})(?=年)", lambda m: chinese_digits(m[1]), text)
        for pattern, read in self._patterns():
            text = re.sub(pattern, read, text)
        return text

    def _patterns(self) -> list[tuple[str, Callable[[re.Match[str]], str]]]:
        number = self.number
        patterns: list[tuple[str, Callable[[re.Match[str]], str]]] = [
            (rf"({SIGN}){SPACE}?({number})(?!\d)", lambda m: self._money(m[2], m[1])),
            (rf"(?<![\w.,])({number}){SPACE}?({SIGN})", lambda m: self._money(m[1], m[2])),
        ]
        if self.short == "en":
            patterns += [
                (r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: self._say(int(m[1]), "ordinal")),
                (r"\b((?:1[1-9]|20)\d)0s\b", lambda m: self._decade(int(m[1]) * 10)),
                (
                    rf"(?<![\w.,])({number}){SPACE}?({'|'.join(UNITS)})(?![\w/])",
                    lambda m: f"{self._number(m[1])} {UNITS[m[2]][m[1] != '1']}",
                ),
            ]
        if self.short == "fr":
            patterns.append((r"\b(\d+)(?:er|re|ère|e|ème)\b", lambda m: self._say(int(m[1]), "ordinal")))
        if self.short in RANGE:
            until = RANGE[self.short] if self.chinese or self.short == "ja" else f" {RANGE[self.short]} "
            patterns.append(
                (
                    rf"(?<![\w.,:–-])({number}){SPACE}?[-–]{SPACE}?({number})(?![\w–-])",
                    lambda m: self._year_or_number(m[1]) + until + self._year_or_number(m[2]),
                )
            )
        if self.chinese:
            patterns.append((rf"(-?{number}){SPACE}?[%％]", lambda m: "百分之" + self._number(m[1])))
        elif self.short == "tr":
            patterns.append((rf"[%％]{SPACE}?({number})", lambda m: f"{PERCENT['tr']} {self._number(m[1])}"))
        elif self.short in PERCENT:
            word = PERCENT[self.short] if self.short == "ja" else f" {PERCENT[self.short]}"
            patterns.append((rf"({number}){SPACE}?[%％]", lambda m: self._number(m[1]) + word))
        if self.short in DEGREES:
            unit = DEGREES[self.short] if self.chinese else f" {DEGREES[self.short]}"
            patterns.append(
                (rf"((?<![\w.,])[-−])?({number}){SPACE}?°C", lambda m: self._number((m[1] or "") + m[2]) + unit)
            )
        patterns.append((rf"((?<![\w.,)])[-−](?=\d))?({number})", lambda m: self._alone(m)))
        return patterns

    def _alone(self, match: re.Match[str]) -> str:
        """A number, apart from the letters that it touches (MP3)."""
        words = self._number("-" + match[2]) if match[1] else self._year_or_number(match[2])
        if self.chinese or self.short in ("ja", "ko", "th"):
            return words
        before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
        return (" " if before.isalnum() else "") + words + (" " if after.isalnum() else "")

    def _year_or_number(self, written: str) -> str:
        """A number that may be a year."""
        year = re.fullmatch(r"1[1-9]\d\d|20\d\d", written)
        return self._say(int(written), "year") if year and self.short == "en" else self._number(written)

    def _number(self, written: str) -> str:
        digits = self.group.sub("", written.replace("−", "-"))
        integer, _, fraction = digits.partition(self.point)
        unsigned = integer.removeprefix("-")
        if (len(unsigned) > 1 and unsigned[0] == "0") or len(unsigned) > LONGEST:
            return self._digits(unsigned) + (f" {self._digits(fraction)}" if fraction else "")
        if self.chinese:
            return chinese(int(integer)) + (f"点{chinese_digits(fraction)}" if fraction else "")
        return self._say(Decimal(f"{integer}.{fraction}") if fraction else int(integer))

    def _digits(self, digits: str) -> str:
        if self.chinese:
            return chinese_digits(digits)
        return " ".join(self._say(int(d)) for d in digits)

    def _say(self, number: int | Decimal, to: str = "cardinal") -> str:
        if self.chinese:
            return chinese(int(number))
        from num2words import num2words

        try:
            words = str(num2words(number, lang=self.language, to=to))
        except (NotImplementedError, TypeError, OverflowError, KeyError):  # no such form in this language
            words = str(num2words(number, lang=self.language))
        return words.replace(",", "") if self.short == "en" else words

    def _money(self, written: str, sign: str) -> str:
        digits = self.group.sub("", written).replace(self.point, ".")
        if self.chinese:
            return self._number(written) + CHINESE_CURRENCY[sign]
        from num2words import num2words

        integer, _, cents = digits.partition(".")
        if len(cents) in (0, 2) and len(integer) <= LONGEST:
            try:
                amount, options = (
                    Decimal(f"{integer}.{cents or '00'}"),
                    {"currency": CURRENCIES[sign], "separator": "|"},
                )
                units, _, subunits = str(num2words(amount, lang=self.language, to="currency", **options)).partition("|")
                words = units.strip()
                if int(cents or 0):
                    joint = " and " if self.short == "en" else " "
                    words = f"{words}{joint}{subunits.strip()}" if int(integer) else subunits.strip()
                return words.replace(",", "") if self.short == "en" else words
            except (NotImplementedError, TypeError, KeyError, AttributeError):
                pass  # num2words has not this currency in this language: the number and its name, below
        plural = "s" if self.short == "en" and sign not in "¥₩" else ""
        return f"{self._number(written)} {PLAIN_CURRENCY[sign]}{plural}"

    def _decade(self, year: int) -> str:
        words = self._say(year, "year")
        return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"

    def _year(self, year: int) -> str:
        if self.chinese:
            return chinese_digits(str(year))
        # Japanese num2words answers the year of an emperor.
        return self._say(year, "cardinal" if self.short == "ja" else "year")

    def _date(self, year: int, month: int, day: int) -> str:
        if self.chinese:
            return f"{self._year(year)}年{chinese(month)}月{chinese(day)}日"
        if self.short == "ja":
            return f"{self._year(year)}年{self._say(month)}月{self._say(day)}日"
        if not self.months:
            return f"{self._say(day)} {self._say(month)} {self._year(year)}"
        name = self.months[month - 1]
        if self.short == "en":
            return f"{name} {self._say(day, 'ordinal')}, {self._year(year)}"
        joint = " de " if self.short in ("es", "pt") else " "
        return f"{self._day(day)}{joint}{name}{joint}{self._year(year)}"

    def _day(self, day: int) -> str:
        if self.short in ("de", "da", "no", "sv"):
            ordinal = self._say(day, "ordinal")
            return f"{ordinal}r" if self.short == "de" and ordinal.endswith("e") else ordinal
        if day == 1 and self.short in ("fr", "it"):
            return self._say(day, "ordinal")
        return self._say(day)

    def _written_dates(self, text: str) -> str:
        if not self.months:
            return text
        names = "|".join(self.months)
        if self.short == "en":
            text = re.sub(
                rf"\b({names}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?!,?\d|[.:]\d)",
                lambda m: f"{m[1]} {self._say(int(m[2]), 'ordinal')}",
                text,
            )
        if self.short in ("de", "da", "no"):
            text = re.sub(
                rf"\b([^\W\d]+ )?(\d{{1,2}})\. (?=(?:{names})\b)",
                lambda m: f"{m[1] or ''}{self._say(int(m[2]), 'ordinal')}{self._ending(m[1] or '')} ",
                text,
            )
        if self.short in ("de", "da", "no", "sv", "nl"):
            text = re.sub(rf"\b({names}) (1[1-9]\d\d|20\d\d)\b", lambda m: f"{m[1]} {self._year(int(m[2]))}", text)
        return text

    def _ending(self, before: str) -> str:
        """Ending of a German ordinal after the word `before`: am dritten, der dritte."""
        return "n" if self.short == "de" and before.strip().lower() in GERMAN_CASES else ""

    def _time(self, hour: int, minute: int) -> str:
        if self.chinese:
            return f"{chinese(hour)}点" + (f"{chinese(minute)}分" if minute else "整")
        if self.short == "en":
            if not minute:
                return f"{self._say(hour)} " + ("o'clock" if 0 < hour <= 12 else "hundred")
            return f"{self._say(hour)} {'oh ' if minute < 10 else ''}{self._say(minute)}"
        between = f" {HOURS[self.short]}" if self.short in HOURS else ""
        return f"{self._say(hour)}{between}" + (f" {self._say(minute)}" if minute else "")
