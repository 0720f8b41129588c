"""The two building blocks of every config: `Section` (strict keys) and `Choice` (`type:` picks the class).

A component *is* its config: a `Choice` subclass declares its keys as pydantic fields, with a docstring under each
field, and keeps running state in private attributes. The folder that holds the base class is the registry: every
module in it is imported the first time a `type` of it is looked up, so adding a kind means adding one file.
"""

import importlib
import pkgutil
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Base of every config section: unknown keys are errors, field docstrings are the reference."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, validate_assignment=True, arbitrary_types_allowed=False
    )


class Choice(Section):
    """A section whose `type:` key picks one of the classes in the folder of the direct subclass of `Choice`.

    A bare string stands for `{type: string}`. A base class may set `default_type` for a section without a `type`.
    """

    type: str
    default_type: ClassVar[str | None] = None
    _choices: ClassVar[dict[str, type["Choice"]]]
    _searched: ClassVar[bool]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if Choice in cls.__bases__:
            cls._choices = {}
            cls._searched = False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any):
        name = cls.model_fields["type"].default
        if isinstance(name, str):
            cls._choices[name] = cls

    @classmethod
    def choices(cls) -> dict[str, type["Choice"]]:
        """All known kinds by their `type` name, plug-ins included."""
        base = next(c for c in cls.__mro__ if Choice in c.__bases__)
        if not base._searched:
            package = importlib.import_module(base.__module__.rpartition(".")[0])
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{package.__name__}.{module.name}")
            base._searched = True
        return base._choices

    @model_validator(mode="wrap")
    @classmethod
    def _pick(cls, value: Any, handler: Any) -> Any:
        if Choice not in cls.__bases__ or isinstance(value, Choice):
            return handler(value)
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict):
            return handler(value)
        known = cls.choices()
        name = value.get("type", cls.default_type)
        if name is None:
            raise PydanticCustomError("no_type", "`type` is required", {"known": sorted(known)})
        if not isinstance(name, str) or name not in known:
            raise PydanticCustomError("unknown_type", "unknown type '{name}'", {"name": str(name), "known": sorted(known)})
        return known[name].model_validate({**value, "type": name})
