"""Normaliser of the Open ASR Leaderboard, as its scoring has it since June 2026 (normalizer/ of
github.com/huggingface/open_asr_leaderboard at d1e99b2 of 2026-08-21; Srivastav et al. 2025, arXiv:2510.06961).

English is Whisper's normaliser with more fillers, compounds, spellings of names, and letters said one by one as one
word. Other languages are lower case without punctuation, with their accents, and numbers in words.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from stentor.errors import require

THOUSANDS = re.compile(r"(\d)\s+(\d{3})\b")
"""A space between groups of three digits, as in 10 000."""


@cache
def _facts() -> dict[str, Any]:
    """`open_asr.yaml`, its lists as tables."""
    import yaml

    facts = dict(yaml.safe_load(resources.files(__package__).joinpath("open_asr.yaml").read_text("utf-8")))
    facts["names"] = pairs(facts["names"])
    facts["spellings"] = american() | pairs(facts["spellings"])
    return facts


@cache
def english() -> Callable[[str], str]:
    """The normaliser of the English lists."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    facts = _facts()
    apply = EnglishTextNormalizer(facts["spellings"])
    apply.ignore_patterns = rf"\b({'|'.join(facts['fillers'].split())})\b"
    after = rf"\b({'|'.join(facts['is_after'].split())})'s\b", r"\1 is"
    apply.replacers = dict(after if item[0] == r"'s\b" else item for item in apply.replacers.items())
    numbers, spellings, names = apply.standardize_numbers, apply.standardize_spellings, facts["names"]
    compounds = {
        re.compile(r"\b" + apart.replace(" ", r"\s+") + r"\b"): word for apart, word in facts["compounds"].items()
    }

    def with_compounds(text: str) -> str:
        for pattern, word in compounds.items():
            text = pattern.sub(word, text)
        return str(numbers(text))

    apply.standardize_numbers = with_compounds
    apply.standardize_spellings = lambda text: spelled_together([names.get(w, w) for w in spellings(text).split()])
    return apply


def spelled_together(words: list[str]) -> str:
    """The words with letters and digits that stand alone side by side as one: `b b c` is `bbc`. With `a` or `i` among
    them, which are words, only from three on."""
    runs: list[list[str]] = []
    for word in words:
        alone = len(word) == 1 and word.isalnum()
        if alone and runs and len(runs[-1][-1]) == 1 and runs[-1][-1].isalnum():
            runs[-1].append(word)
        else:
            runs.append([word])
    together = (len(run) > 2 or not {"a", "i"} & set(run) for run in runs)
    return " ".join(("" if whole else " ").join(run) for run, whole in zip(runs, together))


def multilingual(text: str, language: str | None) -> str:
    """The normaliser of the lists in other languages. Numbers become words where num2words knows the language."""
    text = _BRACKETS.sub("", text.lower())
    text = _cleaner()(re.sub(r"\(([^)]+?)\)", "", text)).lower()
    text = " ".join(re.sub(r"[^\w\s]", "", text).split())
    return re.sub(r"\d+", lambda digits: _in_words(digits.group(), language), THOUSANDS.sub(r"\1\2", text))


_BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]")


@cache
def _cleaner() -> Callable[[str], str]:
    from transformers.models.whisper.english_normalizer import remove_symbols

    clean: Callable[[str], str] = remove_symbols
    return clean


@cache
def _in_words(digits: str, language: str | None) -> str:
    require("evaluate", "The normalizer open_asr, for numbers in languages other than English,", "num2words")
    from num2words import num2words

    try:
        return str(num2words(int(digits), lang=language))
    except (NotImplementedError, OverflowError, ValueError, KeyError, TypeError):
        return digits  # as the leader board does where a language or so large a number is not known


def open_asr(text: str, language: str | None) -> str:
    """A text as the leader board scores it; a text without a language is English."""
    return english()(text) if language in (None, "en") else multilingual(text, language)


@cache
def american() -> dict[str, str]:
    """British spelling -> American spelling, lower case, inflected forms included."""
    import yaml

    facts = yaml.safe_load(resources.files(__package__).joinpath("spellings.yaml").read_text("utf-8"))
    table = pairs(facts["irregular"])
    for part, becomes, endings, beginnings in facts["regular"]:
        for ending in endings.replace("-", "").split(" "):
            table |= {word + part + ending: word + becomes + ending for word in beginnings.split()}
    return table


def pairs(text: str) -> dict[str, str]:
    """A table written `word becomes word becomes ...`."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))
