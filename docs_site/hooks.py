"""Hooks of MkDocs: pages that are generated from the code, and links that leave docs/."""

import ast
import html
import importlib
import inspect
import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from stentor.cli import build
from stentor.config.reference import markdown

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
    "stentor.errors.": "Errors",
    "stentor.version.": "Version",
}
"""Headings of the API pages, by the package that defines the names below them."""
log = logging.getLogger("mkdocs.hooks.stentor")


def on_config(config: MkDocsConfig) -> None:
    """Take the address of the repository from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    config.edit_uri = "edit/main/docs/" if config.repo_url else None


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/."""
    pages = {"keys": markdown(), "commands": commands(), "api": api("stentor"), "api-extend": api("stentor.extend")}
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        pages[name.lower()] = re.sub(r"\]\((?!\w+:|#)(?:(docs/)?)", lambda m: "](" if m[1] else "](../", text)
    for name, text in pages.items():
        files.append(File.generated(config, f"{name}.md", content=text))


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside of docs/ into links to the repository, or into text if its address is not known."""

    def outside(link: re.Match[str]) -> str:
        if not (path := ROOT / link[2]).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link[2])
        kind = "tree" if path.is_dir() else "blob"
        return f"[{link[1]}]({config.repo_url.rstrip('/')}/{kind}/main/{link[2]})" if config.repo_url else link[1]

    return re.sub(r"\[([^\]]*)\]\(\.\./([^)\s#]+)\)", outside, text)


def commands() -> str:
    """The command reference: every verb with its options, as `--help` lists them."""
    return "# Command reference\n\n" + "\n".join(_command(build(), "stentor", 2))


def _command(command: Any, name: str, level: int) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"{'#' * level} `{name}`\n\n{_plain(command.help)}\n\n```text\n{usage}\n```\n"
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    yield "| option | meaning |\n|---|---|"
    yield from (f"| `{option}` | {_plain(meaning)} |" for option, meaning in records if option != "--help")
    yield ""
    for verb in getattr(command, "commands", {}).values():
        yield from _command(verb, f"{name} {verb.name}", 2)


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
    groups: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for name in sorted(importlib.import_module(module).__all__, key=str.lower):
        package = max((prefix for prefix in GROUPS if origins[name].startswith(prefix)), key=len)
        groups[GROUPS[package]].append(f"::: {module}.{name}\n")
    lines = [f"## {title}\n\n" + "\n".join(names) for title, names in groups.items() if names]
    return f"# `{module}`\n\n{inspect.getdoc(importlib.import_module(module))}\n\n" + "\n".join(lines)
