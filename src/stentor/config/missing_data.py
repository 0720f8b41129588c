"""Missing data: the line of the run file that needs it, and the command that creates it."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stentor.config.document import Node, Place
from stentor.data.storage import is_remote
from stentor.errors import DataError, MissingData
from stentor.section.schema_walk import Key, dotted


@contextmanager
def located(root: Node, section: str | None = None) -> Iterator[None]:
    """Raise `MissingData` again with place, key and command, from the tree of the config that asked for it, or from a
    `section` of it."""
    try:
        yield
    except MissingData as error:
        leaves = [leaf for leaf in _leaves(root, error.path) if section is None or leaf.keys[0] == section]
        for leaf in [leaf for leaf in leaves if leaf.section.get("split") == error.part] or leaves:
            key = dotted(leaf.keys)
            value = "" if str(error).startswith((leaf.value, str(Path(leaf.value)))) else f" is {leaf.value}"
            raise DataError(f"{leaf.place}: '{key}'{value}: {error} {_mend(leaf, key)}") from None
        raise


class Leaf(NamedTuple):
    """A value of the tree that names a path."""

    place: Place
    keys: tuple[Key, ...]
    value: str
    section: dict[str, Any]
    """The plain values beside it."""


def _leaves(node: Node, path: Path, keys: tuple[Key, ...] = ()) -> Iterator[Leaf]:
    """The values of the tree that name a path."""
    value = node.value
    entries = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, entry in entries:
        if isinstance(entry.value, str) and _is_same(entry.value, path):
            yield Leaf(entry.place, (*keys, key), entry.value, node.plain() if isinstance(value, dict) else {})
        yield from _leaves(entry, path, (*keys, key))


def _is_same(value: str, path: Path) -> bool:
    return value == str(path) or (not is_remote(value) and Path(value).expanduser().absolute() == path.absolute())


def _mend(leaf: Leaf, key: str) -> str:
    """The command that makes what a key names, and what else to do."""
    from stentor.sources.lhotse_recipe import can_download, names

    path, section = Path(leaf.value), leaf.section
    own = f"Put your data there, or give its path: `{key}=PATH` (docs/data.md)."
    if path.suffix in (".lst", ".tar"):
        make = f"`stentor prepare tokens MANIFEST --codec CODEC --to {path.parent}`"
        return f"Create token shards with {make}, or give the path of yours: `{key}=PATH`."
    if section.get("type") == "corpus" and leaf.keys[-1] == "from":
        if section.get("download") or not can_download(section.get("name", "")):
            return own
        split = f" --split {section['split']}" if section.get("split") else ""
        where = f"--from {shlex.quote(leaf.value)} --download{split} --to {shlex.quote(f'{leaf.value}/manifests')}"
        return f"`stentor prepare corpus {section['name']} {where}` downloads it. {own}"
    folder = path.parent if path.suffix else path
    get = f"`stentor prepare corpus {folder.name} --download --to {folder}` downloads it (PART.jsonl). "
    return f"{get if folder.name in names() else ''}{own}"
