"""The page of hard lines, and whether a line is read aloud as a person would."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path


def lines(name: str) -> list[list[str]]:
    """(language, written, spoken): spoken forms are separated by `|`, and so are alternatives within `{}`."""
    return [line.split("\t") for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()]


PAGE = lines("hard_lines.tsv")
FRESH = lines("fresh_lines.tsv")
"""Lines that were written after all rules, and that no rule was changed for."""
COMPOUNDS = {"de", "it", "ja", "zh"}
"""Languages in which a space within a number says nothing."""


def plain(language: str, text: str) -> str:
    """A text as it is compared: no case, no punctuation, letters that are spelled in one ("p m" is "pm")."""
    text = unicodedata.normalize("NFKD", text.casefold()).replace("\u0901", "\u0902").replace("\u0301", "")
    text = "".join(" " if unicodedata.category(c)[0] in "ZP" and c not in "'’." else c for c in text)
    text = re.sub(r"(?<=\w)\.(?=\w\b)|['’.]", "", text)
    if language == "en":
        text = re.sub(r"\band\b", " ", text)
    text = re.sub(r"\b([a-z]) (?=[a-z]\b)", r"\1", " ".join(text.split()))
    return text.replace(" ", "") if language in COMPOUNDS else text


def forms(spoken: str) -> set[str]:
    """Every form that a line's third column accepts."""
    if (inner := re.search(r"\{([^{}]*)\}", spoken)) is not None:
        parts = inner[1].split("|")
        return set(itertools.chain(*(forms(spoken[: inner.start()] + p + spoken[inner.end() :]) for p in parts)))
    return set(spoken.split("|"))


def right(read: Callable[[str, str], str], page: list[list[str]] = PAGE) -> tuple[Counter[str], list[str]]:
    """Lines by language that `read(text, language)` says in an accepted form, and what became of the others."""
    counts: Counter[str] = Counter()
    wrong = []
    for language, written, spoken in page:
        try:
            text = read(written, language)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        accepted = {plain(language, form) for form in forms(spoken)}
        counts[language] += plain(language, text) in accepted
        if plain(language, text) not in accepted:
            wrong.append(f"{language}: {written} -> {text}")
    return counts, wrong
