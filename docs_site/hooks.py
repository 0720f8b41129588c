"""Hooks of MkDocs: pages that are generated from the code, and links that leave docs/."""

import ast
import html
import importlib
import inspect
import logging
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from stentor.cli import build
from stentor.config.reference import markdown
from stentor.inference.declarations import declarations, default_of

ROOT = Path(__file__).parents[1]
GROUPS = {
    "stentor.inference.": "Models and results",
    "stentor.inference.speak.": "Speech synthesis",
    "stentor.inference.stream.": "Streaming",
    "stentor.section.": "Registries",
    "stentor.models.": "Model families",
    "stentor.models.codecs.": "Audio codecs",
    "stentor.sources.": "Data sources",
    "stentor.data.": "Records and batches",
    "stentor.audio.": "Features",
    "stentor.losses.": "Losses",
    "stentor.tasks.": "Tasks",
    "stentor.tasks.speak.evaluator.": "Judges",
    "stentor.engine.": "Callbacks",
    "stentor.metrics.": "Metrics",
    "stentor.inference.segments.": "Segmentation stages",
    "stentor.commands.": "Training from Python",
    "stentor.errors.": "Errors",
    "stentor.version.": "Version",
}
"""Headings of the API pages, by the package that defines the names below them."""
log = logging.getLogger("mkdocs.hooks.stentor")


class Declarations(griffe.Extension):
    """Fields that are declared options: the help is part of the documentation, and the default is the value."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called by mkdocstrings for each class."""
        if not any(re.match(r"(Option|Flag)\(", str(a.value)) for a in cls.attributes.values()):
            return
        for field, declared in declarations(vars(importlib.import_module(cls.module.path))[cls.name]):
            if (attribute := cls.members.get(field.name)) is not None and isinstance(attribute, griffe.Attribute):
                more = attribute.docstring.value if attribute.docstring else ""
                attribute.docstring = griffe.Docstring(f"{declared.help}\n\n{more}".strip(), parent=attribute)
                attribute.value = repr(default_of(field))


def on_config(config: MkDocsConfig) -> None:
    """Take the address of the repository from pyproject.toml or, in a GitHub workflow, from its environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = os.environ.get("GITHUB_REPOSITORY")
    address = project.get("urls", {}).get("Repository", f"https://github.com/{name}" if name else "").rstrip("/")
    config.extra["repository"] = address  # with `repo_url` the theme would ask GitHub for stars whenever a page opens
    config.edit_uri = f"{address}/edit/main/docs/" if address else None
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": address}] if address else []


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/."""
    pages = {"keys": markdown(), "commands": commands(), "api": api("stentor"), "api-extend": api("stentor.extend")}
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        pages[name.lower()] = re.sub(r"\]\((?!\w+:|#)(docs/)?", lambda link: "](" if link[1] else "](../", text)
    for name, text in pages.items():
        files.append(File.generated(config, f"{name}.md", content=text))


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside of docs/ into links to the repository, or into text if its address is not known."""
    address = config.extra["repository"]

    def outside(link: re.Match[str]) -> str:
        if not (path := ROOT / link[2]).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link[2])
        kind, anchor = "tree" if path.is_dir() else "blob", link[3] or ""
        return f"[{link[1]}]({address}/{kind}/main/{link[2]}{anchor})" if address else link[1]

    text = re.sub(r"\[([^\]]*)\]\(\.\./([^)\s#]+)(#[^)\s]*)?\)", outside, text)
    text = re.sub(r"`(keys|commands|api|api-extend)\.md`", r"[`\1.md`](\1.md)", text)  # only the site has these
    return FENCE_IN_LIST.sub(lambda fence: re.sub("^", "  ", fence[0], flags=re.M) + "\n", ROW.sub(_bare_pipes, text))


FENCE_IN_LIST = re.compile(r"^( {2,3})```.*?^\1```$", re.M | re.S)
"""GitHub wants an indent of two columns, Python-Markdown of four and an empty line behind."""
ROW = re.compile(r"^\|.*$", re.M)


def _bare_pipes(row: re.Match[str]) -> str:
    """A row of a table. GitHub wants a backslash before each | in code; Python-Markdown shows it."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])


class Tables:
    """Stands in for click's formatter: what `--help` lists becomes tables."""

    width = 10_000  # nothing is shortened

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def section(self, heading: str) -> Iterator[None]:
        self.heading = heading
        yield

    def write_dl(self, rows: list[tuple[str, str]]) -> None:
        cells = [f"| `{name}` | {_plain(meaning)} |" for name, meaning in rows if name != "--help"]
        if cells:
            self.lines += [f"| {self.heading} | |", "|---|---|", *cells, ""]


def commands() -> str:
    """The command reference: every verb with its options, as `--help` lists them."""
    return "# Command reference\n\n" + "\n".join(_command(build(), "stentor"))


def _command(command: Any, name: str) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"## `{name}`\n\n{_plain(command.help)}\n\n```text\n{usage}\n```\n"
    command.format_options(context, tables := Tables())
    yield from tables.lines
    for verb in getattr(command, "commands", {}).values():
        yield from _command(verb, f"{name} {verb.name}")


def _plain(text: str) -> str:
    """Markdown that shows the text as it is; code in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(part, False)) for part in parts
    )


def api(module: str) -> str:
    """Every public name of a module, grouped by the package that defines it."""
    file = ROOT / "src" / (module.replace(".", "/") + (".py" if "." in module else "/__init__.py"))
    imports = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    origins = {alias.name: f"{node.module}." for node in imports for alias in node.names}
    inherited = module == "stentor"  # of bases that are not public
    groups: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for name in sorted(importlib.import_module(module).__all__, key=str.lower):
        package = max((prefix for prefix in GROUPS if origins[name].startswith(prefix)), key=len)
        groups[GROUPS[package]].append(f"::: {module}.{name}\n    options: {{inherited_members: {inherited}}}\n")
    lines = [f"## {title}\n\n" + "\n".join(names) for title, names in groups.items() if names]
    return f"# `{module}`\n\n{inspect.getdoc(importlib.import_module(module))}\n\n" + "\n".join(lines)
