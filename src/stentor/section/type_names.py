"""Type names: schema types and values in plain words, for messages and for the reference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as bounds
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stentor.section.schema_walk import is_open
from stentor.section.section import alternatives

_NAMES = {
    int: ("whole number", "a whole number", "whole numbers"),
    float: ("number", "a number", "numbers"),
    str: ("text", "text", "texts"),
    bool: ("true | false", "true or false", "true or false"),
    Path: ("path", "a path", "paths"),
    Any: ("any", "any value", "any values"),
}
"""In a table cell, one of them, several."""
_BOUNDS = (
    (bounds.Gt, "gt", ">", "above"),
    (bounds.Ge, "ge", "≥", "of at least"),
    (bounds.Lt, "lt", "<", "below"),
    (bounds.Le, "le", "≤", "of at most"),
)
"""Class of a bound, its attribute, its sign and its words."""


def describe(annotation: Any, plural: bool = False) -> str:
    """Describe the valid values: `a number above 0`, `'a', 'b' or null`, `a list of sections`."""
    return either(_options(annotation, lambda kind, limits: _phrases(kind, limits, plural)))


def short(annotation: Any) -> str:
    """The type for a table cell: `number > 0`, `a | b | null`, `list of sections`."""
    return " | ".join(_options(annotation, _cell))


def _options(annotation: Any, name: Any) -> list[str]:
    """The names of a union's members, null last, each once."""
    kinds = members(annotation)
    options = [text for kind, limits in kinds if kind is not type(None) for text in name(kind, limits)]
    if any(kind is type(None) for kind, _ in kinds):
        options.append("null")
    return list(dict.fromkeys(options))


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
    return "a mapping" if isinstance(value, dict) else str(value)


def either(options: Sequence[str]) -> str:
    """`a, b or c`"""
    return f"{', '.join(options[:-1])} or {options[-1]}" if len(options) > 1 else "".join(options)


def members(annotation: Any) -> list[tuple[Any, list[Any]]]:
    """The members of a union, each with the bounds that apply to it."""
    if get_origin(annotation) is Annotated:
        inside, *metadata = get_args(annotation)
        # Of a member or an element the bounds are still in its `Field`.
        metadata = [part for m in metadata for part in (m.metadata if isinstance(m, FieldInfo) else [m])]
        return [(kind, [*limits, *metadata]) for kind, limits in members(inside)]
    if list(alternatives(annotation)) == [annotation]:
        return [(annotation, [])]
    return [member for kind in get_args(annotation) for member in members(kind)]


def _phrases(kind: Any, limits: list[Any], plural: bool) -> list[str]:
    """One member of a union in words."""
    origin, args = get_origin(kind), get_args(kind)
    lists = "lists" if plural else "a list"
    least = next((m.min_length for m in limits if isinstance(m, bounds.MinLen) and m.min_length > 0), None)
    if origin is Literal:
        return [show(option) for option in args]
    if kind in _NAMES:
        suffix = " that is not empty" if kind is str and least else _range(limits)
        return [_NAMES[kind][1 + plural] + suffix]
    if origin in (list, set) or (origin is tuple and Ellipsis in args):
        return [f"{lists} of {describe(args[0], True)}{f' (at least {least})' if least else ''}"]
    if origin is tuple:
        return [f"{lists} of {len(args)} {describe(args[0], True)}"]
    if origin is dict or kind is dict:
        value = describe(args[1], True) if args else "values"
        return [f"{'mappings' if plural else 'a mapping'} of names to {value}"]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if is_open(kind):
            return ["sections with a `type`" if plural else "a section with a `type`"]
        return ["sections" if plural else "a section (keys with values)"]
    return ["other values" if plural else "another value"]


def _cell(kind: Any, limits: list[Any]) -> list[str]:
    """One member of a union for a table cell."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [f"`{option}`" for option in args]
    if kind in _NAMES:
        signs = ", ".join(f"{sign} {value}" for sign, _, value in _limits(limits))
        return [f"{_NAMES[kind][0]} {signs}".rstrip()]
    if origin is tuple and Ellipsis not in args:
        return [f"{len(args)} {describe(args[0], True)}"]
    if origin in (list, set, tuple):
        return [f"list of {describe(args[0], True)}"]
    if origin is dict or kind is dict:
        return [f"mapping of names to {describe(args[1], True) if args else 'values'}"]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return ["section with a `type`" if is_open(kind) else "section"]
    return [str(kind)]


def _limits(limits: list[Any]) -> list[tuple[str, str, str]]:
    """(sign, words, value) of each bound of a number."""
    last = {attribute: getattr(m, attribute) for m in limits for cls, attribute, *_ in _BOUNDS if isinstance(m, cls)}
    return [(sign, words, f"{last[attribute]:g}") for _, attribute, sign, words in _BOUNDS if attribute in last]


def _range(limits: list[Any]) -> str:
    values = {sign: value for sign, _, value in _limits(limits)}
    if "≥" in values and "≤" in values:
        return f" from {values['≥']} to {values['≤']}"
    words = " and ".join(f"{words} {value}" for _, words, value in _limits(limits))
    return f" {words}" if words else ""
