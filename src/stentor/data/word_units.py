"""Words of a text and their places in it, with the times that a record has for them."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from stentor.text.languages import language_code
from stentor.text.normalize import SPACELESS, bare, is_spoken


def units(text: str, language: str | None) -> list[dict[str, Any]]:
    """The words of a text, each with its `span` of characters [start, end): between spaces, or by character in
    languages written without spaces. What is not spoken (`is_spoken`) is left out."""
    words: list[dict[str, Any]] = []
    if language_code(language) in SPACELESS:
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
    if language_code(language) in SPACELESS:
        timed_words = [
            {"word": unit["word"], "start": w["start"] + i * seconds, "end": w["start"] + (i + 1) * seconds}
            for w in timed_words
            for characters in [units(w["word"], language)]
            for seconds in [(w["end"] - w["start"]) / len(characters)]
            for i, unit in enumerate(characters)
        ]
    for i, k in matches([bare(u["word"]) for u in text_words], [bare(w["word"]) for w in timed_words]):
        text_words[i] |= {"start": timed_words[k]["start"], "end": timed_words[k]["end"]}
    return text_words


def _combining(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
