"""docs/dependencies.md has one row for each dependency of pyproject.toml, with the extras that install it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED_BY = {"all", "docs", "test", "test-cluster"}
"""Extras that the column `extra` omits where a package has another one: for development, or made of others."""


def declared() -> dict[str, set[str]]:
    """The extras of each package; of the base install there are none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages: dict[str, set[str]] = {}
    for extra, requirements in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in requirements:
            name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
            if name != "stentor":
                packages.setdefault(name, set()).add(extra)
    return {name: extras - NOT_INSTALLED_BY or extras for name, extras in packages.items()}


def documented() -> dict[str, tuple[set[str], list[str]]]:
    """The extras of each package and the other columns of its row."""
    page = (ROOT / "docs" / "dependencies.md").read_text()
    found: dict[str, tuple[set[str], list[str]]] = {}
    sections = r"^## (Base installation|Extras|Documentation and tests)\n(.*?)(?=^## |\Z)"
    for title, part in re.findall(sections, page, re.M | re.S):
        for row in re.findall(r"^\| ([a-z].*) \|$", part, re.M):
            name, *cells = row.split(" | ")
            if name != "package":
                extras = {""} if title == "Base installation" else set(re.findall(r"`([^`]+)`", cells.pop(0)))
                assert name not in found, f"{name} has two rows"
                found[name] = extras, cells
    return found


def test_every_dependency_has_a_row_with_its_extras():
    rows = documented()
    assert {name: extras for name, (extras, _) in rows.items()} == declared()
    for name, (_, cells) in rows.items():
        purpose, why, size, licence, release = cells
        assert purpose and why and licence and float(size) > 0, name
        assert re.fullmatch(r"\d[\w.]*, (20\d\d-\d\d-\d\d|not known)", release), name
