"""A form for a run, generated from the config's schema: what each key is called, what it means, what it may be.

Nothing about a key is written here: labels and help come from the docstrings under the fields, limits and choices
from their types. `BASIC` only picks the keys that are shown first. The run file is what counts: a widget shows what
stands there, and changes it there; what is left at its default is not written.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin

import annotated_types as bounds
from pydantic import TypeAdapter

from stentor.config.document import Mistake, Mistakes, Place, parse, parse_value
from stentor.config.reference import default, sentence
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump, edited, inline
from stentor.engine.callback import Callback
from stentor.errors import ConfigError, StentorError
from stentor.section import Section, alternatives, field_docs, summary
from stentor.section.schema_walk import entries, field_annotation, fields, is_open, sections_in
from stentor.section.type_names import describe, members


class Basic(NamedTuple):
    """A setting that most runs change."""

    name: str
    """Its name in texts.yaml and in the page."""
    key: str
    """A callback is named by its type: it stands in a list."""
    off: tuple[str, ...] = ()
    """The section that is there only while it is on: of a switch, or of a field that is not empty."""
    on: Any = True
    """Value that a switch writes."""


BASIC = (
    Basic("epochs", "train.epochs"),
    Basic("lr", "optim.lr"),
    Basic("batch", "data.max_items"),
    Basic("accumulate", "train.accumulate"),
    Basic("rank", "model.lora.rank"),
    Basic("alpha", "model.lora.alpha"),
    Basic("dropout", "model.lora.dropout"),
    Basic("freeze", "model.freeze"),
    Basic("patience", "callbacks.early_stop.patience", ("callbacks", "early_stop")),
    Basic("trackio", "callbacks.tracking.trackio", ("callbacks", "tracking", "trackio"), {"project": "stentor"}),
)
"""A family that lacks one does not show it."""
_LONGEST_LABEL = 48
_CHOICES = ("task", "model", "data")
_FREE = ("name", "output", "prepare", "stages")
"""Keys that the studio sets itself, and those that are written as YAML."""

Kind = Literal["integer", "number", "switch", "choice", "text", "yaml"]
NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class FormField:
    """One key of the form."""

    key: str
    """Dotted, as on the command line."""
    section: str
    """The first step of the key: the group that it is shown in."""
    kind: Kind
    label: str
    help: str
    """The key's documentation (but for what the label says), what it may be, and the key."""
    default: Any
    """Plain data; None where the key has none or is null. What an untouched row shows."""
    optional: bool
    """Whether null is a value of its own."""
    may_be: str
    """Allowed values, in words."""
    options: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    basic: Basic | None = None


@functools.cache
def form(task: str, family: str) -> list[FormField]:
    """The rows of a run with this task and this family, in the order of the schema, basic ones first.

    Sections in lists, in mappings and with a `type` of their own (other than task and model) are one row of YAML each.
    Raises ConfigError for a task or family that is not known.
    """
    picked = {("task",): task, ("model",): family}
    for path, name in picked.items():
        known = dict(sections_in(Config.model_fields[path[0]].annotation))[()].choices()  # type: ignore[attr-defined]
        if name not in known:
            raise ConfigError(f"There is no {path[0]} of type {name!r}: choose one of {', '.join(sorted(known))}.")
    rows: list[FormField] = []
    closed: list[tuple[str, ...]] = [(name,) for name in _FREE]  # shown as one row, or not at all
    for entry in entries(Config):
        if any(entry.path[: len(path)] == path for path in closed):
            continue
        if entry.path in picked or any(picked.get(path) != kind for path, kind in entry.kinds):
            continue
        if entry.path[:-1] in picked and entry.path[-1] == "type":
            continue
        inside = list(sections_in(entry.field.annotation))
        if inside and all(not steps and not is_open(section) for steps, section in inside):
            continue  # its own keys follow
        if inside:
            closed.append(entry.path)
        rows.append(_row(entry.key, entry.owner, entry.field))
    for basic in BASIC:
        if basic.off:
            kind = Callback.choices()[basic.off[1]]
            row = _row(basic.key, kind, kind.model_fields[basic.key.rpartition(".")[2]])
            rows.append(row if basic.on is True else replace(row, kind="switch"))
    return sorted(rows, key=lambda row: row.basic is None)


def basics(text: str) -> dict[str, FormField]:
    """The basic rows of a run file, by key: those of LoRA only where it is on. None where it is no run file."""
    try:
        rows, tree = form_of(text)
    except StentorError:
        return {}
    lora = at(tree, ("model", "lora")) is not None
    return {row.key: row for row in rows if row.basic and (lora or not row.key.startswith("model.lora."))}


def form_of(text: str) -> tuple[list[FormField], dict[str, Any]]:
    """The rows for the run file `text`, and the file as `plain` data. Raises ConfigError where it says no known task
    and model, or is no YAML."""
    tree = plain(text)
    kinds = [_type(tree.get(key), key) for key in ("task", "model")]
    return form(*kinds), tree


def plain(text: str) -> dict[str, Any]:
    """A run file as plain data, its callbacks by type. Raises `Mistakes` with the line of what is no YAML."""
    if not text.strip():
        return {}
    mistakes: list[Mistake] = []
    tree = parse(text, "run.yaml", 0, mistakes).plain()
    if mistakes:
        raise Mistakes(mistakes)
    if not isinstance(tree, dict):
        raise ConfigError("The run file is a list of keys with values: it needs at least task, model and data.")
    listed = [{"type": c} if isinstance(c, str) else c for c in tree.get("callbacks") or []]
    by_type = {c.get("type"): {k: v for k, v in c.items() if k != "type"} for c in listed if isinstance(c, dict)}
    if len(by_type) == len(listed) and all(isinstance(kind, str) for kind in by_type):
        tree |= {"callbacks": by_type} if listed else {}
    return tree


def written(tree: Mapping[str, Any], before: str = "") -> str:
    """The run file of plain data; the comments of the one `before` it stay where only values differ."""
    tree = {**tree, "callbacks": _listed(tree["callbacks"])} if "callbacks" in tree else dict(tree)
    if "#" in before:
        try:
            return edited(before, tree)
        except (KeyError, ValueError):  # something was taken out
            pass
    return dump(tree)


def _listed(callbacks: Any) -> Any:
    return [{"type": kind, **c} for kind, c in callbacks.items()] if isinstance(callbacks, dict) else callbacks


def at(tree: Any, path: Sequence[str]) -> Any:
    """Value of plain data under a path; None where there is nothing."""
    for step in path:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def value_of(row: FormField, tree: Mapping[str, Any]) -> Any:
    """Plain data of a row in a run file; its default where the file does not say, None for what is off."""
    if row.basic and row.basic.off and at(tree, row.basic.off) is None:
        return None
    if row.key == "callbacks":
        return _listed(tree.get("callbacks", row.default))
    node: Any = tree
    for step in row.key.split("."):
        if isinstance(node, str) and step == "type":
            return node  # a section that is written as its bare type
        if not isinstance(node, dict) or step not in node:
            return row.default
        node = node[step]
    return node


def shown(row: FormField, tree: Mapping[str, Any]) -> Any:
    """Value of a widget for a row of a run file: a truth value for a switch, text for all others."""
    value = value_of(row, tree)
    if row.kind == "switch":
        return value is True or isinstance(value, dict)
    if value is None:
        return "" if row.default is None or row.basic else "null"
    return value if isinstance(value, str) else inline(value)


def same(row: FormField, value: Any, tree: Mapping[str, Any]) -> bool:
    """Whether a widget holds what stands in a run file. Raises ConfigError for a value that the row cannot take."""
    return bool(value == shown(row, tree) or (row.kind != "switch" and read(row, value) == value_of(row, tree)))


def changed(text: str, row: FormField, value: Any) -> str:
    """The run file with the value that a widget holds. Empty, or the default, takes the key out of the file.

    Raises ConfigError for a value that the row cannot take; `Mistakes` where the file itself cannot be read.
    """
    tree = plain(text)
    new, steps, off = read(row, value), row.key.split("."), row.basic.off if row.basic else ()
    if off and not new:
        take(tree, off)
    elif new == row.default and not off:
        take(tree, steps)
    else:
        put(tree, steps, new)
    return written(tree, text)


def read(row: FormField, value: Any) -> Any:
    """Plain data of what a widget holds. Raises ConfigError for text that is not YAML or not a number, and for a value
    outside the limits; the schema checks the whole afterwards."""
    if row.basic and row.basic.on is not True:
        return row.basic.on if value else None
    # Where a number is needed among the basic settings, its default would not be seen.
    needed = row.basic and row.kind in NUMBERS and not (row.basic.off or row.optional)
    if not needed and (value is None or (isinstance(value, str) and not value.strip())):
        return None if row.basic and row.basic.off else row.default
    if row.optional and isinstance(value, str) and value.strip() == "null":
        return None
    if row.kind == "yaml" and isinstance(value, str):
        try:
            return parse_value(value.strip(), Place(0, 0, row.key)).plain()
        except (Mistakes, ValueError):
            raise ConfigError(f"{row.key}: {value[:60]!r} is not written as YAML.") from None
    if row.kind in NUMBERS:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{row.key}: {str(value)[:60]!r} is not a number.") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise ConfigError(f"{row.key}: a finite number is needed.")
        if row.kind == "integer" and number != int(number):
            raise ConfigError(f"{row.key}: {number:g} is not a whole number.")
        if (row.least is not None and number < row.least) or (row.most is not None and number > row.most):
            raise ConfigError(f"{row.key}: {number:g} is outside of its limits. It may be {row.may_be}.")
        as_integer = row.kind == "integer" or (isinstance(value, str) and value.strip().isdigit())
        return int(number) if as_integer else number
    if row.kind == "choice" and value not in row.options:
        raise ConfigError(f"{row.key}: {str(value)[:60]!r} is none of {', '.join(row.options)}.")
    return value


def sections() -> dict[str, str]:
    """The groups of rows: what each section of the schema is about, by its name, in its order."""
    docs = field_docs(Config)
    return {name: sentence(docs.get(name, "")) for name in fields(Config) if name not in _FREE}


def _type(section: Any, key: str) -> str:
    kind = section.get("type") if isinstance(section, dict) else section
    if not isinstance(kind, str):
        raise ConfigError(f"The run file says no `type` of its {key}.")
    return kind


def _row(key: str, owner: type[Section], field: Any) -> FormField:
    annotation = field_annotation(field)
    kind, options = _widget(annotation)
    limits = [m for _, bounds_of_kind in members(annotation) for m in bounds_of_kind] if kind in NUMBERS else []
    least = [float(m.ge if isinstance(m, bounds.Ge) else m.gt) for m in limits if isinstance(m, bounds.Ge | bounds.Gt)]
    most = [float(m.le if isinstance(m, bounds.Le) else m.lt) for m in limits if isinstance(m, bounds.Le | bounds.Lt)]
    meaning = field_docs(owner).get(key.rpartition(".")[2]) or next(
        (summary(s) for _, s in sections_in(annotation)), ""
    )
    first = sentence(meaning).rstrip(".")
    short = 0 < len(first) <= _LONGEST_LABEL and "`" not in first and ":" not in first
    words = key.replace(".", " ").replace("_", " ")
    rest = meaning[len(first) :].lstrip(". ") if short else meaning
    may_be = describe(annotation)
    return FormField(
        key=key,
        section=key.partition(".")[0],
        kind=kind,
        label=first if short else words[:1].upper() + words[1:],
        help=f"{rest} {may_be[:1].upper()}{may_be[1:]}; default {default(field)}. `{key}`".strip(),
        default=_plain(field),
        optional=type(None) in set(alternatives(annotation)),
        may_be=may_be,
        options=options,
        least=max(least, default=None),
        most=min(most, default=None),
        basic=next((basic for basic in BASIC if basic.key == key), None),
    )


def _widget(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    """The kind of widget, and its options."""
    kinds = [kind for kind, _ in members(annotation)]
    optional, kinds = type(None) in kinds, [kind for kind in kinds if kind is not type(None)]
    if kinds == [bool]:
        return "yaml" if optional else "switch", ()  # a switch has no third state
    if kinds and all(get_origin(kind) is Literal for kind in kinds):
        options = tuple(o for kind in kinds for o in get_args(kind))
        return ("choice", options) if all(isinstance(o, str) for o in options) else ("yaml", ())
    if kinds == [int]:
        return "integer", ()
    if kinds == [float] or set(kinds) == {int, float}:
        return "number", ()
    return ("text" if kinds == [str] else "yaml"), ()


def _plain(field: Any) -> Any:
    """A field's default as plain data; None where it has none."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    plain_value = TypeAdapter(Any).dump_python(value, mode="json", by_alias=True, exclude_unset=True)
    return plain_value or None if isinstance(value, Section) else plain_value


def put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for step in path[:-1]:
        if not isinstance(tree.get(step), dict):
            if isinstance(tree.get(step), list) and tree[step]:
                raise ConfigError(f"{step} is a list that cannot be changed here: change it in the run file.")
            tree[step] = {"type": tree[step]} if isinstance(tree.get(step), str) else {}
        tree = tree[step]
    tree[path[-1]] = value


def take(tree: dict[str, Any], path: Sequence[str]) -> None:
    """Take a key out, and with it a section of settings, or a callback, that holds nothing any more."""
    *above, last = path
    around = at(tree, above)
    if isinstance(around, dict):
        around.pop(last, None)
        if above and not around and (above[0] == "callbacks" or (len(path) == 2 and above[0] not in _CHOICES)):
            take(tree, above)
