"""The default normaliser of error rates: without case, punctuation and symbols, and with every mark that spells a word.

It differs from `whisper_basic` in three points. Marks that belong to a letter stay: vowel signs, virama, tone marks and
other diacritics, and joiners between letters. Apostrophes inside a word stay, so that "don't" and "l'eau" are one word
each. Points that writers of Hebrew, Arabic and Syriac usually leave out are removed without a gap, as in FLEURS and the
Arabic leaderboards.
"""

import re
import unicodedata

from stentor.text.languages import language_code

BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+?\)")
"""Annotations, such as [noise] and (laughs), as `whisper_basic` removes them."""
UNWRITTEN = re.compile(
    "[\u0610-\u061a\u0640\u064b-\u0652\u0656\u0657\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0730-\u074a"
    "\u034f\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Short vowels and signs of recitation of Arabic, tatweel, points of Syriac, and marks that select a glyph."""
HEBREW_POINTS = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]")
"""Vowels and accents. Yiddish spells with them."""
APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u00b4\u0060\u05f3"), "'")
LETTER_APOSTROPHE = re.compile(r"(?<=\S)[\u02bb\u02bc](?=\S)")
"""Letters in some languages, and another spelling of the apostrophe inside a word."""
ENDS = "'\u200c\u200d"
"""Apostrophe and joiners, which stay inside words."""
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Characters of scripts that are written without spaces: Chinese, Japanese, Thai, Lao, Tibetan, Burmese and Khmer."""


class _Kept(dict[int, str]):
    """Punctuation and symbols to spaces, invisible characters to nothing, and all else to itself."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        to = "" if category in ("Cf", "Me") else " " if category[0] in "PSZ" or category == "Cc" else chr(code)
        return self.setdefault(code, to)


_KEPT = _Kept({0x200B: " "} | {ord(c): c for c in ENDS})


def multilingual(text: str, language: str | None = None) -> str:
    """A text in small letters (NFKC) without punctuation and symbols, where marks of letters, and apostrophes and
    joiners inside words, stay. `language` (any name or code) matters for Yiddish, and for the dotless i of Turkish and
    Azerbaijani."""
    text = text.replace("I\u0307", "i").replace("\u0130", "i")
    if "I" in text and language_code(language) in ("tr", "az"):
        text = text.replace("I", "\u0131")
    text = BRACKETS.sub("", text.lower()).translate(APOSTROPHES)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
        text = UNWRITTEN.sub("", text if language_code(language) == "yi" else HEBREW_POINTS.sub("", text))
    words = (word if word.isalnum() else _trimmed(word) for word in text.translate(_KEPT).split())
    return unicodedata.normalize("NFKC", LETTER_APOSTROPHE.sub("'", " ".join(filter(None, words))))


def _trimmed(word: str) -> str:
    """A word from its first letter or digit on, without apostrophes and joiners at its end."""
    start = next((i for i, c in enumerate(word) if not (letter_marks(c) or c in ENDS)), len(word))
    return word[start:].rstrip(ENDS)


def letter_marks(text: str) -> int:
    """Number of marks in a text that are characters of their own."""
    return sum(unicodedata.category(character)[0] == "M" for character in text)


def unspaced(text: str) -> bool:
    """Whether the script of a text is one without spaces: it has more characters of such scripts than words of others,
    or as many in one word. "iPhone\u3092\u8cb7\u3046" is Japanese; an English sentence with a Chinese name is not."""
    characters = len(UNSPACED.findall(text))
    words = sum(any(map(str.isalpha, word)) for word in UNSPACED.sub(" ", text).split()) if characters else 0
    return characters > words or (0 < characters == words and len(text.split()) == 1)
