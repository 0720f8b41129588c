"""Languages: names and codes, both ways, from one table.

`languages.tsv` has the 646 languages of OmniVoice (k2-fsa/OmniVoice, docs/lang_id_name_map.tsv) and those that Whisper
and the corpora of this package have in addition. langcodes knows the codes of all others.
"""

import difflib
import re
import unicodedata
from functools import cache, lru_cache
from importlib import resources
from typing import Annotated, NamedTuple

import langcodes
from pydantic import AfterValidator

from stentor.errors import ConfigError


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
    own: str = ""
    """Its own name for itself, where that is not `name`."""


@cache
def table() -> dict[str, Language]:
    """All languages by their codes."""
    lines = resources.files(__package__).joinpath("languages.tsv").read_text(encoding="utf-8").splitlines()
    return {row.code: row for row in (Language(*line.split("\t")) for line in lines[1:])}


@cache
def _registered(code: str) -> Language | None:
    """A language that is not in the table, by its code in the registry of IANA, which has all of ISO 639."""
    if not re.fullmatch("[a-z]{2,3}", code) or "qaa" <= code <= "qtz":  # these are for private use
        return None
    tag = langcodes.standardize_tag(code)
    return Language(tag, tag, code) if langcodes.tag_is_valid(tag) else None


@cache
def _names() -> dict[str, Language]:
    names: dict[str, Language] = {}
    for row in table().values():
        for name in filter(None, (row.code, row.iso639_3, row.name, row.own, *row.others.split("|"))):
            names.setdefault(_plain(name), row)
    return names


@cache
def find(language: str) -> Language | None:
    """The language of a name or code in any case and with any region: `English`, `en`, `eng` and `en-GB` are one. None
    where the table has none."""
    name = _plain(language)
    short = name.partition("-")[0]
    return _names().get(name) or _names().get(short) or _registered(short)


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


def checked_language(language: str | None) -> str | None:
    """The code of a language that a user gives by name or code, with its region where one is given (`pt-br`); None for
    None, empty and `auto`. Raises ConfigError for one that is not in the table."""
    if not language or language.strip().lower() in ("", "auto"):
        return None
    if (row := find(language)) is None:
        raise ConfigError(unknown_language(language))
    region = _plain(language).partition("-")[2]
    return f"{row.code}-{region}" if re.fullmatch("[a-z]{2}", region) and _plain(language) not in _names() else row.code


@lru_cache(maxsize=4096)
def among(language: str | None, known: tuple[str, ...]) -> str | None:
    """The code or name in `known` of a language that is given by any name or code: `no` for `nb`, `jw` for `jv`, `tl`
    for `fil`, `zh` for `zh-CN` and Mandarin; `no` for Nynorsk that is not there itself. None where there is none."""
    code, there = language_code(language) or "", {_plain(name): name for name in reversed(known)}
    by_code = {known_code(name): name for name in reversed(known)}
    if name := there.get(_plain(language or "")) or there.get(_plain(code)) or by_code.get(code):
        return name
    valid = [code for code in by_code if langcodes.tag_is_valid(code)] if langcodes.tag_is_valid(code) else []
    near, _ = langcodes.closest_match(code, valid, max_distance=1) if valid else ("", 0)
    return by_code.get(near) or (by_code.get("no") if code == "nn" else None)


def unknown_language(language: str) -> str:
    """A sentence about a language that is not in the table, with names and codes that look like it."""
    near = dict.fromkeys(_names()[name] for name in difflib.get_close_matches(_plain(language), _names(), 5, 0.7))
    offer = " or ".join(f"{row.code} ({row.name})" for row in list(near)[:3])
    advice = f"did you mean {offer}?" if offer else "give a code such as en or cmn, or an English name."
    return f"There is no language {language!r}: {advice}"


def _known(language: str) -> str:
    if language and find(language) is None:
        raise ValueError(unknown_language(language).rstrip("."))
    return language


LanguageName = Annotated[str, AfterValidator(_known)]
"""A field for a language of the table, by a name or code."""


def _plain(name: str) -> str:
    """A name without case and accents."""
    decomposed = unicodedata.normalize("NFKD", name.strip().casefold().replace("_", "-"))
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def label(code: str) -> str:
    """A language for people to find in a list: `Persian (فارسی, Farsi)`, its name in English, its own and others."""
    row = find(code)
    others = [row.own, *row.others.split("|")] if row is not None else []
    names = [name for name in others if name and not re.fullmatch("[a-z]{2,3}|.* English", name)]
    return f"{row.name} ({', '.join(names)})" if row is not None and names else row.name if row is not None else code
