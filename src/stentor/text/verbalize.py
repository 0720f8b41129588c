"""Text normalisation: numbers, dates, times, money, units, addresses and abbreviations in words, as they are read.

Chinese and Japanese are read by the grammars of WeTextProcessing (the package `wetext`). All other languages are read
with CLDR's data: numbers are spelled out by its rules (`unicode-rbnf`), months, units and currencies have its names
(Babel), and `spoken_words.yaml` has what CLDR has not. What stands in [brackets] (pronunciations, [laughter]) and
pinyin such as ZHE2 stays as it is.
"""

import re
from collections.abc import Callable
from functools import cache

from stentor.errors import ConfigError
from stentor.text.languages import language_code
from stentor.text.number_reader import reader, spoken_words

VERBATIM = re.compile(r"(\[[^\]]*\])")
"""Text that stays as it is: tags and phones in brackets, in Chinese also pinyin."""
VERBATIM_CHINESE = re.compile(r"(\[[^\]]*\]|(?<![A-Za-z])[A-ZÜ]{0,4}[AEIOUÜ][A-ZÜ]{0,4}[1-5](?!\d))")


def check_installed() -> None:
    """Raises ConfigError that names the extra when a package is missing."""
    try:
        import babel  # noqa: F401
        import py3langid  # noqa: F401
        import unicode_rbnf  # noqa: F401
        import wetext  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"Writing numbers in words needs the package {error.name}: `pip install 'stentor[speak]'`, or leave out "
            "--normalize."
        ) from None


def normalize(text: str, language: str | None) -> str:
    """The text as it is read aloud. Without a language that of the text is guessed (`stentor.text.detect`). Raises
    ConfigError for numbers in a language that has no words for them here."""
    if language is None:
        from stentor.text.detect import detect

        language = detect(VERBATIM.sub("", text))
    code = language_code(language) or "en"
    chinese = code in ("zh", "yue")
    verbatim = VERBATIM_CHINESE if chinese else VERBATIM
    parts = verbatim.split(text)
    if chinese or code == "ja":
        read = grammar("zh" if chinese else "ja")
    elif code in spoken_words() or any(c.isdecimal() for part in parts[::2] for c in part):
        read = reader(code).read
    else:
        return text
    parts[::2] = map(read, parts[::2])
    return "".join(parts)


@cache
def grammar(language: str) -> Callable[[str], str]:
    """The grammar of WeTextProcessing for `zh` or `ja`."""
    from wetext import Normalizer

    apply = Normalizer(lang=language, operator="tn").normalize

    def read(match: re.Match[str]) -> str:
        text = match[0]
        if language == "zh":
            text = re.sub(r"(?<=\w)@(?=\w)", "艾特", text)
            text = re.sub(r"(?<=[A-Za-z])\.(?=[A-Za-z])", "点", text)
        else:
            text = re.sub(r"(\d+(?:\.\d+)?)℃", r"\1度", text)
        return re.sub(r'\\(["\\])', r"\1", str(apply(text)))  # it escapes these two

    return lambda text: re.sub(r"\S(?:.*\S)?", read, text, flags=re.DOTALL)  # spaces at the ends stay
