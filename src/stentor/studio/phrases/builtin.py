"""Phrases to read aloud where the Hub is out of reach: one file `<code>.txt` for each language, one phrase a line.

The files are the registry: a language is on the list when its file is there. They were written for this project, and
each set covers the letters of its language and, where they could be listed, its phonemes (the tests hold it to that).
"""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from stentor.errors import ConfigError
from stentor.studio.texts import say
from stentor.text.languages import checked_language as known_language
from stentor.text.languages import known_code, table

OTHER_CODES = {"no": "nb"}
"""Codes that models and corpora use for a language of the list: Norwegian as a whole is written in Bokmål here."""

NAMES = {row.code: row.name for row in table().values() if row.code not in OTHER_CODES}
"""English names by code, also of languages without phrases."""


@cache
def _files() -> dict[str, Traversable]:
    return {file.name[:-4]: file for file in resources.files(__package__).iterdir() if file.name.endswith(".txt")}


def languages() -> dict[str, str]:
    """ISO 639-1 code -> English name of each language that has phrases, ordered by name."""
    return dict(sorted(((code, NAMES[code]) for code in _files()), key=lambda item: item[1]))


def phrases(code: str) -> list[str]:
    """The phrases of a language in their order: sentences of 4 to 14 words, 100 or more in most languages.

    `code` only chooses from the list and never becomes part of a path. Raises `ConfigError` for a language without
    phrases.
    """
    file = _files().get(OTHER_CODES.get(code, code))
    if file is None:
        have = ", ".join(sorted(_files()))
        raise ConfigError(
            f"There are no built-in phrases for the language '{code}', only for {have}: add your own list."
        )
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line]


def checked_language(code: str | None) -> str | None:
    """A language's code as it is kept, of one that is given (`no`, `pt-BR`, Swedish). None stays None. Raises
    ConfigError for what is no language."""
    short = known_code(known_language(code) or "")
    return OTHER_CODES.get(short, short) or None


def language_name(code: str | None) -> str:
    """English name of a language, else its code."""
    return NAMES.get(OTHER_CODES.get(code or "", code or ""), code or say("language_unknown"))
