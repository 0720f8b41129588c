"""Options of verbs and calls: a dataclass declares each one once, with its type, default, bounds and help.

The command line is made from the declarations (`stentor.cli`), a call in Python takes the fields as keywords, and what
works with the options takes the object. A field whose type is written in quotes takes more from Python than text: its
declaration says how the command line reads it (`read_as`). Nothing here takes time to import: help is printed with it.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stentor.errors import ConfigError, require

REQUIRED: Any = dataclasses.MISSING
"""Default of an option that must be given."""
AnyClass = TypeVar("AnyClass", bound=type)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """An option besides its name, type and default."""

    help: str
    argument: bool = False
    """Given by its place, without a name."""
    flags: str | None = None
    """Instead of `--` and the name of the field."""
    output: bool = False
    """A file or folder that the verb writes: at an address it is uploaded when the verb is done."""
    local: bool = False
    """Read by what takes local files alone: an address is copied into the cache first."""
    needs: str | None = None
    """The option without which this one has no effect."""
    ways: tuple[str, ...] = ()
    """The ways of working that use it, see `refuse_unused`. Empty: all."""
    panel: str | None = None
    """Heading in the help."""
    read_as: Any = None
    """Type on the command line, where it is not that of the field."""
    min: float | None = None
    max: float | None = None
    metavar: str | None = None


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    name: str
    """Empty: what its group does where none of the group's verbs is named."""
    options: type
    """Declares its options; the docstring is its help."""
    function: str = ""
    """`MODULE:NAME` of what is called with the options; empty: the options are called themselves. A number that it
    returns is the exit code."""
    group: str = ""
    """One of `GROUPS`."""
    extra: str = ""
    """The extra of the package that it needs."""

    def call(self, options: Any) -> Any:
        """Do it. Its module is imported for it."""
        if self.extra:
            require(self.extra, f"`stentor {f'{self.group} {self.name}'.strip()}`")
        if not self.function:
            return options()
        module, _, function = self.function.partition(":")
        return vars(importlib.import_module(module))[function](options)


VERBS: list[Verb] = []
"""All verbs of the modules that were imported."""
GROUPS: dict[str, str] = {}
"""Verbs that have verbs of their own, such as `config convert`, and their help."""


# Named as Typer's, which are made from them.
def Option(help: str, default: Any = None, **declared: Any) -> Any:
    """A field that is an option; `declared` are fields of `Declaration`."""
    metadata = {"declaration": Declaration(help, **declared)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def Flag(help: str, **declared: Any) -> Any:
    """A field that is False unless its option is there."""
    return Option(help, False, **declared)


def Argument(help: str, default: Any = REQUIRED, **declared: Any) -> Any:
    """A field that is an argument."""
    return Option(help, default, argument=True, **declared)


def verb(name: str, function: str = "", group: str = "", extra: str = "") -> Callable[[AnyClass], AnyClass]:
    """Makes the dataclass below it the options of a verb; parameters as in `Verb`."""

    def add(options: AnyClass) -> AnyClass:
        VERBS.append(Verb(name, options, function, group, extra))
        return options

    return add


def verb_group(name: str, help: str) -> str:
    """The name of a verb with verbs of its own."""
    GROUPS[name] = help
    return name


def declarations(options: Any) -> Iterator[tuple[dataclasses.Field[Any], Declaration]]:
    """The declared fields of an options object or class."""
    for field in dataclasses.fields(options):
        if "declaration" in field.metadata:
            yield field, field.metadata["declaration"]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, REQUIRED where it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def flag(field: dataclasses.Field[Any]) -> str:
    """The option as it is written on the command line."""
    declared: Declaration = field.metadata["declaration"]
    return (declared.flags or f"--{field.name.replace('_', '-')}").partition("/")[0]


def given(options: Any) -> list[tuple[dataclasses.Field[Any], Declaration]]:
    """The options with another value than their default."""
    values = vars(options)
    return [(field, declared) for field, declared in declarations(options) if values[field.name] != default_of(field)]


def refuse_missing(options: Any) -> None:
    """Raise ConfigError for an option that has no effect without another one that is not given."""
    flags = {field.name: flag(field) for field, _ in declarations(options)}
    present = {field.name for field, _ in given(options)}
    for field, declared in given(options):
        if declared.needs is not None and declared.needs not in present:
            raise ConfigError(f"{flag(field)} goes with {flags[declared.needs]}.")


def refuse_unused(options: Any, *ways: str) -> None:
    """Raise ConfigError for an option that none of the chosen ways of working uses; the last one is named."""
    for field, declared in given(options):
        if declared.ways and not set(declared.ways) & set(ways):
            raise ConfigError(f"{flag(field)} is for {' and '.join(declared.ways)}, not for {ways[-1]}: leave it out.")


def command_line(options: Any) -> list[str]:
    """The arguments that make an equal options object, for another process of the same command."""
    positional, named = [], []
    for field, declared in given(options):
        value = vars(options)[field.name]
        texts = [str(part) for part in (value if isinstance(value, list) else [value])]
        if declared.argument:
            positional += texts
        elif isinstance(value, bool):
            named.append(f"--{'' if value else 'no-'}{field.name.replace('_', '-')}")
        else:
            named += [part for text in texts for part in (flag(field), text)]
    return [*positional, *named]
