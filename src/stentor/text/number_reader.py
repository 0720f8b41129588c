"""Number reader: what is written with digits and signs in one language, in words, by CLDR's data."""

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

from stentor.errors import ConfigError

ADDRESS = re.compile(
    r"(?:https?://)?(?:[\w.+-]+@)?(?:[A-Za-z0-9-]+\.)+(?:com|org|net|edu|gov|info|io|[a-z]{2})\b(?:/[\w./#?=&%-]*\w)?"
)
CURRENCIES = {"R$": "BRL", "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₩": "KRW", "₽": "RUB", "₹": "INR"}
SPACE = "[ \u00a0\u202f]"
SIGN = "|".join(map(re.escape, CURRENCIES))
ROMAN = {
    tens + ones: 10 * i + j
    for i, tens in enumerate(("", "X", "XX", "XXX"))
    for j, ones in enumerate(("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"))
}
LONGEST, GROUPED = 9, 15
"""Digits of the longest number that is read as one, without and with signs between its thousands."""
GERMAN_CASE = re.compile(r"\b(?:am|bis|dem|den|des|vom|zum) $", re.IGNORECASE)
Reading = str | Callable[[re.Match[str]], str]
"""Replacement of a match: a template of `re.sub`, or the answer of a function."""
YEAR = r"1[1-9]\d\d|20\d\d"


@cache
def spoken_words() -> dict[str, dict[str, Any]]:
    """`spoken_words.yaml` by language."""
    import yaml

    return dict(yaml.safe_load(resources.files(__package__).joinpath("spoken_words.yaml").read_text("utf-8")))


@cache
def reader(code: str) -> "NumberReader":
    """The reader of a language. Raises ConfigError when CLDR has no number words for it."""
    from unicode_rbnf import RbnfEngine

    known = sorted(name for name in RbnfEngine.get_supported_languages() if "_" not in name)
    if (name := {"nb": "no"}.get(code, code)) not in known:
        raise ConfigError(
            f"There are no words for the numbers of the language {code!r} here; known: {', '.join(known)}. "
            "Write them in words, or leave out --normalize."
        )
    return NumberReader(name)


class NumberReader:
    """Reads the numbers of one language. The patterns are tried in their order; what is read holds no digits."""

    def __init__(self, language: str):
        from babel import Locale
        from unicode_rbnf import RbnfEngine

        self.language, self.words = language, spoken_words().get(language, {})
        self.rules, self.locale = RbnfEngine.for_language(language), Locale.parse(language)
        self.point = "," if self.locale.number_symbols["latn"]["decimal"] == "," else "."
        group = rf"(?:\.|{SPACE})" if self.point == "," else ","
        self.group = re.compile(group)
        lakhs = "#,##,##0" in self.locale.decimal_formats[None].pattern
        grouped = r"\d{1,2}(?:,\d\d)*,\d{3}(?!\d)" if lakhs else rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)"
        self.number = rf"(?:{grouped}|\d+)(?:{re.escape(self.point)}\d+)?"
        self.months = list(self.locale.months["format"]["wide"].values())
        self.units = spoken_words()["every"]["units"] | self.words.get("units", {})
        self.patterns = [(re.compile(pattern), read) for pattern, read in self._patterns()]

    def read(self, text: str) -> str:
        """The text with its numbers in words."""
        for pattern, read in self.patterns:
            text = pattern.sub(read, text)
        return text

    def _patterns(self) -> list[tuple[str, Reading]]:
        words, n = self.words, self.number
        alone, end = r"(?<![\w.,])", r"(?![\w/])"
        names = "|".join(self.months)
        patterns: list[tuple[str, Reading]] = []
        if "dot" in words:
            patterns.append((ADDRESS.pattern, lambda m: self._address(m[0])))
        patterns += words.get("replace", {}).items()
        if "roman" in words:
            patterns.append((r"(\w+ |^)\b((?=[IVX])X{0,3}(?:I[XV]|V?I{0,3}))(er|re|e|\.)?(?!\w| ?[@\d])", self._roman))
        if before := words.get("ordinal_before"):
            after = "|".join(before)
            patterns.append((rf"\b(\d+) (?=({after})\b)", lambda m: self._ordinal(int(m[1]), before[m[2]]) + " "))
        if self.language == "de":
            patterns.append((r"\b(\d+0)(ern?)\b", lambda m: self._year_or_number(m[1]) + m[2]))
        patterns += [
            (r"\b(\d{4})([-/.])(\d\d?)\2(\d\d?)\b", lambda m: self._date(m, m[1], m[3], m[4])),
            (r"\b(\d\d?)([/.])(\d\d?)\2(\d{4})\b", self._numeric_date),
            *self._written_dates(names),
            (r"(?<![\d:.,])([01]?\d|2[0-3]|24(?=:00)):([0-5]\d)(?![\d:])", lambda m: self._time(int(m[1]), int(m[2]))),
            (r"\b(\d\d?)\.([0-5]\d)(?= [ap] m\b)", lambda m: self._time(int(m[1]), int(m[2]))),
            (rf"((?<![\w.,)])[-−])?({SIGN}){SPACE}?({n})( (?:[mb]illion|thousand)\b)?(?!\d)", self._priced),
            (rf"{alone}([-−]?{n}){SPACE}?({SIGN})", lambda m: self._money(m[1], m[2])),
            *self._phones(),
            (rf"{alone}(\d+)((?:\.\d+){{2,}})", self._version),
            (rf"(?<![\w.,–-])({n}){SPACE}?[-–]{SPACE}?(?={n}(?![\w–-]))", self._between("to")),
            (rf"(?<![\w.,:])({n}):(?=\d+(?![\w/]|:\d))", self._between("ratio")),
            (rf"{alone}([-−]?{n}){SPACE}?({'|'.join(map(re.escape, self.units))}){end}", self._measure),
        ]
        if "ordinals" in words:
            endings = "|".join(map(re.escape, words["ordinals"]))
            patterns.append((rf"\b(\d+)({endings})(?!\w)", lambda m: self._ordinal(int(m[1]), words["ordinals"][m[2]])))
        if self.language == "en":
            for decade in (r"\b((?:1[1-9]|20)\d0)s\b", r"(?<!\w)['’](\d0)s\b"):
                patterns.append((decade, lambda m: self._decade(int(m[1]))))
        if "fractions" in words:
            patterns.append((rf"{alone}(\d/\d){end}", lambda m: words["fractions"].get(m[1], m[1])))
        return [*patterns, (rf"((?<![\w.,)])[-−](?=\d))?({n})", self._plain)]

    # Numbers

    def _spell(self, number: int, form: str = "numbering") -> str:
        """By the rules of CLDR that are called `form`, else by the nearest that there are."""
        rules = self.rules.rulesets
        forms = [f"spellout-{form}", f"spellout-{form}-masculine", "spellout-numbering", "spellout-cardinal"]
        name = next((f for f in forms if f in rules), None) or next(f for f in rules if f.startswith("spellout-"))
        text = self.rules.format_number(number, ruleset_names=[name]).text
        return text.replace("-", " ") if self.language in ("en", "fr") else text

    def _sign(self, example: float, *numbers: int) -> str:
        """The word that CLDR has beside the numbers of an example; empty where it has none."""
        from unicode_rbnf.engine import NoRuleForNumberError

        for name in filter(lambda name: name.startswith("spellout-"), self.rules.rulesets):
            with suppress(NoRuleForNumberError):
                text, *parts = (self.rules.format_number(n, ruleset_names=[name]).text for n in (example, *numbers))
                for part in parts:
                    text = text.removeprefix(part).removesuffix(part).strip()
                return text.split()[0]
        return ""

    def _ordinal(self, number: int, form: str = "") -> str:
        return self._spell(number, f"ordinal-{form}" if form else "ordinal")

    def _year(self, year: int) -> str:
        if self.words.get("year") == "hundreds":  # Hindi says nineteen hundred, and two thousand
            hundreds, rest = divmod(year, 100)
            if 10 < hundreds < 20:
                return f"{self._spell(hundreds)} सौ {self._spell(rest) if rest else ''}".rstrip()
            return self._spell(year)
        return self._spell(year, "numbering-year" if self.words.get("year") else "numbering")

    def _decade(self, year: int) -> str:
        name = self._year(year)
        return name.removesuffix("y") + "ies" if name.endswith("y") else name + "s"

    def _digits(self, digits: str) -> str:
        return " ".join(self._spell(int(digit)) for digit in digits)

    def _number(self, written: str) -> str:
        """A number as it is written in this language, with or without a sign."""
        if written[0] in "-−":
            return f"{self._sign(-1, 1)} {self._number(written[1:])}"
        integer, _, fraction = self.group.sub("", written).partition(self.point)
        longest = LONGEST if written.startswith(integer) else GROUPED
        if (len(integer) > 1 and integer[0] == "0") or len(integer) > longest:
            spelled = self._digits(integer)
        else:
            spelled = self._spell(int(integer))
        if not fraction:
            return spelled
        decimals, point = self.words.get("decimals", ()), self.words.get("point") or self._sign(3.5, 3, 5)
        if len(fraction) <= len(decimals):
            return f"{spelled} {point} {self._spell(int(fraction))} {decimals[len(fraction) - 1]}"
        return f"{spelled} {point} {self._digits(fraction)}"

    def _year_or_number(self, written: str) -> str:
        year = re.fullmatch(YEAR, written) is not None and "year" in self.words
        return self._year(int(written)) if year else self._number(written)

    def _plain(self, match: re.Match[str]) -> str:
        """A number, apart from the letters that it touches (MP3)."""
        read = self._number("-" + match[2]) if match[1] else self._year_or_number(match[2])
        before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
        return (" " if before.isalnum() else "") + read + (" " if after.isalnum() else "")

    def _version(self, match: re.Match[str]) -> str:
        if re.fullmatch(self.number, match[0]) is not None:  # 1.234.567
            return match[0]
        dot = self.words.get("version", self.words.get("dot"))
        return (f" {dot} " if dot else " ").join(map(self._number, match[0].split(".")))

    def _between(self, name: str) -> Callable[[re.Match[str]], str]:
        word = self.words.get(name)
        return lambda m: f"{self._year_or_number(m[1])} {word} " if word else m[0]

    def _phones(self) -> list[tuple[str, Reading]]:
        """Numbers of telephones: with a +, brackets or a zero before them, or in groups joined by hyphens."""
        shapes = [r"\+\d[\d ()-]{6,}\d", r"\(\d+\) ?\d[\d -]{4,}\d", r"\b0\d+(?:[ /-]\d{2,})+\b"]
        shapes += [r"\b\d{3}-\d{4}\b", r"\b(?:\d{1,3} )*\d{3}-\d\d-\d\d\b"]
        phones: list[tuple[str, Reading]] = [(rf"(?<![\w.,])(?:{'|'.join(shapes)})", lambda m: self._phone(m[0]))]
        if "phone" in self.words:
            after = "|".join(self.words["phone"].split())
            phones.append((rf"(?<=\b)((?:{after})\D{{1,8}})(\d[\d ]{{5,}}\d)", lambda m: m[1] + self._phone(m[2])))
        return phones

    def _phone(self, written: str) -> str:
        plus = self.words.get("plus", "plus") + " " if written[0] == "+" else ""
        groups = re.findall(r"\d+", written)
        if self.words.get("pairs") and all(len(group) == 2 for group in groups):
            return plus + " ".join(map(self._number, groups))
        return plus + " ".join(map(self._digits, groups))

    # Dates and times

    def _numeric_date(self, match: re.Match[str]) -> str:
        day, month = match[1], match[3]
        if self.words.get("month_first") and int(day) <= 12:
            day, month = month, day
        return self._date(match, match[4], month, day)

    def _date(self, match: re.Match[str], year: str, month: str, day: str) -> str:
        if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
            return match[0]
        order = self.words.get("date", "{day} {month} {year}")
        form = self.words.get("year_form")
        spoken_year = self._spell(int(year), form) if form else self._year(int(year))
        return str(order.format(day=self._day(match, int(day)), month=self.months[int(month) - 1], year=spoken_year))

    def _day(self, match: re.Match[str], day: int) -> str:
        form = self.words.get("day", "numbering")
        if day == 1 and "first" in self.words:
            form = f"ordinal-{self.words['first']}"
        if form == "ordinal-r" and GERMAN_CASE.search(match.string[: match.start()]):
            form = "ordinal-n"
        return self._spell(day, form)

    def _written_dates(self, names: str) -> list[tuple[str, Reading]]:
        if self.language == "en":
            dates = rf"\b({names}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?!,?\d|[.:]\d)"
            return [(dates, lambda m: f"{m[1]} {self._ordinal(int(m[2]))}")]
        if self.language in ("de", "da", "no"):
            case = re.compile(r"(?i)\bder $")

            def day(m: re.Match[str]) -> str:
                plain = case.search(m.string[: m.start()]) is not None
                return (self._ordinal(int(m[1])) if plain else self._day(m, int(m[1]))) + " "

            return [(rf"\b(\d\d?)\. (?=(?:{names})\b)", day)]
        return []

    def _time(self, hour: int, minute: int) -> str:
        spoken_hour = self._spell(hour, "cardinal-masculine") if self.language == "de" else self._spell(hour)
        if not minute:
            return str(self.words.get("hour", "{h}").format(h=spoken_hour))
        zero = self.words["zero"] + " " if "zero" in self.words and minute < 10 else ""
        return str(self.words.get("time", "{h} {m}").format(h=spoken_hour, m=zero + self._spell(minute)))

    # Names of things

    def _measure(self, match: re.Match[str]) -> str:
        from babel.units import format_unit

        count = self.group.sub("", match[1].lstrip("-−")).replace(self.point, ".")
        number, unit = Decimal(count) if "." in count else int(count), self.units[match[2]]
        spoken = self._number(match[1])
        if unit not in spoken_words()["every"]["units"].values():
            return f"{spoken} {unit}"
        # A sign that no unit's name has stands for the words.
        name = format_unit(number, unit, "long", format="'#'", locale=self.locale)
        if unit in name:  # CLDR has no name for it
            return f"{spoken} {match[2]}"
        return re.sub(r"\s+", " ", name.replace("#", spoken)) if "#" in name else f"{spoken} {name}"

    def _priced(self, match: re.Match[str]) -> str:
        return self._money((match[1] or "") + match[3], match[2], match[4] or "")

    def _money(self, written: str, sign: str, magnitude: str = "") -> str:
        from babel.numbers import get_currency_name

        digits = self.group.sub("", written).replace(self.point, ".").replace("−", "-")
        integer, _, cents = digits.partition(".")
        exact = len(cents) == 2 and not magnitude
        count = Decimal(digits) if not exact else int(integer)
        names = get_currency_name(CURRENCIES[sign], count=2 if magnitude else count, locale=self.locale)
        parts = re.split(r"[\s-]+", names)
        which = self.words.get("currency")
        name = names if which is None else parts[0] if which == "first" or parts[-1].isupper() else parts[-1]
        if not exact:
            return f"{self._number(written)}{magnitude} {name}"
        spoken = f"{self._number(integer)} {name}"
        rest = self.words.get("pence" if sign == "£" else "cents", "{}").format(self._spell(int(cents)))
        if int(cents) == 1:
            rest = rest.removesuffix("s")
        return f"{spoken} {rest}" if int(cents) else spoken

    def _address(self, written: str) -> str:
        """A URL or an e-mail address: names as they are, letters of what is no name one by one."""
        if "@" not in written and "://" not in written and not re.match(r"www\.|[\w-]+\.(?:com|org|net)", written):
            return written
        signs = {"@": "at", ".": "dot", "/": "slash", "-": "dash"}
        parts = []
        for part in re.findall(r"[A-Za-z]+|\d+|[@./-]", written.replace("://", " colon // ")):
            if part in signs:
                parts.append(str(self.words.get(signs[part], "")))
            elif part in ("www", "https", "http") or len(part) == 2:
                parts.append(" ".join(part))
            else:
                parts.append(part)
        return " ".join(filter(None, parts))

    def _roman(self, match: re.Match[str]) -> str:
        """A Roman numeral: the number of a king, of a chapter, of a century."""
        before, numeral, ending = match[1], match[2], match[3] or ""
        settings, value = self.words["roman"], ROMAN[numeral]
        word = before.strip()
        cardinal = word.lower() in settings.get("cardinal", "").lower().split()
        followed = re.match(r" (\w+)", match.string[match.end() :])
        if followed and followed[1] in self.words.get("ordinal_before", {}):
            return before + self._ordinal(value, self.words["ordinal_before"][followed[1]])
        if ending.isalpha():
            return before + self._ordinal(value, self.words.get("ordinals", {}).get(ending, ""))
        if not cardinal and (not word[:1].isupper() or (len(numeral) == 1 and not settings.get("single"))):
            return match[0]
        if cardinal or value > settings["up_to"]:
            return before + self._spell(value) + ending
        spoken = str(settings.get("after", "{}")).format(self._ordinal(value))
        # German writes a full stop behind ordinals, which is none.
        return before + spoken + ("" if self.language == "de" else ending)
