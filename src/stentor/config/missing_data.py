"""Missing data: the line of the run file that needs it, and the command that creates it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.config.document import Key, Node, Place, dotted
from stentor.errors import DataError, MissingData


@contextmanager
def located(root: Node) -> Iterator[None]:
    """Raise `MissingData` again with place, key and command, from the tree of the config that asked for it."""
    try:
        yield
    except MissingData as error:
        for place, keys in _leaves(root, error.path):
            key = dotted(keys)
            value = "" if str(error).startswith(str(error.path)) else f" is {error.path}"
            raise DataError(f"{place}: '{key}'{value}: {error} {_mend(error.path, key)}") from None
        raise


def _leaves(node: Node, path: Path, keys: tuple[Key, ...] = ()) -> Iterator[tuple[Place, tuple[Key, ...]]]:
    """Places and keys at which the tree holds a path."""
    value = node.value
    entries = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, entry in entries:
        if isinstance(entry.value, str) and (entry.value == str(path) or Path(entry.value) == path):
            yield entry.place, (*keys, key)
        yield from _leaves(entry, path, (*keys, key))


def _mend(path: Path, key: str) -> str:
    from stentor.sources.corpus import names

    if path.suffix in (".lst", ".tar"):
        make = f"`stentor prepare tokens MANIFEST --codec CODEC --to {path.parent}`"
        return f"Create token shards with {make}, or give the path of yours: `{key}=PATH`."
    folder = path.parent if path.suffix else path
    get = f"`stentor prepare corpus {folder.name} --download --to {folder}` downloads it (PART.jsonl). "
    return f"{get if folder.name in names() else ''}Put your data there, or give its path: `{key}=PATH` (docs/data.md)."
