"""Explanations of pydantic's errors: the key, the expected type, the value, and suggestions."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from stentor.errors import ConfigError
from stentor.section.schema_walk import (
    Key,
    at,
    dotted,
    entries,
    entry,
    fields,
    has,
    is_open,
    kinds_of,
    section_of,
    sections_in,
    split_key,
    takes_list,
    takes_names,
)
from stentor.section.section import Choice, ConfigConflict, Section, alternatives, converts
from stentor.section.type_names import describe, either, show

M = TypeVar("M", bound=BaseModel)

# Errors about types that carry no link to pydantic's pages; all others without one are our own sentences.
_TYPES = ("conversion", "path_type")

_NUMBER = re.compile(r"[-+]?[\d.]+([eE][-+]?\d+)?")

_OTHER_NAMES = yaml.safe_load(resources.files(__package__).joinpath("other_names.yaml").read_text("utf-8"))
_ELSEWHERE = {theirs: ours for ours, names in _OTHER_NAMES.items() for theirs in names}


class Explained(NamedTuple):
    """A sentence about a wrong value, the path of the place to name, and its dotted key (empty for the whole)."""

    path: tuple[Key, ...]
    text: str
    key: str


def explain(error: ValidationError, data: Any, schema: type[BaseModel] | None = None) -> list[Explained]:
    """Return a sentence for each error. `data`: the plain values that were read as a `schema`; without a schema the
    sentences cannot name what is allowed."""
    plain: dict[tuple[Key, ...], list[dict[str, Any]]] = {}
    unions: dict[tuple[Key, ...], list[tuple[tuple[Key, ...], dict[str, Any]]]] = {}
    for detail in error.errors():
        path, union = (detail["loc"], None) if schema is None else _locate(detail, data)
        if union is None:
            plain.setdefault(path, []).append(dict(detail))
        else:
            unions.setdefault(union, []).append((path, dict(detail)))
    for union, branches in unions.items():
        for path, detail in _best(branches, union, entry_at(data, union)):
            plain.setdefault(path, []).append(detail)
    explainer = _Explainer(data, schema)
    return [explainer.mistake(path, detail) for path, details in plain.items() for detail in details]


def sentences(error: ValidationError, data: Any = None, schema: type[BaseModel] | None = None) -> str:
    """Return what is wrong with values that lie in no file, in sentences."""
    texts = dict.fromkeys(explained.text.rstrip(".") for explained in explain(error, data, schema))
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)


def validated(schema: type[M], data: dict[str, Any], about: str = "") -> M:
    """Return values that lie in no file as a section. Raises ConfigError, whose sentences come after `about`."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise ConfigError(about + sentences(error, data, schema)) from None


def wrong_value(error: Exception) -> ConfigError | None:
    """Return the sentences about wrong values of which no one said where they come from; None for another error."""
    return ConfigError(f"{error.title.lower()}: {sentences(error)}") if isinstance(error, ValidationError) else None


@contextlib.contextmanager
def saved_in(file: Path) -> Iterator[None]:
    """Explain why sections that were read from a saved file are invalid. Raises ConfigError for a ValidationError in
    the block; a type that no loaded code has belongs to a plug-in."""
    try:
        yield
    except ValidationError as error:
        text = f"{file}: {wrong_value(error)}"
        if any(problem["type"] == "unknown_type" for problem in error.errors()):
            text += " If it belongs to a plug-in, give --plugin FILE.py; in Python, import that file first."
        raise ConfigError(text) from error


def entry_at(data: Any, path: Sequence[Key]) -> Any:
    for key in path:
        data = entry(data, key)
    return data


def _locate(detail: Any, data: Any) -> tuple[tuple[Key, ...], tuple[Key, ...] | None]:
    """The path in the data, and where pydantic's branch labels of a union began, if there were any."""
    path: list[Key] = []
    union: tuple[Key, ...] | None = None
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if has(data, part) or (index == last and detail["type"] in ("missing", "conversion")):
            path.append(part)
            data = entry(data, part)
        elif union is None:
            union = tuple(path)
    return tuple(path), union


def _best(branches: list[tuple[tuple[Key, ...], dict[str, Any]]], union: tuple[Key, ...], value: Any) -> Any:
    """The errors of a union that help: those inside the section that was meant, or one for the value itself."""
    inside = [(path, detail) for path, detail in branches if path != union]
    if inside and isinstance(value, (dict, list)):
        return inside
    direct = [(path, detail) for path, detail in branches if "url" not in detail or detail["type"] == "value_error"]
    return direct[:1] or [(union, {"type": "union", "loc": union, "url": ""})]


class _Explainer:
    """Errors of one config, whose `data` is a plain tree."""

    def __init__(self, data: Any, schema: Any):
        self.data, self.schema = data, schema

    def mistake(self, path: tuple[Key, ...], detail: dict[str, Any]) -> Explained:
        kind, key = detail["type"], dotted(path)
        place = path
        if kind == "extra_forbidden":
            text = self.unknown(path)
        elif kind == "missing":
            text = f"'{key}' is missing" + (f": it must be {describe(self.annotation(path))}" if self.schema else "")
        elif kind == "no_type":
            text = f"'{key}' needs a `type`: {either(detail['ctx']['known'])}"
        elif kind == "unknown_type":
            place = (*path, "type")
            name, known = detail["ctx"]["name"], detail["ctx"]["known"]
            where = f" for '{key}'" if key else ""
            text = f"unknown type '{name}'{where}{guess(name, known)}; known: {', '.join(known)}"
        elif kind in ("value_error", "assertion_error"):
            error = detail["ctx"]["error"]
            if isinstance(error, ConfigConflict):
                place = (*path, *split_key(error.key))
                key = dotted(place)
            text = _about(key, str(error))
        elif "url" not in detail and kind not in _TYPES:
            text = _about(key, detail["msg"])
        elif self.schema is None:
            text = _about(key, f"cannot be {show(detail['input'])}")
        else:
            place = self.culprit(path)
            key = dotted(place)
            value, annotation = entry_at(self.data, place), self.annotation(place)
            actual = _length(value) if isinstance(value, list) and takes_list(annotation) else show(value)
            text = f"'{key}' must be {describe(annotation)}, not {actual}{_mend(value, annotation)}"
        return Explained(place, text, key)

    def annotation(self, path: Sequence[Key]) -> Any:
        return at(self.schema, self.data, path)

    def culprit(self, path: tuple[Key, ...]) -> tuple[Key, ...]:
        """The wrong entry of a list or mapping where the whole was named."""
        value, annotation = entry_at(self.data, path), self.annotation(path)
        items: Iterable[tuple[Key, Any]] = ()
        if isinstance(value, list) and takes_list(annotation):
            items = enumerate(value)
        elif isinstance(value, dict) and takes_names(annotation):
            items = value.items()
        for key, item in items:
            expected = at(annotation, value, [key])
            if expected is not None and not isinstance(item, (list, dict)) and not _fits(item, expected):
                return (*path, key)
        return path

    def unknown(self, path: tuple[Key, ...]) -> str:
        key, name = dotted(path), str(path[-1])
        if self.schema is None:
            return f"unknown key '{key}'"
        parent = path[:-1]
        annotation = self.annotation(parent) if parent else self.schema
        section = section_of(annotation, entry_at(self.data, parent))
        assert section is not None
        siblings = list(fields(section)) + (["base"] if not parent and issubclass(section, Section) else [])
        message = f"unknown key '{key}'"
        if matches := difflib.get_close_matches(name, siblings, 1, 0.8):
            return f"{message} (did you mean '{matches[0]}'?)"
        if kinds := self.other_kinds(parent, section, name):
            kind = section.model_fields["type"].default
            return f"{message}: '{name}' is a key of type {either([show(k) for k in kinds])}, not of '{kind}'"
        if homes := self.homes(name, parent):
            return f"{message}: '{name}' belongs under {either([show(home) for home in homes])}"
        if (synonym := _ELSEWHERE.get(name)) is not None:
            if "." in synonym or synonym in {*siblings, *fields(self.schema)}:
                return f"{message} (it is called '{synonym}' here)"
            if homes := self.homes(synonym, parent):
                places = either([show(home) for home in homes])
                return f"{message}: it is called '{synonym}' here and belongs under {places}"
        if "." in name and at(self.schema, self.data, [*parent, *name.split(".")]) is not None:
            nested = ": {".join(name.split(".")) + ": ..." + "}" * name.count(".")
            return f"{message}: dotted keys are for the command line and for stages; write `{nested}`"
        if matches := difflib.get_close_matches(name, siblings, 1, 0.6):
            return f"{message} (did you mean '{matches[0]}'?)"
        if not siblings:
            return f"{message}: this section has no keys"
        return f"{message}; known here: {', '.join(siblings)}"

    def other_kinds(self, parent: tuple[Key, ...], section: type[Any], name: str) -> list[str]:
        """Other types of the same choice that have the key."""
        if not issubclass(section, Choice) or is_open(section):
            return []
        return [kind for kind, cls in kinds_of(section).items() if name in fields(cls)]

    def homes(self, name: str, parent: tuple[Key, ...]) -> list[str]:
        """Sections elsewhere that have the key, under the types that this config chooses."""
        sections: dict[str, None] = {}
        for candidate in entries(self.schema):
            if candidate.path[-1] != name or len(candidate.path) < 2:
                continue
            if all(self.chooses(steps, kind) for steps, kind in candidate.kinds):
                sections[dotted([s for s in candidate.path[:-1] if s != "*"])] = None
        depth = min((home.count(".") for home in sections), default=0)
        homes = [home for home in sections if home.count(".") == depth]
        return homes if len(homes) <= 3 else []

    def chooses(self, steps: tuple[str, ...], kind: str) -> bool:
        return any(_kind(section) == kind for section in self.sections(self.schema, self.data, steps))

    def sections(self, annotation: Any, data: Any, steps: tuple[str, ...]) -> Iterable[type[Any]]:
        if not steps:
            section = section_of(annotation, data)
            return [section] if section else []
        keys: list[Key]
        if steps[0] in ("*", "NAME"):
            keys = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
        else:
            keys = [steps[0]]
        return [s for k in keys for s in self.sections(at(annotation, data, [k]), entry(data, k), steps[1:])]


def _kind(section: type[Any]) -> str | None:
    return section.model_fields["type"].default if "type" in section.model_fields else None


def _length(value: list[Any]) -> str:
    return f"a list of {len(value)}" if value else "an empty list"


def _about(key: str, message: str) -> str:
    return f"'{key}': {message}" if key else message


def guess(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    matches = difflib.get_close_matches(name, list(known), 1, cutoff)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def _fits(value: Any, annotation: Any) -> bool:
    if converts(value, annotation):
        return False
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def _mend(value: Any, annotation: Any) -> str:
    """Return how to fix a common mistake."""
    kinds = list(alternatives(annotation))
    if isinstance(value, str):
        options = [o for k in kinds if get_origin(k) is Literal for o in get_args(k)]
        if options:
            return guess(value, [str(o) for o in options])
        if bool in kinds and value.lower() in ("yes", "on", "no", "off", "y", "n"):
            return f" (write {'true' if value.lower() in ('yes', 'on', 'y') else 'false'})"
        if {int, float, bool} & set(kinds) and _NUMBER.fullmatch(value):
            return " (without the quotes)"
        if any(get_origin(k) is list and get_args(k)[0] is str for k in kinds):
            return f" (write [{json.dumps(value)}])"
    elif str in kinds and isinstance(value, (int, float)):
        return " (put it in quotes)"
    elif isinstance(value, dict) and any(get_origin(k) is list for k in kinds) and any(sections_in(annotation)):
        return " (begin each entry with '- ')"
    elif isinstance(value, list) and any(get_origin(k) is dict for k in kinds):
        return " (give each entry a name: `NAME: ...`)"
    return ""
