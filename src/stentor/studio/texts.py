"""Texts of the page (`texts.yaml`, the one file to translate), and its pieces of HTML (page/pieces.html)."""

import functools
import re
from importlib import resources
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.layouts.transcripts import ENDINGS
from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError, without_secrets

_COMMANDS = re.compile(r"(?<![\w-])--[a-z]|`(?:stentor|hf|pip) |\bpip install\b|\bHF_TOKEN\b")
"""Commands, options and variables of a command line."""


@functools.cache
def texts() -> dict[str, str | dict[str, str]]:
    """Sentence by key, or its forms `one` and `other`; and the endings of files that the page offers. Raises
    ConfigError for a file that has something else."""
    sentences = read_yaml(resources.files(__package__).joinpath("texts.yaml").read_text(encoding="utf-8"))
    forms = [v if isinstance(v, dict) else {"one": v, "other": v} for v in sentences.values()]
    if any(f.keys() != {"one", "other"} or {*map(type, f.values())} != {str} for f in forms):
        raise ConfigError("studio/texts.yaml must be a mapping of keys to texts, or to texts for `one` and `other`.")
    files = {"audio_files": (*AUDIO_SUFFIXES, "audio/*", "video/*"), "text_files": [f".{end}" for end in ENDINGS]}
    return sentences | {key: ",".join(endings) for key, endings in files.items()}


def say(key: str, **values: object) -> str:
    """The sentence of a key with its values filled in, in its form for the value `count` (a number or its text)."""
    text = texts()[key]
    if isinstance(text, dict):
        text = text["one" if str(values["count"]) == "1" else "other"]
    return text.format(**values)


def for_page(message: object) -> str:
    """An error message without secrets, and without the parts of its sentences that name commands and options."""
    text = re.sub(r" ?\([^()]*\)", lambda m: "" if _COMMANDS.search(m[0]) else m[0], without_secrets(str(message)))
    if not _COMMANDS.search(text):
        return text
    kept = [part for part in re.split(r"(?<=[.:;]) ", text) if not _COMMANDS.search(part)]
    return re.sub(r"[:;]$", ".", " ".join(kept)) or say("command_only")


def in_words(state: str) -> str:
    """A run's state for a person."""
    return say(f"state_{state}")


def render(macro: str, *arguments: Any) -> str:
    """Output of a macro of page/pieces.html for the arguments, with every text escaped."""
    return str(vars(pieces().module)[macro](*arguments))


@functools.cache
def pieces() -> Any:
    """The template page/pieces.html, which has the templates of the report beside it."""
    from jinja2 import ChoiceLoader, PackageLoader

    from stentor.report.pages import environment

    loader = ChoiceLoader([PackageLoader("stentor.studio", "page"), PackageLoader("stentor.report")])
    return environment().overlay(loader=loader).get_template("pieces.html", globals={"say": say, "in_words": in_words})
