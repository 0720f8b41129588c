"""Converters: configs of other systems become run files. One module a system, with `convert(path) -> Converted`."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stentor.config.document import Mistake, Mistakes, Node, Place
from stentor.config.load import explained
from stentor.config.merge import put, stage
from stentor.config.merge import read as read_tree
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump, inline
from stentor.engine.checkpoint import step_of
from stentor.errors import ConfigError, without_secrets
from stentor.section.explain import guess
from stentor.section.schema_walk import dotted, split_key


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
    commands: tuple[str, ...] = ()
    """Commands of Stentor in the place of others of theirs; `RUN.yaml` stands for the run file."""


class ForeignConfig:
    """The values of a foreign config by dotted key. Each must be taken, so that none is lost."""

    def __init__(self, root: Node, null_is_default: bool = False):
        """`null_is_default`: for systems where null means the default, as if the key were not there."""
        self.values = {k: n for k, n in _leaves(root, "") if n.value is not None or not null_is_default}
        self.known: set[str] = set()
        """Keys that were asked for, to tell what a misspelt one is meant to be."""
        self.mistakes: list[Mistake] = []
        """Mistakes found so far. They are reported together."""

    def take(self, key: str) -> Node | None:
        """The value of a dotted key, or None where there is none."""
        self.known.add(key)
        return self.values.pop(key, None)

    def below(self, prefix: str) -> list[str]:
        """The keys below a key that are not taken yet."""
        return [key for key in self.values if key.startswith(f"{prefix}.")]

    def take_below(self, prefix: str) -> list[tuple[str, Node]]:
        """All values below a key."""
        return [(key, self.values.pop(key)) for key in self.below(prefix)]

    def take_flag(self, key: str, default: bool = False) -> bool:
        """The value of a switch; anything but true and false is a mistake."""
        node = self.take(key)
        if node is None:
            return default
        if not isinstance(node.value, bool):
            self.wrong(node, key, "true or false")
            return default
        return node.value

    def wrong(self, node: Node, key: str, expected: str) -> None:
        """Note a value that cannot be used."""
        self.mistakes.append(Mistake(node.place, f"'{key}' must be {expected}", key))

    def number(self, key: str, default: float = 1, least: float | None = None) -> float:
        """The number above 0 of a key, or `least` or more, which is whole if `least` is; the value is not taken.
        `default` where there is none, or another value, which is a mistake."""
        node = self.values.get(key)
        if node is None:
            return default
        value, kinds, expected = node.value, (int, float), "a number above 0" if least is None else "a number"
        if isinstance(least, int):
            kinds, expected = (int,), f"a whole number of {least} or more"
        if isinstance(value, bool) or not isinstance(value, kinds) or (value <= 0 if least is None else value < least):
            self.wrong(node, key, expected)
            return default
        return value

    def take_number(self, key: str, default: float = 1, least: float | None = None) -> float:
        """As `number`, and the value is taken."""
        found = self.number(key, default, least)
        self.take(key)
        return found

    def items_of(self, node: Node | None, key: str, of: str = "") -> list[Node]:
        """The entries of a list; none where there is no list. Anything else is a mistake."""
        if node is None:
            return []
        if not isinstance(node.value, list):
            self.wrong(node, key, f"a list{of}")
            return []
        return node.value

    def take_items(self, key: str) -> list[Node]:
        """The entries of the list of a key."""
        return self.items_of(self.take(key), key)

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


class Conversion(ForeignConfig):
    """A foreign config with the run file that it becomes. Values keep the place in the foreign file they came from."""

    def __init__(self, root: Node, null_is_default: bool = False):
        super().__init__(root, null_is_default)
        self.place = root.place
        self.root = Node({}, root.place)
        """Tree of the run file."""
        self.comments: list[str] = []
        self.notes: list[str] = []
        """For the user: one sentence each."""
        self.commands: list[str] = []
        """See `Converted.commands`."""

    def chosen(self, key: str, table: Mapping[str, str], default: str) -> str:
        """Look up the value of a key in a table; `default` where there is none. Other values are noted as mistakes."""
        node = self.take(key)
        if node is None:
            return default
        if not isinstance(node.value, str) or node.value not in table:
            self.wrong(node, key, f"{' or '.join(table)}, not {node.value!r}")
            return default
        return table[node.value]

    def made(self, key: str) -> Any:
        """Return the value that was set at a dotted key, as plain data; None if none was set."""
        node: Node | None = self.root
        for part in split_key(key):
            node = None if node is None else node.entry(part)
        return None if node is None else node.plain()

    def put(self, key: str, value: Any, at: Node | None = None) -> None:
        """Set a dotted key to a value of the foreign file or to plain data that stands for that `at`; None as a value
        is nothing to set."""
        if value is not None:
            node = value if isinstance(value, Node) else node_of(value, self.place if at is None else at.place)
            self.root = put(self.root, split_key(key), node, Config)

    def move(self, theirs: str, ours: str, default: Any = None) -> None:
        """Set a dotted key to the value of theirs, or to `default` where the config has none."""
        self.put(ours, self.take(theirs) or default)

    def put_each(self, section: str, values: Mapping[str, Any], at: Node | None = None) -> None:
        """Set those keys of a section that are not None."""
        for key, value in values.items():
            self.put(f"{section}.{key}", value, at)

    def move_each(self, table: Mapping[str, Any], prefix: str = "") -> None:
        """Set what a table of foreign key -> dotted key, or (dotted key, default), maps, behind `prefix`. Both keys may
        have alternatives, see `expanded`."""
        for theirs, target in table.items():
            ours, default = (target, None) if isinstance(target, str) else target
            for key, name in zip(expanded(theirs), expanded(prefix + ours), strict=True):
                self.move(key, name, default)

    def put_batch(self, key: str, default: int, positions: float, ours: str = "data") -> None:
        """Set the size of a batch under the section `ours`. It has room for a whole batch of the longest items, so that
        `max_items` alone decides, as the batch size of the other system does."""
        count = self.number(key, default)
        self.put(f"{ours}.max_items", count, self.take(key))
        self.put(f"{ours}.batch_tokens", round(count * positions))

    def put_callback(self, kind: str, settings: Mapping[str, Any]) -> None:
        """Add a callback, with those of its settings that are not None."""
        self.put_each(f"callbacks.{len(self.made('callbacks') or ())}", {"type": kind, **settings})

    def lora_globs(self, node: Node, key: str) -> Node:
        """Paths in the language model for the bare names of modules that others give adapters."""
        names = self.items_of(node, key, " of module names")
        return Node([Node(f"llm.*.{name.value}", name.place) for name in names], node.place)

    def resume(self, key: str, node: Node, instead: str) -> None:
        """Note the command that resumes from a checkpoint of Stentor. Another one, a state of accelerate, is a mistake;
        `instead`: how to start from such a one."""
        if step_of(Path(str(node.value))) < 0:
            kind = "a checkpoint of a Stentor run, RUN/checkpoints/step-N"
            self.wrong(node, key, f"{kind}: a state that accelerate saved cannot be read here. {instead}")
            return
        command = f"stentor train {self.made('name')}.yaml --resume-from {node.plain()}"
        self.notes.append(f"{key}: resume with `{command}`.")
        self.comment_out(f"Resume with `{command}`:", [(key, node)])

    def comment_out(self, title: str, values: Iterable[tuple[str, Node | None]]) -> None:
        """Write values that have no key in a run file as a block of comments."""
        if lines := [f"  {key}: {inline(node.plain())}" for key, node in values if node is not None]:
            self.comments += ["", title, *lines]

    def leave_out(self, title: str, *keys: str) -> None:
        """Take values that have no key in a run file, and those below them, and write them as a block of comments."""
        self.comment_out(title, [pair for key in keys for pair in ((key, self.take(key)), *self.take_below(key))])

    def leave_out_each(self, reasons: Mapping[str, str], prefix: str = "") -> None:
        """Take what has no counterpart: a block of comments for each reason, with its keys as `expanded` reads them."""
        for reason, keys in reasons.items():
            self.leave_out(f"Without a key here: {reason}.", *expanded(prefix + keys))

    def converted(self, head: str, why: str = "it has no counterpart") -> Converted:
        """The run file under a first line of comment. Raises `Mistakes`, at lines of the foreign file: those noted, a
        key that was not taken, for the reason `why`, and what would not be valid in the run file or one of its
        stages."""
        mistakes = [*self.mistakes, *self.unknown(why=why)]
        stages = self.root.value["stages"].value if "stages" in self.root.value else []
        for root in (self.root, *(stage(self.root, overrides, Config, mistakes) for overrides in stages)):
            try:
                Config.model_validate(root.plain(), by_alias=True, by_name=False)
            except ValidationError as error:
                mistakes += explained(error, root, Config)
        if mistakes:
            raise Mistakes(mistakes)
        tail = "".join(f"# {line}".rstrip() + "\n" for line in self.comments)
        text = f"# {head}\n{dump(self.root.plain())}{tail}"
        return Converted(
            str(self.made("name")), text, tuple(dict.fromkeys(self.notes)), frozenset(self.known), tuple(self.commands)
        )


def tables(name: str) -> dict[str, Any]:
    """The tables of a converter: NAME.yaml beside it."""
    return yaml.safe_load(resources.files(__package__).joinpath(f"{name}.yaml").read_text("utf-8"))  # type: ignore[no-any-return]


def expanded(keys: str) -> list[str]:
    """The keys that a text with alternatives in braces stands for, as in a shell: `a.{b,c}` for `a.b` and `a.c`."""
    prefix, brace, rest = keys.partition("{")
    if not brace:
        return [keys]
    names, _, suffix = rest.partition("}")
    return [prefix + name + end for name in names.split(",") for end in expanded(suffix)]


def read(path: Path, base_key: str = "") -> Node:
    """A foreign YAML or JSON file, merged over the file that its `base_key` names, if any."""
    mistakes: list[Mistake] = []
    root, _ = read_tree(path, None, mistakes, base_key)
    if mistakes:
        raise Mistakes(mistakes)
    return root


def convert_files(convert: Callable[[Any], Converted], files: Sequence[Path | str], to: Path | None) -> None:
    """Convert files (or text that stands for one): into the folder `to`, or print the run file. Notes and commands go
    to stderr; commands without a run file are printed. Raises `ConfigError` rather than overwrite a file."""
    if to is None and len(files) != 1:
        raise ConfigError("Give --to FOLDER to convert more than one file.")
    done = [(file if isinstance(file, Path) else "the command line", convert(file)) for file in files]
    lines, next_commands = [], []
    for file, result in done:
        target = (to or Path()) / f"{result.name}.yaml"
        commands = [line.replace("RUN.yaml", shlex.quote(str(target))) for line in result.commands]
        if not result.text:
            lines += [f"{line}\n" for line in commands]
            continue
        next_commands += [f"{file}: next: {line}" for line in commands]
        if to is None:
            lines.append(result.text)
            continue
        if target.exists():
            raise ConfigError(f"{target} exists already; move it away or give another --to.")
        to.mkdir(parents=True, exist_ok=True)
        target.write_text(result.text, encoding="utf-8")
        lines.append(f"{file} -> {target}\n")
    for line in [*(f"{file}: {note}" for file, result in done for note in result.notes), *next_commands]:
        print(without_secrets(line), file=sys.stderr)
    print(without_secrets("".join(lines)), end="")


def _leaves(node: Node, prefix: str) -> list[tuple[str, Node]]:
    if isinstance(node.value, dict) and node.value:
        return [leaf for k, v in node.value.items() for leaf in _leaves(v, f"{prefix}.{k}" if prefix else dotted([k]))]
    return [(prefix, node)] if prefix else []


def node_of(value: Any, place: Place) -> Node:
    """Plain data as a tree, all at one place but for the values in it that have theirs."""
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        return Node({k: node_of(v, place) for k, v in value.items()}, place)
    if isinstance(value, list):
        return Node([node_of(v, place) for v in value], place)
    return Node(value, place)
