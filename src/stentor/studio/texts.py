"""Texts of the page (`texts.yaml`, the one file to translate), and its pieces of HTML (page/pieces.html)."""

import functools
from importlib import resources
from typing import Any

from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError


@functools.cache
def texts() -> dict[str, str]:
    """Sentence by key. Raises ConfigError for a file that is not a mapping of keys to texts."""
    sentences = read_yaml(resources.files(__package__).joinpath("texts.yaml").read_text(encoding="utf-8"))
    if not isinstance(sentences, dict) or not all(isinstance(v, str) for v in sentences.values()):
        raise ConfigError("studio/texts.yaml must be a mapping of keys to texts.")
    return sentences


def say(key: str, **values: object) -> str:
    """The sentence of a key with its values filled in."""
    return texts()[key].format(**values)


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
