"""Pages of reports: the templates, and what every page has."""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from typing import TYPE_CHECKING, Any

from stentor.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def page(template: str, **parts: Any) -> str:
    """A page as one file that loads nothing from elsewhere: no scripts, fonts or pictures."""
    code, digest = script()
    common = {"script": code, "digest": digest, "style": source("report.css") + source("parts.css")}
    common |= {"version": __version__, "written": time.strftime("%Y-%m-%d %H:%M")}
    return environment().get_template(template).render(**common, **parts)


@functools.cache
def script() -> tuple[str, str]:
    """The script of pages and its SHA-256 in base64. Transcripts are strangers' text. They are escaped, and a page
    allows no script but the one with this hash."""
    code = "".join(source(name) for name in ("charts.js", "report.js", "drawn.js"))
    return code, base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def macro(template: str, name: str, *arguments: Any) -> str:
    """Output of a template's macro for the arguments."""
    return str(vars(environment().get_template(template).module)[name](*arguments))


def source(name: str) -> str:
    """A template as it is written, such as a style sheet."""
    pages = environment()
    return pages.loader.get_source(pages, name)[0]  # type: ignore[union-attr]


@functools.cache
def environment() -> Environment:
    """Where the templates of the report and of drawings are; texts in them are escaped. Each is compiled once in a
    process."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from stentor.metrics.format import count, duration, figure

    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    pages = Environment(loader=PackageLoader("stentor.report"), autoescape=True, undefined=StrictUndefined, **blocks)
    pages.filters |= {"duration": duration, "short": count, "figure": lambda value, metric: figure(metric, value)}
    return pages
