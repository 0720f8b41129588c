"""Words as they are written, in scripts with spaces between them and in those without."""

import re
from collections.abc import Iterable

import regex

_LETTERS = (
    r"\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u3190-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
"""Letters of scripts without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Han, kana."""
_LETTER = rf"(?:(?=\w)[{_LETTERS}])"
_WORD = re.compile(rf"[^\w\s]*{_LETTER}[^\w\s]*|(?:(?!{_LETTER})\S)+")
_UNSPACED = re.compile(rf"[{_LETTERS}\u00b7\u2010-\u2027\u3001-\u303f\uff01-\uff65]")
"""Characters that are also written without spaces: their punctuation."""

_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}ー\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"
_SEAM = regex.compile(rf"{_CJK}[·‐-‧]*\n[·‐-‧]*{_CJK}")


def written_words(text: str) -> list[str]:
    """The words of a text with their punctuation: between spaces, or letter by letter (with its vowel signs) in scripts
    without spaces, as their error rates are counted, independent of the language's name."""
    return _WORD.findall(text)


def spaced(before: str, word: str) -> str:
    """The word as it follows a text: after a space, unless both are of a script without spaces."""
    unspaced = not before or not word or (_UNSPACED.match(before[-1]) and _UNSPACED.match(word))
    return word if unspaced else f" {word}"


def joined(words: Iterable[str]) -> str:
    """The text of the words."""
    text = ""
    for word in words:
        text += spaced(text, word)
    return text


def joined_windows(texts: Iterable[str]) -> str:
    """The text of windows, in order. Nothing stands between two that end and begin with Chinese or Japanese; a space
    stands between all others, also between phrases of Thai or Khmer."""
    text = ""
    for following in texts:
        glued = not text or not following or _SEAM.search(f"{text[-9:]}\n{following[:9]}")
        text += following if glued else f" {following}"
    return text
