"""Declaration of options: a dataclass declares each option once, with its type, default, bounds and help.

The command line is generated from the declarations (`stentor.cli`), and Python calls take the fields as keyword
arguments. A field with a quoted type also takes Python objects; its `read_as` is the type on the command line. This
module must stay cheap to import, because printing help imports it.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stentor.errors import ConfigError, require

REQUIRED: Any = dataclasses.MISSING
"""Default of a required option."""
AnyClass = TypeVar("AnyClass", bound=type)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The properties of an option besides its name, type and default."""

    help: str
    argument: bool = False
    """Whether it is positional."""
    flags: str | None = None
    """Flags that replace `--` and the name of the field."""
    output: bool = False
    """Whether it is an output file or folder; one in remote storage is uploaded at the end."""
    local: bool = False
    """Whether it must be a local file; one in remote storage is copied into the cache first."""
    neutral: bool = False
    """Whether it does not change what is in an output, like `output`: inputs, which are recorded apart, and workers."""
    model: bool = False
    """Whether it names a model."""
    needs: str | None = None
    """Name of the option that this one requires."""
    ways: tuple[str, ...] = ()
    """Modes that use it, see `refuse_unused`. Empty: all."""
    panel: str | None = None
    """Heading in the help."""
    read_as: Any = None
    """Type on the command line if it differs from the type of the field."""
    min: float | None = None
    max: float | None = None
    metavar: str | None = None


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command of the command line."""

    name: str
    """Name; empty for the default command of a group."""
    options: type
    """Dataclass that declares the options; its docstring is the help text."""
    function: str = ""
    """`MODULE:NAME` of the function that is called with the options; empty: the options object is called. A returned
    number is the exit code."""
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
"""All commands of the imported modules."""
GROUPS: dict[str, str] = {}
"""Names and help texts of groups of commands, such as `config convert`."""


# Named after those of Typer, which are generated from them.
def Option(help: str, default: Any = None, **declared: Any) -> Any:
    """Declare a field as an option; `declared` are fields of `Declaration`."""
    metadata = {"declaration": Declaration(help, **declared)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def Flag(help: str, **declared: Any) -> Any:
    """Declare a field as a flag that is False by default."""
    return Option(help, False, **declared)


def Argument(help: str, default: Any = REQUIRED, **declared: Any) -> Any:
    """Declare a field as a positional argument."""
    return Option(help, default, argument=True, **declared)


def verb(name: str, function: str = "", group: str = "", extra: str = "") -> Callable[[AnyClass], AnyClass]:
    """Makes the dataclass below it the options of a verb; parameters as in `Verb`."""

    def add(options: AnyClass) -> AnyClass:
        VERBS.append(Verb(name, options, function, group, extra))
        return options

    return add


def verb_group(name: str, help: str) -> str:
    """Register a group of commands and return its name."""
    GROUPS[name] = help
    return name


def declarations(options: Any) -> Iterator[tuple[dataclasses.Field[Any], Declaration]]:
    """Yield the declared fields of an options object or class."""
    for field in dataclasses.fields(options):
        if "declaration" in field.metadata:
            yield field, field.metadata["declaration"]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; REQUIRED if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def flag(field: dataclasses.Field[Any]) -> str:
    """Return the option as written on the command line."""
    declared: Declaration = field.metadata["declaration"]
    return (declared.flags or f"--{field.name.replace('_', '-')}").partition("/")[0]


def given(options: Any) -> list[tuple[dataclasses.Field[Any], Declaration]]:
    """Return the options whose value differs from the default."""
    values = vars(options)
    return [(field, declared) for field, declared in declarations(options) if values[field.name] != default_of(field)]


def refuse_missing(options: Any) -> None:
    """Raise ConfigError for an option that requires another one that is missing."""
    flags = {field.name: flag(field) for field, _ in declarations(options)}
    present = {field.name for field, _ in given(options)}
    for field, declared in given(options):
        if declared.needs is not None and declared.needs not in present:
            raise ConfigError(f"{flag(field)} requires {flags[declared.needs]}.")


def refuse_unused(options: Any, *ways: str) -> None:
    """Raise ConfigError for an option that none of the chosen modes (`ways`) uses; the message names the last one."""
    for field, declared in given(options):
        if declared.ways and not set(declared.ways) & set(ways):
            raise ConfigError(f"{flag(field)} is for {' and '.join(declared.ways)}, not for {ways[-1]}: leave it out.")


def command_line(options: Any) -> list[str]:
    """Return command-line arguments that give an equal options object, for another process of the same command."""
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
