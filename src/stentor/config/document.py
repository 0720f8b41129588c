"""Document tree: a YAML or JSON file as values that know the line they came from.

The file is read event by event and never constructs anything but text, numbers, truth values, null, lists and mappings.
Plain scalars follow the core schema of YAML 1.2: `1e-4` is a number and `no` is text.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.data.storage import is_remote
from stentor.data.yaml_text import events, scalar
from stentor.errors import ConfigError
from stentor.section.schema_walk import Key, dotted

_MAX_VALUES = 100_000
_MAX_DEPTH = 50


@dataclass(frozen=True, order=True)
class Place:
    """Where a value was written. Sorts files first in the order of reading, then overrides in the order given."""

    rank: int
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake in a config."""

    place: Place
    text: str
    """The mistake and how to fix it, in one line."""
    key: str = ""
    """Dotted key of the value that is wrong; empty for the file as a whole."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Mistakes(ConfigError):
    """All mistakes in a config, one line each."""

    def __init__(self, mistakes: Sequence[Mistake]):
        self.mistakes = sorted(dict.fromkeys(mistakes))
        super().__init__("\n".join(map(str, self.mistakes)))


@dataclass(frozen=True)
class Node:
    """A value with its place: of its key in a mapping, of its first line in a list."""

    value: Any
    """dict[str, Node], list[Node], or a scalar."""
    place: Place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value

    def entry(self, key: Key) -> Node | None:
        """The value below a key of a mapping or an index of a list."""
        if isinstance(self.value, dict):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            return self.value[key]
        return None

    def at(self, path: Sequence[Key]) -> Place:
        """The place of the value at the path, or of the nearest section around it."""
        node = self
        for key in path:
            below = node.entry(key)
            if below is None:
                break
            node = below
        return node.place


def read_text(path: Path) -> str:
    """The text of a config file. Raises `ConfigError` when there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist{_similar(path)}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a config file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def parse(text: str, source: str, rank: int, mistakes: list[Mistake], json_file: bool = False) -> Node:
    """The tree of one document. Mistakes that leave a readable tree are appended; a syntax error is raised. `source`
    names the file in messages. An empty document is an empty mapping."""
    from yaml import MarkedYAMLError, YAMLError

    if json_file:
        _check_json(text, source, rank)
        text = text.replace("\t", " ")  # white space in JSON, an error in YAML
    reader = _Reader(source, rank, mistakes)
    try:
        root = reader.document(events(text))
    except MarkedYAMLError as error:
        raise Mistakes([_syntax(error, text, source, rank)]) from None
    except YAMLError as error:
        raise Mistakes([Mistake(Place(rank, 1, source), f"not valid YAML: {' '.join(str(error).split())}")]) from None
    return root


def parse_value(text: str, place: Place) -> Node:
    """The value of a command line override, as YAML: `1e-4`, `[a, b]`, `{type: jsonl, path: x}`, or text."""
    from yaml import MarkedYAMLError, YAMLError

    # A glob such as `*.bias` is text, although YAML would read an alias.
    if not text.startswith(("[", "{", "'", '"')):
        return Node(scalar(text), place)
    mistakes: list[Mistake] = []
    try:
        node = _Reader("", place.rank, mistakes).document(events(text))
    except YAMLError as error:
        problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or str(error)
        raise Mistakes([Mistake(place, f"the value is not valid YAML: {problem}")]) from None
    except Mistakes as error:
        mistakes += error.mistakes
    if mistakes:
        raise Mistakes([Mistake(place, m.text, m.key) for m in mistakes])
    return moved(node, place)


class _Reader:
    """Builds the tree of one document from YAML events."""

    def __init__(self, source: str, rank: int, mistakes: list[Mistake]):
        self.source, self.rank, self.mistakes = source, rank, mistakes
        self.anchors: dict[str, Node] = {}
        self.sizes: dict[str, int] = {}
        self.count = 0

    def document(self, events: Iterator[Any]) -> Node:
        from yaml import DocumentStartEvent, StreamEndEvent

        next(events)  # start of the stream
        start = next(events)
        if isinstance(start, StreamEndEvent):
            return Node({}, Place(self.rank, 1, self.source))
        root = self.node(next(events), events, ())
        next(events)  # end of the document
        after = next(events)
        if isinstance(after, DocumentStartEvent):
            raise Mistakes([self.mistake(after, "a second document starts here; a config is one document", ())])
        if root.value is None:
            return Node({}, root.place)
        return root

    def node(self, event: Any, events: Iterator[Any], path: tuple[Key, ...]) -> Node:
        from yaml import AliasEvent, MappingStartEvent, SequenceStartEvent

        place = self.place(event)
        if len(path) > _MAX_DEPTH:
            raise Mistakes([self.mistake(event, f"more than {_MAX_DEPTH} levels; this is not a config", path[:3])])
        before = self.count
        self.count += 1
        if isinstance(event, AliasEvent):
            return self.alias(event, path)
        if event.tag is not None:
            self.mistakes.append(self.mistake(event, f"tags such as `{_tag(event.tag)}` are not allowed", path))
        if isinstance(event, MappingStartEvent):
            value: Any = self.mapping(events, path)
        elif isinstance(event, SequenceStartEvent):
            value = self.sequence(events, path)
        else:
            value = scalar(event.value) if not event.style else _joined_surrogates(event.value)
        node = Node(value, place)
        if event.anchor:
            self.anchors[event.anchor] = node
            self.sizes[event.anchor] = self.count - before
        return node

    def mapping(self, events: Iterator[Any], path: tuple[Key, ...]) -> dict[str, Node]:
        from yaml import MappingEndEvent, ScalarEvent

        entries: dict[str, Node] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                raise Mistakes([self.mistake(event, "a key must be plain text", path)])
            key, place = event.value, self.place(event)
            merges = key == "<<" and not event.style
            if merges:
                self.mistakes.append(self.mistake(event, "merge keys (`<<`) are not YAML 1.2; use `base:`", path))
            node = self.node(next(events), events, (*path, key))
            if key in entries:
                text = f"'{dotted((*path, key))}' was already given in line {entries[key].place.line}"
                self.mistakes.append(self.mistake(event, text, (*path, key)))
            elif not merges:
                entries[key] = Node(node.value, place)
        return entries

    def sequence(self, events: Iterator[Any], path: tuple[Key, ...]) -> list[Node]:
        from yaml import SequenceEndEvent

        items: list[Node] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(self.node(event, events, (*path, len(items))))
        return items

    def alias(self, event: Any, path: tuple[Key, ...]) -> Node:
        if event.anchor not in self.anchors:
            text = f"a value that starts with '*' must be in quotes, such as '*{event.anchor}'"
            raise Mistakes([self.mistake(event, text, path)])
        self.count += self.sizes[event.anchor]
        if self.count > _MAX_VALUES:
            raise Mistakes([self.mistake(event, f"more than {_MAX_VALUES} values; this is not a config", path)])
        return self.anchors[event.anchor]

    def place(self, event: Any) -> Place:
        return Place(self.rank, event.start_mark.line + 1, self.source)

    def mistake(self, event: Any, text: str, path: Sequence[Key]) -> Mistake:
        return Mistake(self.place(event), text, dotted(path))


def moved(node: Node, place: Place) -> Node:
    if isinstance(node.value, dict):
        return Node({k: moved(v, place) for k, v in node.value.items()}, place)
    if isinstance(node.value, list):
        return Node([moved(v, place) for v in node.value], place)
    return Node(node.value, place)


def _tag(tag: Any) -> str:
    return str(tag).replace("tag:yaml.org,2002:", "!!")


def _joined_surrogates(text: str) -> str:
    # JSON writes characters beyond the basic plane as two escapes.
    if not re.search("[\ud800-\udfff]", text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_json(text: str, source: str, rank: int) -> None:
    try:
        json.loads(text or "{}")
    except json.JSONDecodeError as error:
        place = Place(rank, error.lineno, source)
        raise Mistakes([Mistake(place, f"not valid JSON: {error.msg} (column {error.colno})")]) from None
    except RecursionError:
        text = f"more than {_MAX_DEPTH} levels; this is not a config"
        raise Mistakes([Mistake(Place(rank, 1, source), text)]) from None


def _syntax(error: Any, text: str, source: str, rank: int) -> Mistake:
    """One sentence for an error of PyYAML."""
    problem, context = error.problem or "", error.context or ""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    opened = error.context_mark.line + 1 if error.context_mark else line
    if "'\\t'" in problem:
        message = "a tab indents this line; YAML needs spaces"
    elif "quoted scalar" in context:
        line, message = opened, "the quote that opens here is not closed"
    elif "flow sequence" in context or "flow mapping" in context:
        bracket = "[" if "sequence" in context else "{"
        line, message = opened, f"the '{bracket}' that opens here is not closed, or a comma is missing after it"
    elif "cannot start any token" in problem:
        character = problem.split("'")[1]
        message = f"a value that starts with '{character}' must be in quotes"
    elif "alias" in context:
        word = re.match(r"[^\s,\]}]*", text[error.context_mark.index :])
        example = f", such as '{word[0]}'" if word else ""
        return Mistake(Place(rank, line, source), f"a value that starts with '*' must be in quotes{example}")
    elif "mapping values are not allowed" in problem:
        message = "a ':' is not expected here: check the indentation, and put text that contains ': ' in quotes"
    elif "could not find expected ':'" in problem:
        line, message = opened, "this line has no ':' and space after its key"
    elif "<block end>" in problem:
        message = "the indentation does not fit the lines above"
    else:
        message = " ".join(f"{problem} {context}".split())
    return Mistake(Place(rank, line, source), f"not valid YAML: {message}")


def _similar(path: Path) -> str:
    folder = path.parent
    if is_remote(path):
        return ": check the bucket and the path"
    names = os.listdir(folder) if folder.is_dir() else []
    configs = [name for name in names if name.endswith((".yaml", ".yml", ".json"))]
    matches = difflib.get_close_matches(path.name, configs, 1, 0.6)
    return f" (did you mean {folder / matches[0]}?)" if matches else ""
