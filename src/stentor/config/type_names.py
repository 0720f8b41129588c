"""Schema types and values in plain words, for messages and for the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as bounds

from stentor.config.schema_walk import is_open
from stentor.section import Section, alternatives


def describe(annotation: Any, plural: bool = False) -> str:
    """What a value must be: `a number above 0`, `'a', 'b' or null`, `a list of sections`."""
    members = list(_members(annotation))
    said: list[str] = []
    for kind, limits in members:
        if kind is not type(None):
            said += _one(kind, limits, plural)
    if any(kind is type(None) for kind, _ in members):
        said.append("null")
    return either(list(dict.fromkeys(said)))


def short(annotation: Any) -> str:
    """The type for a table cell: `number > 0`, `a | b | null`, `list of sections`."""
    members = list(_members(annotation))
    said = [text for kind, limits in members if kind is not type(None) for text in _short_one(kind, limits)]
    if any(kind is type(None) for kind, _ in members):
        said.append("null")
    return " | ".join(dict.fromkeys(said))


def show(value: Any) -> str:
    """A value as it looks in a file, short."""
    if value is None:
        return "null (nothing)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}...'"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return str(value)


def either(options: Sequence[str]) -> str:
    """`a, b or c`"""
    return f"{', '.join(options[:-1])} or {options[-1]}" if len(options) > 1 else "".join(options)


def article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _members(annotation: Any) -> list[tuple[Any, list[Any]]]:
    """The members of a union, each with the bounds that apply to it."""
    if get_origin(annotation) is Annotated:
        inside, *metadata = get_args(annotation)
        return [(kind, [*limits, *metadata]) for kind, limits in _members(inside)]
    kinds = list(alternatives(annotation))
    if kinds == [annotation]:
        return [(annotation, [])]
    return [member for kind in get_args(annotation) for member in _members(kind)]


def _one(kind: Any, limits: list[Any], plural: bool) -> list[str]:
    names = {
        int: ("a whole number", "whole numbers"),
        float: ("a number", "numbers"),
        str: ("text", "texts"),
        bool: ("true or false", "true or false"),
        Path: ("a path", "paths"),
        Any: ("any value", "any values"),
    }
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [show(option) for option in args]
    if kind in names:
        extra = _range(limits) if kind in (int, float) else ""
        if kind is str and any(isinstance(m, bounds.MinLen) and m.min_length > 0 for m in limits):
            extra = " that is not empty"
        return [names[kind][plural] + extra]
    if origin in (list, set) or (origin is tuple and Ellipsis in args):
        return [f"{'lists' if plural else 'a list'} of {describe(args[0], True)}{_length(limits)}"]
    if origin is tuple:
        return [f"{'lists' if plural else 'a list'} of {len(args)} {describe(args[0], True)}"]
    if origin is dict or kind is dict:
        value = describe(args[1], True) if args else "values"
        return [f"{'mappings' if plural else 'a mapping'} of names to {value}"]
    if isinstance(kind, type) and issubclass(kind, Section):
        if is_open(kind):
            return ["sections with a `type`" if plural else "a section with a `type`"]
        return ["sections" if plural else "a section (keys with values)"]
    return ["other values" if plural else "another value"]


def _short_one(kind: Any, limits: list[Any]) -> list[str]:
    names = {int: "whole number", float: "number", str: "text", bool: "true | false", Path: "path", Any: "any"}
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [f"`{option}`" for option in args]
    if kind in names:
        return [names[kind] + (_signs(limits) if kind in (int, float) else "")]
    if origin is tuple and Ellipsis not in args:
        return [f"{len(args)} {describe(args[0], True)}"]
    if origin in (list, set, tuple):
        return [f"list of {describe(args[0], True)}"]
    if origin is dict or kind is dict:
        return [f"mapping of names to {describe(args[1], True) if args else 'values'}"]
    if isinstance(kind, type) and issubclass(kind, Section):
        return ["section with a `type`" if is_open(kind) else "section"]
    return [str(kind)]


def _found(limits: list[Any]) -> dict[str, str]:
    found: dict[str, Any] = {}
    for limit in limits:
        if isinstance(limit, bounds.Gt):
            found["gt"] = limit.gt
        elif isinstance(limit, bounds.Ge):
            found["ge"] = limit.ge
        elif isinstance(limit, bounds.Lt):
            found["lt"] = limit.lt
        elif isinstance(limit, bounds.Le):
            found["le"] = limit.le
    return {name: f"{value:g}" for name, value in found.items()}


def _range(limits: list[Any]) -> str:
    found = _found(limits)
    if "ge" in found and "le" in found:
        return f" from {found['ge']} to {found['le']}"
    said = [
        f"{word} {found[name]}"
        for name, word in (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most"))
        if name in found
    ]
    return (" " + " and ".join(said)) if said else ""


def _signs(limits: list[Any]) -> str:
    found = _found(limits)
    signs = [
        f"{sign} {found[name]}" for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")) if name in found
    ]
    return (" " + ", ".join(signs)) if signs else ""


def _length(limits: list[Any]) -> str:
    for limit in limits:
        if isinstance(limit, bounds.MinLen) and limit.min_length > 0:
            return f" (at least {limit.min_length})"
    return ""
