"""Loading: a YAML file and `key=value` overrides become a validated config, or all of its mistakes at once."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stentor.config.document import Mistake, Mistakes, Node, Place, moved, parse
from stentor.config.merge import override, read, stage, without_format
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump
from stentor.data.storage import as_path, is_remote
from stentor.section import Section
from stentor.section.full_paths import with_full_paths
from stentor.section.schema_walk import dotted

if TYPE_CHECKING:
    from stentor.sources.base import Source

# Access tokens of the Hub, GitHub, GitLab, OpenAI, AWS and Slack; URLs with a password.
_SECRET = re.compile(
    r"(?<![A-Za-z0-9_-])(hf_[A-Za-z0-9]{30,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}"
    r"|sk-[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|xox[abp]-[\w-]{20,})|://[^/\s:@]+:[^/\s@]+@"
)


@dataclass(frozen=True)
class Loaded:
    """A validated config and its origin."""

    config: Any
    """The config; an instance of the schema."""
    stages: tuple[Any, ...]
    """One config per entry of `stages:`; empty without stages."""
    text: str
    """The file as written; empty when there was none."""
    path: Path | None
    overrides: tuple[str, ...]
    root: Node
    """The tree that it was made from."""
    stage_roots: tuple[Node, ...] = ()
    """The tree of each stage."""

    @property
    def roots(self) -> tuple[Node, ...]:
        """Trees of the configs that run in order, see `stage_configs`."""
        return self.stage_roots or (self.root,)


def load(path: Path | None, overrides: Sequence[str] = (), schema: type[Section] = Config) -> Loaded:
    """Read a config file (YAML 1.2 or JSON), its `base:` files and the overrides. Raises `Mistakes` (a `ConfigError`)
    that lists everything that is wrong, each with file and line; plain `ConfigError` when the file cannot be read, or
    is a config of another system."""
    mistakes: list[Mistake] = []
    text, root = "", Node({}, Place(0, 0, "config"))
    try:
        if path is not None:
            root, text = read(as_path(path), schema, mistakes)
        root = override(root, overrides, schema, mistakes)
        mistakes += _secrets(root)
        return _loaded(root, text, path, overrides, schema, mistakes)
    except Mistakes:
        if path is not None and schema is Config:
            from stentor.config.convert.recognise import refuse_foreign

            refuse_foreign(as_path(path))
        raise


def load_text(text: str, source: str = "run.yaml", schema: type[Section] = Config) -> Loaded:
    """As `load`, of a config that is not a file, called `source` in messages. It may have no `base:`, which would be
    relative to nothing."""
    from stentor.section.type_names import show

    mistakes: list[Mistake] = []
    root = parse(text, source, 0, mistakes)
    if not isinstance(root.value, dict):
        raise Mistakes([Mistake(root.place, f"a config is a mapping of keys to values, not {show(root.plain())}")])
    root = without_format(root, source)
    if "base" in root.value:
        text = "'base' names another file, which is not possible here: include the content of that file"
        raise Mistakes([Mistake(root.value["base"].place, text, "base")])
    mistakes += _secrets(root)
    return _loaded(root, text, None, (), schema, mistakes)


def _loaded(
    root: Node, text: str, path: Path | None, overrides: Sequence[str], schema: type[Section], mistakes: list[Mistake]
) -> Loaded:
    config = _validate(root, schema, mistakes)
    trees = _stages(root, schema, mistakes)
    stages = [_validate(tree, schema, mistakes) for tree in trees]
    if mistakes:
        raise Mistakes(mistakes)
    return Loaded(config, tuple(stages), text, path, tuple(overrides), root, tuple(trees))


def stage_configs(loaded: Loaded) -> list[Any]:
    """The configs that run in order: one per stage, or the config itself when it has no stages."""
    return list(loaded.stages) or [loaded.config]


def resolved(config: Section) -> str:
    """The whole config with all defaults, as YAML that loads to the same config."""
    return dump(config.model_dump(mode="json", by_alias=True, serialize_as_any=True))


def in_its_folder(config: Path, overrides: Sequence[str]) -> list[str]:
    """Return the overrides with which the resolved.yaml of a run folder is that run, wherever the folder is now."""
    folder = config.absolute().parent
    own = not is_remote(config) and config.name == "resolved.yaml" and (folder / "config.yaml").is_file()
    return [*([f"output={folder.parent}", f"name={folder.name}"] if own else []), *overrides]


def run_texts(loaded: Loaded) -> dict[str, str]:
    """Return the files that tell in a run folder what was run; the resolved one holds in any directory."""
    return {"config.yaml": loaded.text, "resolved.yaml": resolved(with_full_paths(loaded.config))}


def describe(loaded: Loaded) -> str:
    """Describe a run in one sentence: task, family, sources, stages."""
    config = loaded.config
    sources = ", ".join(source.type for source in config.data.train)
    sets = [*config.data.eval, *config.data.test]
    scored = f", scored on {', '.join(sets)}" if sets else ""
    stages = f", in {len(loaded.stages)} stages" if loaded.stages else ""
    return f"task {config.task.type}, model {config.model.type}, trained on {sources}{scored}{stages}."


def parse_source(spec: str) -> Source:
    """A data source from the command line: a path, or the keys of one `data.train` entry as `type=hub,name=...`. A path
    may be followed by keys: `dev.jsonl,limit=100`. Raises `Mistakes`."""
    from stentor.data.layouts.by_path import type_of
    from stentor.sources.base import Source

    place = Place(0, 0, f"data `{spec}`")
    # Unlike that of Path, this `exists` is not an error for a text that is too long for a path.
    first, *keys = [spec] if os.path.exists(spec) else _split_list(spec)
    root = Node({}, place)
    if "=" in first and not os.path.exists(first) and not is_remote(first):
        keys = [first, *keys]
    else:
        kind = type_of(as_path(first))
        root = Node({"type": Node(kind, place), "path": Node(first, place)}, place)
    mistakes: list[Mistake] = []
    root = moved(override(root, keys, Source, mistakes), place)
    return _option_section(root, place, Source, mistakes)


def parse_section(spec: str, schema: type[Section], option: str, base: Section | None = None) -> Any:
    """A section from an option of the command line, as `key=value,...` on top of `base`. Of a choice, the first part
    may be the bare type: `xvector,from=...`. Raises `Mistakes`."""
    place = Place(0, 0, f"{option} `{spec}`")
    parts = _split_list(spec)
    if "type" in schema.model_fields and "=" not in parts[0]:
        parts[0] = f"type={parts[0]}"
    start = {} if base is None else base.model_dump(mode="json", by_alias=True)
    mistakes: list[Mistake] = []
    root = override(Node({k: Node(v, place) for k, v in start.items()}, place), parts, schema, mistakes)
    return _option_section(root, place, schema, mistakes)


def _option_section(root: Node, place: Place, schema: type[Section], mistakes: list[Mistake]) -> Any:
    """The section in a tree. `mistakes` are those of its overrides, which are one option at `place`."""
    mistakes = [Mistake(place, m.text, m.key) for m in mistakes]
    section = _validate(root, schema, mistakes)
    if mistakes:
        raise Mistakes(mistakes)
    return section


def _validate(root: Node, schema: type[Section], mistakes: list[Mistake]) -> Section | None:
    try:
        return schema.model_validate(root.plain(), by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes += explained(error, root, schema)
        return None


def explained(error: ValidationError, root: Node, schema: type[Section]) -> list[Mistake]:
    """One mistake for each of pydantic's errors about a tree, with its place."""
    from stentor.section.explain import explain

    return [Mistake(root.at(path), text, key) for path, text, key in explain(error, root.plain(), schema)]


def _stages(root: Node, schema: type[Section], mistakes: list[Mistake]) -> list[Node]:
    """The tree of each entry of `stages:`."""
    listed = root.value.get("stages")
    if listed is None or not isinstance(listed.value, list):
        return []
    # Of what is no mapping the schema has said so.
    return [stage(root, entry, schema, mistakes) for entry in listed.value if isinstance(entry.value, dict)]


def _secrets(root: Node, path: tuple[str | int, ...] = ()) -> list[Mistake]:
    if isinstance(root.value, dict):
        return [m for key, node in root.value.items() for m in _secrets(node, (*path, key))]
    if isinstance(root.value, list):
        return [m for key, node in enumerate(root.value) for m in _secrets(node, (*path, key))]
    if isinstance(root.value, str) and _SECRET.search(root.value):
        text = (
            f"'{dotted(path)}' looks like a password or an access token. A config is copied into every run folder, so "
            "keep secrets in the environment (HF_TOKEN), or log in with `hf auth login`"
        )
        return [Mistake(root.place, text, dotted(path))]
    return []


def _split_list(spec: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in spec:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
