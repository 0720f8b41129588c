"""Sections of the config: `Section` (strict keys) and `Choice` (`type:` picks the class).

A component *is* its config: a `Choice` subclass declares its keys as pydantic fields, with a docstring under each
field, and keeps running state in private attributes. The folder that holds the base class is the registry: every
module in it is imported the first time a `type` of it is looked up, so adding a kind means adding one file.
"""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from stentor.errors import ConfigError
from stentor.section.contract import check_class, file_of

Effect = Literal["none", "scores", "fixed"]
"""Effect of a setting that can be changed in fewer or more cases than others: none on any result, on the scoring and
the export after the last step alone, or on what the weights mean (`fixed`: a checkpoint has one vocabulary)."""
CHOICE = "x-choice"
"""Marks a choice in pydantic's JSON schema; `reference.json_schema` puts its kinds there."""

_LOST_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
"""Form of `s3://bucket` after `pathlib.Path`."""


class Section(BaseModel):
    """Base of all config sections: unknown keys are errors, and field docstrings are the documentation of the keys.

    Values are not converted silently (`limit: true` is not 1, `"3"` is not 3). A section with a `type` key may be
    written as a string: `optim: sgd` means `optim: {type: sgd}`. Validators raise `ValueError` with a message; the
    loader adds file, line and key.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=False, allow_inf_nan=False
    )

    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of mutually exclusive keys, as written in a file: an override of one replaces the others."""
    effects: ClassVar[Mapping[str, Effect]] = {}
    """Effects of keys, as written in a file; `*` stands for all. `none` and `scores` can be changed when nothing is
    left to train; `fixed` keys can never be changed on resuming."""

    path_keys: ClassVar[tuple[str, ...]] = ("source", "from_", "init", "spelling", "model", "models", "recognizer")
    """Fields whose text may be a path or something else, such as an id; it is a path if it exists."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Like pydantic's method; storage URLs become strings."""
        return super().model_dump(**{"fallback": str, **options})

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for key, text in field_docs(cls).items():
            if key in properties:
                properties[key]["description"] = text
        return schema

    @model_validator(mode="before")
    @classmethod
    def _spell_out_bare_type(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) and "type" in cls.model_fields else value

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_conversion(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        if converts(value, field.annotation):
            raise PydanticCustomError("conversion", "wrong type")
        return value

    @field_validator("*")
    @classmethod
    def _refuse_lost_address(cls, value: Any) -> Any:
        if isinstance(value, Path) and _LOST_ADDRESS.match(str(value)):
            raise ValueError("must be a local path, not a URL")
        return value


class ConfigConflict(ValueError):
    """Raised by validators for a value that conflicts with another one: the message is reported at the line of `key`.

    `key` is dotted and relative to the section, such as `data.layout` in the whole config.
    """

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


AnyChoice: TypeAlias = "type[Choice]"
Kinds: TypeAlias = "dict[str, type[Choice]]"


class Choice(Section):
    """A section whose `type:` key picks one of the classes in the folder of the direct subclass of `Choice`.

    A base class may set `default_type` for a section without a `type`, `package` if its types are in another package
    than the base class, `required` for methods that a type must implement, and `hooks` for prefixes of method names
    that are reserved for the base class.
    """

    type: str
    default_type: ClassVar[str | None] = None
    package: ClassVar[str | None] = None
    required: ClassVar[tuple[str, ...]] = ()
    hooks: ClassVar[tuple[str, ...]] = ()
    aliases: ClassVar[tuple[str, ...]] = ()
    """Former names of a type in run files and exports of earlier versions, which are read but not written."""
    _choices: ClassVar[Kinds]
    _searched: ClassVar[bool]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if Choice in cls.__bases__:
            cls._choices = {}
            cls._searched = False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any):
        name = cls.model_fields["type"].default
        if not isinstance(name, str) or "type" not in inspect.get_annotations(cls):
            return  # a base class, or a helper that inherits the `type` of a kind
        other = cls._choices.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            kind = cls._base().__name__
            guest, host = (other, cls) if cls.__module__.startswith("stentor.") else (cls, other)
            raise ConfigError(
                f"The type '{name}' of {guest.__qualname__} ({file_of(guest)}) is already that of the {kind.lower()} "
                f"{host.__qualname__} ({file_of(host)}). Give it another `type`."
            )
        check_class(cls, cls._base())
        cls._choices[name] = cls

    @classmethod
    def _base(cls) -> "AnyChoice":
        return next(c for c in cls.__mro__ if issubclass(c, Choice) and Choice in c.__bases__)

    @classmethod
    def choices(cls) -> Kinds:
        """Return all known types by name, including those of plug-ins."""
        base = cls._base()
        if not base._searched:
            package = importlib.import_module(base.package or base.__module__.rpartition(".")[0])
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
            base._searched = True
        return base._choices

    @classmethod
    def named(cls, name: Any) -> "AnyChoice | None":
        """Return the class of this `type` or former name; None if it is unknown."""
        known = cls.choices()
        return known.get(name) or next((k for k in known.values() if name in k.aliases), None) if name else None

    @classmethod
    def implied_type(cls, keys: dict[str, Any]) -> str | None:
        """The type of a section without a `type`."""
        return cls.default_type

    @classmethod
    def from_alias(cls, alias: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Return the keys, except `type`, of a section that was written under one of the `aliases`."""
        return keys

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        if Choice not in cls.__bases__:
            return super().__get_pydantic_json_schema__(core_schema, handler)
        return {CHOICE: f"{cls.__module__}.{cls.__qualname__}"}

    @model_validator(mode="wrap")
    @classmethod
    def _validate_as_kind(cls, value: Any, handler: Any) -> Any:
        if Choice not in cls.__bases__ or isinstance(value, Choice):
            return handler(value)
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict):
            return handler(value)
        known = cls.choices()
        name = value["type"] if "type" in value else cls.implied_type(value)
        if name is None:
            raise PydanticCustomError("no_type", "`type` is required", {"known": sorted(known)})
        kind = cls.named(name) if isinstance(name, str) else None
        if kind is None:
            context = {"name": str(name), "known": sorted(known)}
            raise PydanticCustomError("unknown_type", "unknown type '{name}'", context)
        # Keys are written as in a file: `from`, never the attribute's name `from_`.
        keys = kind.from_alias(name, value) if name in kind.aliases else value
        return kind.model_validate({**keys, "type": kind.model_fields["type"].default}, by_alias=True, by_name=False)


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, without `Annotated`; the annotation itself when it is none."""
    if get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def converts(value: Any, annotation: Any) -> bool:
    """Whether pydantic would silently turn the value (or one inside it) into another type to fit the annotation. True
    for text or a truth value where a number is meant, and for text or a number where a truth value is meant."""
    kinds = list(alternatives(annotation))
    scalars = {k for k in kinds if k in (int, float, bool)}
    if isinstance(value, bool):
        return bool(scalars) and bool not in scalars
    if isinstance(value, (int, float)):
        return scalars == {bool}
    if isinstance(value, str):
        return bool(scalars) and not any(
            k in (str, Path, Any)
            or (isinstance(k, type) and issubclass(k, Section))
            or (get_origin(k) is Literal and value in get_args(k))
            for k in kinds
        )
    if isinstance(value, list):
        items = [k for k in kinds if get_origin(k) in (list, tuple, set)]
        return any(converts(v, a) for k in items for v, a in zip(value, _item_types(k, len(value))))
    if isinstance(value, dict):
        return any(converts(v, get_args(k)[1]) for k in kinds if get_origin(k) is dict for v in value.values())
    return False


def _item_types(annotation: Any, count: int) -> list[Any]:
    args = get_args(annotation)
    return list(args) if get_origin(annotation) is tuple and Ellipsis not in args else [args[0]] * count


def field_docs(section: type[Section]) -> dict[str, str]:
    """The docstring of each key (as written in a file) that has one, on one line, inherited keys included."""
    docs: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        module = sys.modules.get(cls.__module__)
        if issubclass(cls, Section) and module is not None and module.__file__:
            docs |= _docs_in_file(module.__file__).get(cls.__qualname__, {})
    return {field.alias or name: docs[name] for name, field in section.model_fields.items() if name in docs}


def summary(section: type[Section]) -> str:
    """The first paragraph of a section's docstring, on one line."""
    return _line((inspect.getdoc(section) or "").split("\n\n")[0]) if section.__doc__ else ""


@functools.cache
def _docs_in_file(file: str) -> dict[str, dict[str, str]]:
    """Field docstrings by the qualified names of the classes in a module."""
    docs: dict[str, dict[str, str]] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                docs[prefix + node.name] = _docs_of_class(node)
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                collect(node.body, f"{prefix}{node.name}.<locals>.")

    collect(ast.parse(Path(file).read_text(encoding="utf-8")).body, "")
    return docs


def _docs_of_class(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for pair in zip(node.body, node.body[1:]):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = _line(inspect.cleandoc(text))
    return docs


def _line(text: str) -> str:
    return " ".join(text.split())


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError(f"a range is written [low, high], got [{value[0]:g}, {value[1]:g}]")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
"""`[low, high]`: a uniform random value between them is drawn."""

IntRange = Annotated[tuple[int, int], AfterValidator(_ordered)]
"""`[low, high]`: whole numbers, both included."""
