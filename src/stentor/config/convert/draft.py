"""Converters: configs of other systems become run files. One module a system, with `convert(path) -> Converted`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from stentor.config.document import Mistake, Mistakes, Node, Place, dotted, parse, read_text, split_key
from stentor.config.explain import explain, guess
from stentor.config.merge import merge, put, stage
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump, inline
from stentor.errors import ConfigError


@dataclass(frozen=True)
class Converted:
    """A run file made from another system's config."""

    name: str
    """The run's name, for a file name."""
    text: str
    """The run file."""
    notes: tuple[str, ...] = ()
    """For the user: one sentence each."""
    known: frozenset[str] = frozenset()
    """Keys of the other system that the converter asked for."""


Entries: TypeAlias = "Iterable[tuple[str, Node | None]]"
"""Keys of a foreign config with their values; None where the config has no such key."""


class ForeignConfig:
    """The values of a foreign config by dotted key. Each must be taken, so that none is lost."""

    def __init__(self, root: Node):
        self.root = root
        self.values = dict(_leaves(root, ""))
        self.known: set[str] = set()
        """Keys that were asked for, to tell what a misspelt one is meant to be."""

    def drop_nulls(self) -> None:
        """Forget keys whose value is null, for systems where null means the default."""
        self.values = {key: node for key, node in self.values.items() if node.value is not None}

    def take(self, key: str) -> Node | None:
        """The value of a dotted key, or None where there is none."""
        self.known.add(key)
        return self.values.pop(key, None)

    def take_each(self, keys: Iterable[str], prefix: str = "") -> list[tuple[str, Node | None]]:
        """The keys, behind `prefix`, with their values."""
        return [(prefix + key, self.take(prefix + key)) for key in keys]

    def take_below(self, prefix: str) -> list[tuple[str, Node]]:
        """All values below a key."""
        return [(key, self.values.pop(key)) for key in list(self.values) if key.startswith(f"{prefix}.")]

    def take_flag(self, key: str, default: bool = False) -> bool:
        """The value of a switch. Raises `Mistakes` for anything but true and false."""
        node = self.take(key)
        if node is None:
            return default
        if not isinstance(node.value, bool):
            raise Mistakes([Mistake(node.place, f"'{key}' must be true or false", key)])
        return node.value

    def unknown(self, prefix: str = "", cutoff: float = 0.7, why: str = "it has no counterpart") -> list[Mistake]:
        """A mistake for every value that was not taken; `prefix` stands before its key in the message."""
        return [
            Mistake(node.place, f"unknown key '{prefix}{key}'{guess(key, self._alike(key), cutoff)}: {why}", key)
            for key, node in self.values.items()
        ]

    def _alike(self, key: str) -> list[str]:
        """Known keys whose last part is like that of `key`, which a long way to it says nothing about, and sections."""
        last = key.rpartition(".")[2]
        parts = {known: known.rpartition(".")[2] for known in self.known}
        alike = set(get_close_matches(last, set(parts.values()), len(parts) or 1, 0.7))
        return [known for known, part in parts.items() if part in alike or known.count(".") < key.count(".")]


@dataclass
class Draft:
    """A run file in the making. Values keep the place in the foreign file they came from."""

    place: Place
    root: Node = field(init=False)
    comments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For the user: one sentence each."""

    def __post_init__(self) -> None:
        self.root = Node({}, self.place)

    def put(self, key: str, value: Any) -> None:
        """Set a dotted key to a value of the foreign file or to plain data; None as a value is nothing to set."""
        if value is None:
            return
        node = value if isinstance(value, Node) else _node(value, self.place)
        self.root = put(self.root, split_key(key), node, Config)

    def put_each(self, foreign: ForeignConfig, table: Mapping[str, str], prefix: str = "") -> None:
        """Set the keys that a table of foreign key -> dotted key maps, behind `prefix`, where the config has them."""
        for theirs, ours in table.items():
            self.put(prefix + ours, foreign.take(theirs))

    def comment_out(self, title: str, values: Entries) -> None:
        """Write values that have no key in a run file as a block of comments."""
        if lines := [f"  {key}: {inline(node.plain())}" for key, node in values if node is not None]:
            self.comments += ["", title, *lines]

    def comment_out_unsupported(
        self, foreign: ForeignConfig, reasons: Iterable[tuple[str, str]], prefix: str = ""
    ) -> None:
        """Write what has no counterpart as comments: a block for each (reason, keys of `expanded`)."""
        for reason, keys in reasons:
            self.comment_out(f"Without a key here: {reason}.", foreign.take_each(expanded(keys), prefix))

    def converted(self, head: str, foreign: ForeignConfig) -> Converted:
        """The run file under a first line of comment. Raises `Mistakes`, at lines of the foreign file, when it or one
        of its stages would not be valid."""
        mistakes: list[Mistake] = []
        stages = self.root.value["stages"].value if "stages" in self.root.value else []
        for root in (self.root, *(stage(self.root, overrides, Config, mistakes) for overrides in stages)):
            try:
                Config.model_validate(root.plain(), by_alias=True, by_name=False)
            except ValidationError as error:
                mistakes += explain(error, root, Config)
        if mistakes:
            raise Mistakes(mistakes)
        tail = "".join(f"# {line}".rstrip() + "\n" for line in self.comments)
        text = f"# {head}\n{dump(self.root.plain())}{tail}"
        return Converted(str(self.root.value["name"].plain()), text, tuple(self.notes), frozenset(foreign.known))


def expanded(keys: str) -> list[str]:
    """The keys that a text with alternatives in braces stands for, as in a shell: `a.{b,c}` for `a.b` and `a.c`."""
    prefix, brace, rest = keys.partition("{")
    if not brace:
        return [keys]
    names, _, suffix = rest.partition("}")
    return [prefix + name + end for name in names.split(",") for end in expanded(suffix)]


def one_of(node: Node, key: str, known: Mapping[str, str]) -> str:
    """What a table has for the value of a key. Raises `Mistakes` for other values."""
    if not isinstance(node.value, str) or node.value not in known:
        raise Mistakes([Mistake(node.place, f"'{key}' must be {' or '.join(known)}, not {node.value!r}", key)])
    return known[node.value]


def positive(node: Node | None, key: str, default: float = 1) -> float:
    """The value of a key, a number above 0; `default` where there is none. Raises `Mistakes` for anything else."""
    if node is None:
        return default
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or node.value <= 0:
        raise Mistakes([Mistake(node.place, f"'{key}' must be a number above 0", key)])
    return node.value


def read(path: Path, base_key: str) -> ForeignConfig:
    """A foreign YAML file, merged over the file that its `base_key` names, if any."""
    mistakes: list[Mistake] = []
    root = _read(path, base_key, mistakes, [])
    if mistakes:
        raise Mistakes(mistakes)
    return ForeignConfig(root)


def convert_files(
    convert: Callable[[Any], Converted], files: Sequence[Path | str], to: Path | None
) -> tuple[str, list[str]]:
    """Convert files (or text that stands for one): into the folder `to`, or as text. Returns what to print, and notes
    for stderr. Raises `ConfigError` rather than overwrite a file."""
    if to is None and len(files) != 1:
        raise ConfigError("Give --to FOLDER to convert more than one file.")
    done = [(file if isinstance(file, Path) else "the command line", convert(file)) for file in files]
    notes = [f"{file}: {note}" for file, result in done for note in result.notes]
    if to is None:
        return done[0][1].text, notes
    lines = []
    for file, result in done:
        target = to / f"{result.name}.yaml"
        if target.exists():
            raise ConfigError(f"{target} exists already; move it away or give another --to.")
        to.mkdir(parents=True, exist_ok=True)
        target.write_text(result.text, encoding="utf-8")
        lines.append(f"{file} -> {target}\n")
    return "".join(lines), notes


def _read(path: Path, base_key: str, mistakes: list[Mistake], below: list[Path]) -> Node:
    if path.resolve() in below:
        raise ConfigError(f"{path} is based on itself.")
    root = parse(read_text(path), str(path), len(below), mistakes)
    if not isinstance(root.value, dict):
        raise ConfigError(f"{path} is not a mapping of keys to values.")
    child = Node({k: v for k, v in root.value.items() if k != base_key}, root.place)
    if base_key not in root.value:
        return child
    base = Path(os.path.normpath(path.parent / str(root.value[base_key].plain())))
    return merge(_read(base, base_key, mistakes, [*below, path.resolve()]), child, None)


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
