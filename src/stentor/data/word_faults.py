"""Faults of the word times of records: words that are learnt without times."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stentor.data.cut import Cut, language_of, text_of
from stentor.data.supervised import checked_words
from stentor.data.word_units import unmatched


def word_faults(cut: Cut, seconds: float | None = None) -> list[tuple[str, str]]:
    """(word, what is wrong with it) for the times of a cut, and for words that only its text or only they have."""
    checked = checked_words(cut, seconds)
    return faults_of([word for word, _ in checked], [fault for _, fault in checked], text_of(cut), language_of(cut))


def faults_of(
    words: Sequence[Mapping[str, Any]], found: Sequence[str | None], text: str | None, language: str | None
) -> list[tuple[str, str]]:
    """`word_faults` of words with these `faults`."""
    wrong = [(word["word"].strip(), fault) for word, fault in zip(words, found) if fault]
    if words and text:
        untimed, untold = unmatched(text, [word["word"] for word in words], language)
        wrong += [(word, "not in the text") for word in untold] + [(word, "without times") for word in untimed]
    return wrong


def untimed_words(cuts: Iterable[Cut]) -> list[str]:
    """A sentence about the words of training records whose times are not used, if there are any."""
    counts: Counter[str] = Counter()
    places = []
    for cut in cuts:
        if wrong := word_faults(cut):
            counts.update(fault for _, fault in wrong)
            places.append(f"{cut.id}: {wrong[0][0]!r} {wrong[0][1]}")
    kinds = ", ".join(f"{count:,} {fault}" for fault, count in counts.most_common())
    some = "; ".join(places[:3])
    return places and [f"Word times that are not learnt, in {len(places):,} records: {kinds}, such as {some}."]


def timed_and_untimed(cut: Cut) -> list[dict[str, Any]]:
    """The words of a cut in text order; those whose times cannot be right have None as `start` and `end`."""
    return [word if not fault else {**word, "start": None, "end": None} for word, fault in checked_words(cut)]
