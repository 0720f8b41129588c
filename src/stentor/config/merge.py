"""Merging of config trees: `base:` files, stages and `key=value` overrides.

One rule for all three: mappings merge key by key, everything else is replaced. If the `type` of a choice changes, its
section is replaced, because types have different keys. A key replaces keys that it excludes, and null removes an entry
from a mapping of names.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.config.document import Mistake, Mistakes, Node, Place, parse, parse_value, read_text
from stentor.data.storage import is_remote, join
from stentor.section import Choice, Section, alternatives
from stentor.section.schema_walk import Key, at, dotted, drops_null, inner, is_open, section_of, split_key, takes_list
from stentor.section.type_names import show
from stentor.version import EXPORT_FORMAT, EXPORT_KEYS, refuse_newer

_OVERRIDES = 1_000_000  # rank of the places of overrides: after all files


def read(path: Path, schema: type[Section] | None, mistakes: list[Mistake], base_key: str = "base") -> tuple[Node, str]:
    """The tree of a file and of the files it is based on, which `base_key` names, and the file's own text."""
    return _read(path, schema, mistakes, base_key, [])


def _read(
    path: Path, schema: type[Section] | None, mistakes: list[Mistake], base_key: str, below: list[Path]
) -> tuple[Node, str]:
    text = read_text(path)
    root = parse(text, str(path), len(below), mistakes, path.suffix == ".json")
    if not isinstance(root.value, dict):
        raise Mistakes([Mistake(root.place, f"a config is a mapping of keys to values, not {show(root.plain())}")])
    root = without_format(root, str(path))
    if base_key not in root.value:
        return root, text
    node = root.value[base_key]
    child = Node({k: v for k, v in root.value.items() if k != base_key}, root.place)
    if not isinstance(node.value, str):
        message = f"'{base_key}' must be the path of a config file, not {show(node.plain())}"
        raise Mistakes([Mistake(node.place, message, base_key)])
    # Relative to the file, so that a recipe and its base can be called from anywhere.
    target = join(path.parent, str(node.value if is_remote(node.value) else Path(node.value).expanduser()))
    target = target if is_remote(target) else Path(os.path.normpath(target))
    chain = [*below, path]
    if target.resolve() in [p.resolve() for p in chain]:
        circle = " -> ".join(str(p) for p in [*chain, target])
        raise Mistakes([Mistake(node.place, f"'{base_key}' leads in a circle: {circle}", base_key)])
    if not target.is_file():
        raise Mistakes([Mistake(node.place, f"the base {target} does not exist", base_key)])
    base, _ = _read(target, schema, mistakes, base_key, chain)
    return merge(base, child, schema), text


def without_format(root: Node, source: str) -> Node:
    """The tree without the keys that say the format of an export, whose training_config.json is a run file too. Raises
    ConfigError for a newer format."""
    content = {key: root.value[key].plain() for key in EXPORT_KEYS if key in root.value}
    refuse_newer(source, content, EXPORT_FORMAT)
    return Node({key: node for key, node in root.value.items() if key not in content}, root.place) if content else root


def merge(base: Node, child: Node, annotation: Any) -> Node:
    """The base with the child's values on top. Raises Mistakes for {} over a mapping of names, which would clear
    nothing."""
    base, child = spelled_out(base, annotation), spelled_out(child, annotation)
    if not isinstance(base.value, dict) or not isinstance(child.value, dict):
        return child
    kind = choice(annotation)
    if kind is not None and "type" in child.value:
        before = base.value["type"].plain() if "type" in base.value else kind.default_type
        if child.value["type"].plain() != before:
            return child
    if base.value and not child.value and drops_null(annotation):
        names = ", ".join(f"{name}: null" for name in base.value)
        text = f"{{}} changes nothing, because mappings merge: {{{names}}} removes the entries"
        raise Mistakes([Mistake(child.place, text)])
    merged = dict(base.value)
    plain = {**base.plain(), **child.plain()}
    for key, node in child.value.items():
        below = merge(merged[key], node, inner(annotation, plain, key)) if key in merged else node
        _set(merged, key, below, annotation, [k for k in child.value if k != key])
    return Node(merged, child.place)


def _set(entries: dict[str, Node], key: str, node: Node, annotation: Any, beside: Sequence[str] = ()) -> None:
    """Set a key over those below it. Null takes a named entry out, where nothing else is meant by it; a key that
    excludes others takes their place, but for those `beside` it and of other overrides, which are refused."""
    if node.value is None and key in entries and drops_null(annotation):
        del entries[key]
        return
    section = section_of(annotation, {k: v.plain() for k, v in entries.items() if k == "type"})
    for group in section.exclusive_keys if section is not None and node.value is not None else ():
        for other in group if key in group else ():
            if other not in (key, *beside) and other in entries and entries[other].place.rank < _OVERRIDES:
                del entries[other]
    entries[key] = node


def spelled_out(node: Node, annotation: Any) -> Node:
    """A section given as a bare string, as the mapping it stands for."""
    if isinstance(node.value, str) and any(
        isinstance(k, type) and issubclass(k, Section) and "type" in k.model_fields for k in alternatives(annotation)
    ):
        return Node({"type": node}, node.place)
    return node


def choice(annotation: Any) -> type[Choice] | None:
    """The base class of a choice, where the annotation is one."""
    for kind in alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, Choice) and is_open(kind):
            return kind
    return None


def override(root: Node, items: Sequence[str], schema: type[Section], mistakes: list[Mistake]) -> Node:
    """The tree with `key=value` overrides on top. Those that set a `type` count first, in whatever order they stand."""
    parsed: list[tuple[list[Key], Node]] = []
    for index, item in enumerate(items):
        place = Place(_OVERRIDES + index, 0, f"override `{item}`")
        key, equals, value = item.partition("=")
        try:
            if not equals:
                raise ValueError("an override is written key=value, such as optim.lr=1e-4")
            parsed.append((split_key(key.strip()), parse_value(value.strip(), place)))
        except ValueError as error:
            mistakes.append(Mistake(place, str(error)))
        except Mistakes as error:
            mistakes += error.mistakes
    for path, node in sorted(parsed, key=lambda p: (p[0][-1] != "type", len(p[0]) if p[0][-1] == "type" else 0)):
        try:
            root = put(root, path, node, schema)
        except Mistakes as error:
            mistakes += error.mistakes
    return root


def put(root: Node, path: Sequence[Key], node: Node, schema: Any) -> Node:
    """The tree with a value merged in at a path. An index one past the end of a list appends."""
    if path and path[-1] == "type" and choice(at(schema, root.plain(), path[:-1])):
        path, node = path[:-1], Node({"type": node}, node.place)
    return _put(root, list(path), 0, node, schema)


def _put(root: Node | None, path: list[Key], depth: int, node: Node, annotation: Any) -> Node:
    if root is None or (root.value is None and depth < len(path)):
        if depth == len(path):
            return node
        root = Node([] if takes_list(annotation) else {}, node.place)
    if depth == len(path):
        return merge(root, node, annotation)
    root = spelled_out(root, annotation)
    here, key = dotted(path[:depth]) or "the config", path[depth]
    if isinstance(root.value, list):
        count = len(root.value)
        if not isinstance(key, int) or key > count:
            known = "0" if count == 1 else f"0 to {count - 1}"
            allowed = f"{known}, or {count} to add one" if count else "0, to add the first"
            text = f"'{here}' is a list with {count} {'entry' if count == 1 else 'entries'}: the index can be {allowed}"
            raise Mistakes([Mistake(node.place, f"{text}, not {show(key)}", dotted(path))])
        below = root.value[key] if key < count else None
        changed = _put(below, path, depth + 1, node, inner(annotation, root.plain(), key))
        return Node([*root.value[:key], changed, *root.value[key + 1 :]], root.place)
    if not isinstance(root.value, dict):
        text = f"'{here}' holds {show(root.value)}, so there is no '{dotted(path)}' in it"
        raise Mistakes([Mistake(node.place, text, dotted(path))])
    name = str(key)
    value = _put(root.value.get(name), path, depth + 1, node, inner(annotation, root.plain(), name))
    entries = dict(root.value)
    _set(entries, name, value, annotation)
    return Node(entries, root.place)


def stage(root: Node, overrides: Node, schema: type[Section], mistakes: list[Mistake]) -> Node:
    """The tree of one stage: the run's own with the stage's keys, nested or dotted, on top."""
    plain = Node({k: v for k, v in root.value.items() if k != "stages"}, root.place)
    for key, node in overrides.value.items():
        try:
            path = split_key(key)
            if path[0] in ("stages", "prepare", "improve"):
                raise ValueError(f"a stage has no {path[0]} of its own")
            plain = put(plain, path, node, schema)
        except ValueError as error:
            mistakes.append(Mistake(node.place, str(error), key))
        except Mistakes as error:
            mistakes += error.mistakes
    return plain
