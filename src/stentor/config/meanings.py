"""What each key means: the docstrings under the fields of a section, read from its source when they are asked for.

Pydantic can collect them too, but does so for every class at import, which would double the time of `config check`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from pathlib import Path

from stentor.config.section import Section


def meanings(section: type[Section]) -> dict[str, str]:
    """The docstring of each key (as written in a file) that has one, on one line, inherited keys included."""
    found: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        module = sys.modules.get(cls.__module__)
        if issubclass(cls, Section) and module is not None and module.__file__:
            found |= _in_file(module.__file__).get(cls.__qualname__, {})
    return {field.alias or name: found[name] for name, field in section.model_fields.items() if name in found}


def summary(section: type[Section]) -> str:
    """The first paragraph of a section's docstring, on one line."""
    return _line((inspect.getdoc(section) or "").split("\n\n")[0]) if section.__doc__ else ""


@functools.cache
def _in_file(file: str) -> dict[str, dict[str, str]]:
    """Field docstrings by class, for all classes of a module."""
    found: dict[str, dict[str, str]] = {}
    _collect(ast.parse(Path(file).read_text(encoding="utf-8")).body, "", found)
    return found


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, dict[str, str]]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[prefix + node.name] = _of_class(node)
            _collect(node.body, f"{prefix}{node.name}.", found)
        elif isinstance(node, ast.FunctionDef):
            _collect(node.body, f"{prefix}{node.name}.<locals>.", found)


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:]):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = _line(inspect.cleandoc(text.value.value))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
