"""Schema walk: the keys of a section, the annotation at a dotted key, all keys with their kinds."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stentor.section.section import Choice, alternatives

Key = str | int


def fields(section: type[Any]) -> dict[str, FieldInfo]:
    """The section's keys as written in a file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def is_open(section: type[Any]) -> bool:
    """Whether `type:` picks the class of this section."""
    return issubclass(section, Choice) and Choice in section.__bases__


def section_of(annotation: Any, value: Any = None) -> type[Any] | None:
    """The section class that an annotation stands for; for a choice, the class that the value's `type` picks. A choice
    whose type is missing or unknown gives its base class."""
    for kind in alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return chosen(kind, value) if is_open(kind) else kind
    return None


def chosen(base: type[Any], value: Any) -> type[Any]:
    """The class of a choice that the value's `type` picks, or the base class."""
    assert issubclass(base, Choice)
    name = value if isinstance(value, str) else base.default_type
    if isinstance(value, dict):
        name = value["type"] if "type" in value else base.implied_type(value)
    return base.named(name) or base if isinstance(name, str) else base


def inner(annotation: Any, value: Any, key: Key) -> Any:
    """The annotation of the value's entry, or None where the schema knows none. `value` is plain data."""
    section = None if isinstance(value, list) else section_of(annotation, value)
    if section is not None:
        field = fields(section).get(str(key))
        return field_annotation(field) if field else None
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if origin is dict:
            return args[1]
        if origin in (list, tuple, set) and isinstance(key, int):
            return args[key] if origin is tuple and Ellipsis not in args and key < len(args) else args[0]
    return None


def field_annotation(field: FieldInfo) -> Any:
    """A field's annotation with its bounds (pydantic keeps the outermost bounds apart)."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def at(schema: Any, data: Any, path: Sequence[Key]) -> Any:
    """The annotation at a path of plain data, or None."""
    for key in path:
        schema = inner(schema, data, key)
        data = entry(data, key)
    return schema


def takes_list(annotation: Any) -> bool:
    return any(get_origin(k) in (list, tuple, set) for k in alternatives(annotation))


def drops_null(annotation: Any) -> bool:
    """Whether this is a mapping of names to what cannot be null."""
    entries = [get_args(k)[1] for k in alternatives(annotation) if get_origin(k) is dict]
    return bool(entries) and not any(kind in (Any, NoneType) for entry in entries for kind in alternatives(entry))


def takes_names(annotation: Any) -> bool:
    return any(get_origin(k) is dict for k in alternatives(annotation))


def has(data: Any, key: Key) -> bool:
    """Whether plain data has the entry; a bare string has a `type`."""
    if isinstance(data, dict):
        return key in data
    if isinstance(data, list):
        return isinstance(key, int) and key < len(data)
    return isinstance(data, str) and key == "type"


def entry(data: Any, key: Key) -> Any:
    """The entry of plain data, or None. The `type` of a bare string is the string."""
    if isinstance(data, str) and key == "type":
        return data
    if isinstance(data, dict):
        return data.get(str(key))
    if isinstance(data, list) and isinstance(key, int) and key < len(data):
        return data[key]
    return None


@dataclass(frozen=True)
class Entry:
    """One key of the schema."""

    path: tuple[str, ...]
    """`*` stands for an entry of a list, `NAME` for a name of one's own in a mapping."""
    field: FieldInfo
    owner: type[Any]
    kinds: tuple[tuple[tuple[str, ...], str], ...] = ()
    """For each choice on the way: its path and the type under which this key exists."""

    @property
    def key(self) -> str:
        return ".".join(self.path)


def entries(
    schema: type[Any], path: tuple[str, ...] = (), kinds: Any = (), around: tuple[type[Any], ...] = ()
) -> Iterator[Entry]:
    """Every key of a schema, with the keys of each kind of each choice; sections inside themselves are left out."""
    for key, field in fields(schema).items():
        steps_to = (*path, key)
        yield Entry(steps_to, field, schema, kinds)
        for steps, section in sections_in(field.annotation):
            if section in around:
                continue
            inside, outer = (*steps_to, *steps), (*around, section)
            if is_open(section):
                for name, kind in kinds_of(section).items():
                    yield from entries(kind, inside, (*kinds, (inside, name)), outer)
            else:
                yield from entries(section, inside, kinds, outer)


def sections_in(annotation: Any) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    """The sections inside an annotation, with the steps to them (`*` for lists, `NAME` for mappings)."""
    for kind in alternatives(annotation):
        origin, args = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield (), kind
        elif origin in (list, tuple, set):
            for steps, section in sections_in(args[0]):
                yield ("*", *steps), section
        elif origin is dict:
            for steps, section in sections_in(args[1]):
                yield ("NAME", *steps), section


def kinds_of(base: type[Any]) -> dict[str, type[Any]]:
    """The kinds of a choice by name, sorted."""
    assert issubclass(base, Choice)
    return dict(sorted(base.choices().items()))


def dotted(path: Sequence[Key]) -> str:
    """`data.train.0.path`; keys that hold a dot are quoted."""
    return ".".join(f'"{k}"' if isinstance(k, str) and "." in k else str(k) for k in path)


def split_key(text: str) -> list[Key]:
    """The parts of a dotted key; numbers index lists, and `"a.b"` in double quotes is one part. Raises `ValueError`
    with a sentence when a part is empty."""
    parts = re.findall(r'"([^"]*)"|([^."]+)', text)
    if not parts or re.sub(r'"[^"]*"|[^."]+', "x", text) != ".".join("x" * len(parts)):
        raise ValueError(f"'{text}' is not a dotted key such as `optim.lr` or `data.train.0.path`")
    return [int(bare) if bare.isdigit() else quoted or bare for quoted, bare in parts]
