"""The pieces of HTML that a run's page is made of: the macros of page/run.html, in which every text is escaped."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

from stentor.studio.texts import say

if TYPE_CHECKING:
    from jinja2 import Template


def in_words(state: str) -> str:
    """A run's state for a person."""
    return say(f"state_{state}")


def style() -> str:
    """The style of what the report has as well, for everything inside `.stentor-run`."""
    parts = resources.files("stentor.report").joinpath("templates", "parts.css").read_text(encoding="utf-8")
    pairs = vars(_pieces().environment.get_template("pairs.html").module)["style"]()
    return f".stentor-run {{\n{parts}{pairs}}}\n"


def render(macro: str, *arguments: Any) -> str:
    """What a macro of page/run.html makes of the arguments."""
    return str(vars(_pieces().module)[macro](*arguments))


@functools.cache
def _pieces() -> Template:
    from jinja2 import ChoiceLoader, PackageLoader

    from stentor.report.drawings import environment

    loader = ChoiceLoader([PackageLoader("stentor.studio", "page"), PackageLoader("stentor.report")])
    return environment().overlay(loader=loader).get_template("run.html", globals={"say": say, "in_words": in_words})
