"""Language of a text where none is named: by its script, and among those of the Latin one by py3langid."""

import re
from functools import cache
from typing import Any

SCRIPTS = {
    "ja": r"[\u3040-\u30ff]",
    "zh": r"[\u4e00-\u9fff]",
    "ko": r"[\u1100-\u11ff\uac00-\ud7af]",
    "hi": r"[\u0900-\u097f]",
    "th": r"[\u0e00-\u0e7f]",
    "he": r"[\u0590-\u05ff]",
    "el": r"[\u0370-\u03ff]",
    "ka": r"[\u10a0-\u10ff]",
    "hy": r"[\u0530-\u058f]",
    "ta": r"[\u0b80-\u0bff]",
    "fa": r"[پچژگ]",
    "ar": r"[\u0600-\u06ff]",
    "uk": r"[іїєґ]",
    "sr": r"[ђјљњћџ]",
    "bg": r"^(?=.*ъ)[^ыэё]*$",
    "ru": r"[\u0400-\u04ff]",
}
"""Letters by which a language is known, in the order in which they are looked for: of a script that several share, the
letters of their own, and then the language that is written most."""
LATIN = ["en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "no", "fi", "pl", "cs", "hu", "ro", "tr", "id", "vi"]
"""Languages that are recognised by their words."""
FALLBACK, MARGIN = "en", 2.0
"""A text of a word or two, of which no language is likelier by so much (in log probability), is taken for this one."""


def detect(text: str) -> str:
    """The likeliest language of a text, as a code; English for a text without letters."""
    for code, letters in SCRIPTS.items():
        if re.search(letters, text, re.IGNORECASE | re.DOTALL):
            return code
    # Addresses say nothing about the language that they stand in.
    plain = re.sub(r"\S*(?:@|://|www\.)\S*|[\d\W_]+", " ", text).strip()
    if not plain:
        return FALLBACK
    scores = dict(_identifier().rank(plain))
    likeliest = max(scores, key=scores.__getitem__)
    return str(likeliest) if scores[likeliest] > scores[FALLBACK] + MARGIN else FALLBACK


@cache
def _identifier() -> Any:
    import py3langid.langid as langid

    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)
    identifier.set_languages(LATIN)
    return identifier
