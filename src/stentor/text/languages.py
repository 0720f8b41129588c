"""Languages: names and codes, both ways, from one table.

`languages.tsv` has the 646 languages of OmniVoice (k2-fsa/OmniVoice, docs/lang_id_name_map.tsv) and those that Whisper
and the corpora of this package have in addition.
"""

import difflib
import re
import unicodedata
from functools import cache
from importlib import resources
from typing import NamedTuple


class Language(NamedTuple):
    """A row of the table."""

    code: str
    """ISO 639-1 where there is one, else ISO 639-3."""
    name: str
    """In English."""
    iso639_3: str
    omnivoice: str = ""
    """The code that OmniVoice's models know it by; empty: they were not trained on it."""
    others: str = ""
    """Other names and codes, separated by `|`."""


@cache
def table() -> dict[str, Language]:
    """All languages by their codes."""
    lines = resources.files(__package__).joinpath("languages.tsv").read_text(encoding="utf-8").splitlines()
    return {row.code: row for row in (Language(*line.split("\t")) for line in lines[1:])}


@cache
def _names() -> dict[str, Language]:
    names: dict[str, Language] = {}
    for row in table().values():
        for name in filter(None, (row.code, row.iso639_3, row.name, *row.others.split("|"))):
            names.setdefault(_plain(name), row)
    return names


@cache
def find(language: str) -> Language | None:
    """The language of a name or code in any case and with any region: `English`, `en`, `eng` and `en-GB` are one. None
    where the table has none."""
    name = _plain(language)
    return _names().get(name) or _names().get(name.partition("-")[0])


def language_code(language: str | None) -> str | None:
    """`en` for `en`, `en-GB`, `en_US`, `eng` and `English`; what the table does not have in small letters, without its
    region; None for None and empty."""
    if not language or not language.strip():
        return None
    row = find(language)
    return row.code if row is not None else re.split(r"[-_]", language.strip().lower())[0]


def known_code(language: str) -> str:
    """The code of a language; what the table does not have stays unchanged."""
    row = find(language)
    return language if row is None else row.code


def unknown_language(language: str) -> str:
    """A sentence about a language that is not in the table, with names and codes that look like it."""
    near = dict.fromkeys(_names()[name] for name in difflib.get_close_matches(_plain(language), _names(), 5, 0.7))
    offer = " or ".join(f"{row.code} ({row.name})" for row in list(near)[:3])
    advice = f"did you mean {offer}?" if offer else "give a code such as en or cmn, or an English name."
    return f"There is no language {language!r}: {advice}"


def _plain(name: str) -> str:
    """A name without case and accents."""
    decomposed = unicodedata.normalize("NFKD", name.strip().casefold().replace("_", "-"))
    return "".join(c for c in decomposed if not unicodedata.combining(c))
