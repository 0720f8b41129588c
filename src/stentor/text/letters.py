"""Letters that a model is trained to write in place of those of its texts."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SPOKEN = "%&@#"
"""Punctuation that is spoken, besides letters, marks, digits and symbols."""
SHOWN = 12


def letters_of(text: str) -> set[str]:
    """The letters, digits and symbols of a text, each with the marks behind it."""
    letters: list[str] = []
    for c in text:
        if letters and not c.isascii() and unicodedata.category(c)[0] == "M":
            letters[-1] += c
        else:
            letters.append(c)
    return {c for c in letters if unicodedata.category(c[0])[0] in "LMNS" or c in SPOKEN}


def same_letter(letter: str, written: str) -> bool:
    """Whether two letters differ in their case at most: ß and SS, ı and I are different letters."""
    letter, written = (unicodedata.normalize("NFC", c) for c in (letter, written))
    return written.lower() == letter.lower() or (len(written) == 1 and written.casefold() == letter.casefold())


@dataclass
class ChangedLetters:
    """Letters of texts that a model writes as others or leaves out."""

    records: int
    of: int
    letters: dict[str, str]
    """Letters that are written for each, the most frequent first."""

    def __str__(self) -> str:
        pairs = [f"{letter} -> {written or 'nothing'}" for letter, written in self.letters.items()]
        more = f" and {len(pairs) - SHOWN:,} more" if len(pairs) > SHOWN else ""
        return f"{self.records:,} of {self.of:,} texts: {', '.join(pairs[:SHOWN])}{more}"


def changed_letters(texts: Iterable[str], written: Callable[[str], str]) -> ChangedLetters | None:
    """Letters of the texts that `written` does not give back, but for their case. None: there are none."""
    known: dict[str, str | None] = {}
    counts: Counter[str] = Counter()
    records = total = 0
    for text in texts:
        total += 1
        letters = letters_of(text)
        for letter in letters - known.keys():
            known[letter] = None if same_letter(letter, other := written(letter)) else other
        changed = sorted(letter for letter in letters if known[letter] is not None)
        counts.update(changed)
        records += bool(changed)
    return ChangedLetters(records, total, {c: known[c] or "" for c, _ in counts.most_common()}) if records else None
