"""Scripts: which ones the built-in voice of a language reads, besides the Latin one, and which one a text is in."""

import re
import unicodedata
from collections import Counter

READ = {
    "CYRILLIC": "ba be bg bs cv hr kk ky lfn mk nog ru sl sr tt uk uz",
    "GREEK": "el grc",
    "ARABIC": "ar fa sd ug ur",
    "HEBREW": "he",
    "DEVANAGARI": "hi kok mr ne",
    "BENGALI": "as bn bpy",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "MYANMAR": "my shn",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy hyw",
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh yue hak",  # not ja: the voice reads kana alone
    "ETHIOPIC": "am ti",
    "CHEROKEE": "chr",
    "SHAVIAN": "en",
}
"""By the first word of the Unicode names of its letters: the languages that espeak-ng 1.52 reads it in. In others it
says the letters' names, or only their script's."""


def unread_script(text: str, language: str | None) -> str | None:
    """The script that over half of a text's letters are in, where the voice of this language does not read them."""
    letters = [c for c in unicodedata.normalize("NFKC", text) if c.isalpha()]
    scripts = Counter(re.split("[ -]", unicodedata.name(c, ""))[0] for c in letters)
    unread = Counter({s: n for s, n in scripts.items() if s != "LATIN" and language not in READ.get(s, "").split()})
    if 2 * unread.total() <= len(letters):
        return None
    script = unread.most_common(1)[0][0]
    return script if script == "CJK" else script.title()
