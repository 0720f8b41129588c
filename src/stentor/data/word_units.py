"""Words of a text and their places in it, with the times that a record has for them."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from stentor.text.normalize import bare, is_spoken, spaceless


def units(text: str, language: str | None) -> list[dict[str, Any]]:
    """The words of a text, each with its `span` of characters [start, end): between spaces, or by character in
    texts without spaces. What is not spoken (`is_spoken`) is left out."""
    words: list[dict[str, Any]] = []
    if spaceless(text, language):
        for i, character in enumerate(text):
            if words and not character.isspace() and _combining(character):
                start = words[-1]["span"][0]
                words[-1] = {"word": text[start : i + 1], "span": (start, i + 1)}  # a vowel sign belongs to its letter
            elif is_spoken(character):
                words.append({"word": character, "span": (i, i + 1)})
        return words
    end = 0
    for word in text.split():
        start = text.index(word, end)
        end = start + len(word)
        if is_spoken(word):
            words.append({"word": word, "span": (start, end)})
    return words


def timed_units(text: str, words: Sequence[Mapping[str, Any]], language: str | None) -> list[dict[str, Any]]:
    """The `units` of the text, with `start` and `end` where one of the timed words, in order, is the same word.

    Case and punctuation may differ. In languages without spaces the words may have several characters, which then
    share their time evenly.
    """
    from stentor.metrics.wer import matches

    text_words = units(text, language)
    timed_words = [dict(w) for w in words if bare(w["word"])]
    if spaceless(text, language):
        timed_words = [
            {"word": unit["word"], "start": w["start"] + i * seconds, "end": w["start"] + (i + 1) * seconds}
            for w in timed_words
            for characters in [units(w["word"], "zh")]
            for seconds in [(w["end"] - w["start"]) / len(characters)]
            for i, unit in enumerate(characters)
        ]
    for i, k in matches([bare(u["word"]) for u in text_words], [bare(w["word"]) for w in timed_words]):
        text_words[i] |= {"start": timed_words[k]["start"], "end": timed_words[k]["end"]}
    return text_words


def unmatched(text: str, words: Sequence[str], language: str | None) -> tuple[list[str], list[str]]:
    """Words of a text that these words, in order, lack, and those of them that the text lacks. Case and punctuation may
    differ."""
    from stentor.metrics.wer import matches

    ours = [unit["word"] for unit in units(text, language)]
    theirs = [unit["word"] for word in words for unit in units(word, language)]
    pairs = matches(list(map(bare, ours)), list(map(bare, theirs)))
    known, told = {i for i, _ in pairs}, {k for _, k in pairs}
    return [w for i, w in enumerate(ours) if i not in known], [w for k, w in enumerate(theirs) if k not in told]


def _combining(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
