"""Configs of other systems, turned into run files. One module per system; each has `convert(path) -> Converted`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stentor.config.document import Mistake, Mistakes, Node, Place, dotted, parse, read_text, split_key
from stentor.config.explain import explain, guess
from stentor.config.load import dump, inline
from stentor.config.merge import merge, put, stage
from stentor.config.schema import Config
from stentor.errors import ConfigError
from stentor.section import Section


@dataclass(frozen=True)
class Converted:
    """A run file made from another system's config."""

    name: str
    """The run's name, for a file name."""
    text: str
    """The run file."""
    notes: tuple[str, ...] = ()
    """What the user should know: one sentence each."""


class Given:
    """The values of a foreign config. Each must be taken, so that none is lost."""

    def __init__(self, root: Node):
        self.root = root
        self.values = dict(_leaves(root, ""))

    def take(self, key: str) -> Node | None:
        """The value of a dotted key, or None where it is not given."""
        return self.values.pop(key, None)

    def under(self, prefix: str) -> list[tuple[str, Node]]:
        """Take all values below a key."""
        return [(key, self.values.pop(key)) for key in list(self.values) if key.startswith(f"{prefix}.")]

    def refuse_rest(self, known: Sequence[str]) -> None:
        """Raise `Mistakes` for every value that was not taken."""
        if self.values:
            raise Mistakes(
                [
                    Mistake(node.place, f"unknown key '{key}'{guess(key, known, 0.7)}: it has no counterpart", key)
                    for key, node in self.values.items()
                ]
            )


@dataclass
class Draft:
    """A run file in the making. Values keep the place in the foreign file they came from."""

    place: Place
    root: Node = field(init=False)
    comments: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = Node({}, self.place)

    def put(self, key: str, value: Any) -> None:
        """Set a dotted key to a value of the foreign file or to plain data; None as a value is nothing to set."""
        if value is None:
            return
        node = value if isinstance(value, Node) else _node(value, self.place)
        self.root = put(self.root, split_key(key), node, Config)

    def keep(self, title: str, values: Sequence[tuple[str, Node]]) -> None:
        """Write values that have no key of ours as a block of comments."""
        if values:
            self.comments += ["", title, *(f"  {key}: {inline(node.plain())}" for key, node in values)]

    def text(self, head: str, schema: type[Section] = Config) -> str:
        """The run file. Raises `Mistakes`, at lines of the foreign file, when it or one of its stages would not be a
        right one."""
        mistakes: list[Mistake] = []
        stages = self.root.value["stages"].value if "stages" in self.root.value else []
        for root in (self.root, *(stage(self.root, overrides, schema, mistakes) for overrides in stages)):
            try:
                schema.model_validate(root.plain(), by_alias=True, by_name=False)
            except ValidationError as error:
                mistakes += explain(error, root, schema)
        if mistakes:
            raise Mistakes(mistakes)
        tail = "".join(f"# {line}".rstrip() + "\n" for line in self.comments)
        return f"# {head}\n{dump(self.root.plain())}{tail}"


def read(path: Path, base_key: str) -> Given:
    """A foreign YAML file, merged over the file that its `base_key` names, if any."""
    mistakes: list[Mistake] = []
    root = _read(path, base_key, mistakes, [])
    if mistakes:
        raise Mistakes(mistakes)
    return Given(root)


def convert_files(
    convert: Callable[[Any], Converted], files: Sequence[Path | str], to: Path | None
) -> tuple[str, list[str]]:
    """Convert files (or text that stands for one): into the folder `to`, or as text. Answers what to print, and notes
    for stderr.

    Raises `ConfigError` rather than overwrite a file.
    """
    if to is None and len(files) != 1:
        raise ConfigError("Give --to FOLDER to convert more than one file.")
    done = [(file if isinstance(file, Path) else "the command line", convert(file)) for file in files]
    notes = [f"{file}: {note}" for file, result in done for note in result.notes]
    if to is None:
        return done[0][1].text, notes
    said = []
    for file, result in done:
        target = to / f"{result.name}.yaml"
        if target.exists():
            raise ConfigError(f"{target} exists already; move it away or give another --to.")
        to.mkdir(parents=True, exist_ok=True)
        target.write_text(result.text, encoding="utf-8")
        said.append(f"{file} -> {target}\n")
    return "".join(said), notes


def _read(path: Path, base_key: str, mistakes: list[Mistake], below: list[Path]) -> Node:
    if path.resolve() in below:
        raise ConfigError(f"{path} is based on itself.")
    root = parse(read_text(path), str(path), len(below), mistakes)
    if not isinstance(root.value, dict):
        raise ConfigError(f"{path} is not a mapping of keys to values.")
    own = Node({k: v for k, v in root.value.items() if k != base_key}, root.place)
    if base_key not in root.value:
        return own
    base = Path(os.path.normpath(path.parent / str(root.value[base_key].plain())))
    return merge(_read(base, base_key, mistakes, [*below, path.resolve()]), own, None)


def _leaves(node: Node, prefix: str) -> list[tuple[str, Node]]:
    if isinstance(node.value, dict) and node.value:
        return [leaf for k, v in node.value.items() for leaf in _leaves(v, f"{prefix}.{k}" if prefix else dotted([k]))]
    return [(prefix, node)] if prefix else []


def _node(value: Any, place: Place) -> Node:
    if isinstance(value, dict):
        return Node({k: _node(v, place) for k, v in value.items()}, place)
    if isinstance(value, list):
        return Node([_node(v, place) for v in value], place)
    return Node(value, place)
