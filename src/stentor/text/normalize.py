"""Text normalisers and the units that errors are counted in.

The Whisper normalisers are those of Radford et al. 2022 (arXiv:2212.04356, appendix C), in transformers'
implementation. Two differences from the original, both in `whisper_english`: a text in another language than English
gets the basic normaliser (as Whisper's own evaluation does, language by language), and British spellings are mapped
by Whisper's table without its slips (`stentor.text.open_asr`) unless another one is named.
"""

import logging
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from stentor.errors import ConfigError
from stentor.text.languages import language_code
from stentor.text.multilingual import letter_marks, multilingual, unspaced
from stentor.text.protocols import NORMALIZERS

Published = Literal["seed_tts", "librispeech_pc", "minimax", "fleurs", "open_asr"]
Normalizer = Literal["multilingual", "whisper_english", "whisper_basic", "none", Published]
DEFAULT: Normalizer = "multilingual"
"""Normaliser of every error rate for which none is named."""

log = logging.getLogger(__name__)
_warned: set[str] = set()

SPACELESS = frozenset({"ja", "zh", "yue", "cmn", "wuu", "th", "lo", "my", "km", "bo", "dz"})
"""Languages written without spaces between words: every character counts as a word."""


@lru_cache(maxsize=16)
def normalizer(name: str = DEFAULT, language: str | None = None, spelling: str | None = None) -> Callable[[str], str]:
    """A function from a text to the form that is scored.

    `multilingual` (see its module) keeps the marks that spell a word in any script. `whisper_english` lower-cases,
    drops punctuation, brackets and fillers (uh, mm), spells out contractions and titles, writes numbers as digits
    ("twenty one" becomes "21", "one two" becomes "12") and maps British to American spelling. `whisper_basic` is equal
    to the original: apostrophes, vowel signs and tone marks (Hindi, Thai, Yoruba) become spaces, which hides errors in
    them. `none` only makes white space single spaces; the others are those of published evaluations, see
    `stentor.text.protocols`.
    `spelling` is the path of a Whisper `normalizer.json` (a table of spellings) that replaces the built-in one. Raises
    ConfigError for an unknown name or an unreadable table.
    """
    if name in ("none", "multilingual"):
        return _spaces if name == "none" else lambda text: multilingual(text, language)
    apply: Callable[[str], str]
    if name in NORMALIZERS:
        published, code = NORMALIZERS[name], language_code(language)
        return lambda text: _spaces(published(text, code))
    if name == "whisper_english" and language_code(language) in (None, "en"):
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

        apply = EnglishTextNormalizer(_spellings(spelling))
    elif name in ("whisper_basic", "whisper_english"):
        from transformers.models.whisper.english_normalizer import BasicTextNormalizer

        apply = BasicTextNormalizer()
    else:
        raise ConfigError(f"unknown normalizer '{name}'; known: {', '.join(get_args(Normalizer))}.")
    return lambda text: _spaces(apply(text))


@lru_cache(maxsize=1 << 17)
def normalize(text: str, name: str = DEFAULT, language: str | None = None, spelling: str | None = None) -> str:
    """`text` in the form that is scored, see `normalizer`. Cached: references come back at every evaluation, and the
    English normaliser costs several times the alignment."""
    return normalizer(name, language_code(language), spelling)(text)


def spaceless(text: str, language: str | None) -> bool:
    """Whether every character of a text counts as a word: by its language, or without one by the script of the text."""
    return unspaced(text) if language_code(language) is None else language_code(language) in SPACELESS


def words(text: str, language: str | None = None, like: str | None = None) -> list[str]:
    """The units of the word error rate: words between spaces, or characters of texts without spaces (`spaceless`).
    `like`: the text whose script decides, such as the reference of a hypothesis; default the text itself."""
    return list("".join(text.split())) if spaceless(like or text, language) else text.split()


def characters(text: str, language: str | None = None, like: str | None = None) -> list[str]:
    """The units of the character error rate: characters, single spaces included; of texts without spaces: without."""
    return words(text, language, like) if spaceless(like or text, language) else list(_spaces(text))


def counted_in(texts: Sequence[str], languages: Sequence[str | None]) -> dict[str, str | int]:
    """The unit of the word error rate of these references, as details of a score: `unit` is `word`, `character` or
    `mixed`, with `items_by_character`."""
    count = sum(map(spaceless, texts, languages))
    if 0 < count < len(texts):
        return {"unit": "mixed", "items_by_character": count}
    return {"unit": "character" if count else "word"}


def warn_of_marks(texts: Sequence[str], name: str, languages: Sequence[str | None]) -> int:
    """Number of words from which a normaliser removes marks that spell them; logs a warning the first time."""
    changed = sum(
        letter_marks(multilingual(word, language)) > letter_marks(normalize(word, name, language))
        for text, language in zip(texts, languages, strict=True)
        if not text.isascii() and name not in (DEFAULT, "none")
        for word in text.split()
    )
    if changed and name not in _warned:
        _warned.add(name)
        log.warning(
            f"The normalizer {name} removes marks that are part of letters from {changed:,} words of the references, "
            f"so errors in them are not counted. Use the normalizer {DEFAULT} to count them."
        )
    return changed


def _spaces(text: str) -> str:
    return " ".join(text.split())


def _spellings(path: str | None) -> dict[str, str]:
    if path is None:
        from stentor.text.open_asr import american

        return american()
    import json

    try:
        return {str(k): str(v) for k, v in json.loads(Path(path).read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the spelling table {path} cannot be used ({error}); it must be a JSON object such as Whisper's "
            '`normalizer.json`: {"colour": "color", ...}.'
        ) from error


def plain_text(text: str) -> str:
    """The words of a text in small letters, without punctuation and symbols, one space between them."""
    return " ".join(text.casefold().translate(_PLAIN).split())


class _Plain(dict[int, str]):
    """Punctuation and symbols to spaces, and all else to itself, as the characters come."""

    def __missing__(self, code: int) -> str:
        self[code] = " " if unicodedata.category(chr(code))[0] in "PS" else chr(code)
        return self[code]


_PLAIN = _Plain({ord("'"): "", ord("\u2019"): ""})


SPOKEN_SIGNS = frozenset("&%‰+=@§")
"""Signs that are read aloud where they stand alone."""


def is_spoken(word: str) -> bool:
    """Whether a word has a letter, a digit or a sign that is read aloud."""
    return any(c.isalnum() or c in SPOKEN_SIGNS for c in word)


def bare(word: str) -> str:
    """Letters with their marks and digits, in one case: what must agree between a text and its word times."""
    composed = word.casefold() if word.isascii() else unicodedata.normalize("NFC", word.casefold())
    return "".join(c for c in composed if c.isalnum() or unicodedata.category(c)[0] == "M")
