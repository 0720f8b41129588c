"""Contract between Stentor and the classes that extend it: checked when a class is defined and at the seams where it is
called, with one sentence that names the class, its file, the method and what was expected."""

import difflib
import inspect
import sys
import traceback
from typing import Any

from stentor.errors import FULL, ConfigError, StentorError

MACHINE = {"MemoryError", "OutOfMemoryError"}
"""Failures of the machine, not of the config."""
REGISTERED: list[str] = []
"""File of each class that extends Stentor from outside: faults inside them are for their authors to fix."""


def check_class(cls: Any, base: Any) -> None:
    """Check a class from outside against the base class of its section; ConfigError for methods that are missing, are
    never called, or cannot be called as they will be."""
    if cls.__module__.startswith("stentor."):
        return
    REGISTERED.append(file_of(cls))
    if missing := [name for name in base.required if getattr(cls, name) is getattr(base, name)]:
        raise ConfigError(
            f"{place(cls)} lacks {', '.join(f'`{name}`' for name in missing)}: a class of its kind "
            f"({base.__name__}) needs {', '.join(base.required)}."
        )
    outside = [c for c in cls.__mro__ if issubclass(c, base) and not c.__module__.startswith("stentor.")]
    for name, function in [(n, f) for c in outside for n, f in vars(c).items() if inspect.isfunction(f)]:
        if name.startswith(base.hooks or "\0") and not hasattr(base, name):
            hooks = [h for h in dir(base) if h.startswith(base.hooks)]
            near = difflib.get_close_matches(name, hooks, 1, 0.0)[0]
            raise ConfigError(
                f"{place(cls, name)} is never called: there is no such hook (did you mean {near}?). The hooks are "
                f"{', '.join(hooks)}."
            )
        _check_signature(cls, name, function, getattr(base, name, None))


def _check_signature(cls: Any, name: str, function: Any, expected: Any) -> None:
    """Whether an override takes what the base class's method is called with."""
    if not inspect.isfunction(expected):
        return
    parameters = list(inspect.signature(expected).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    try:
        inspect.signature(function).bind(*positional, **{p.name: 0 for p in parameters if p.kind is p.KEYWORD_ONLY})
    except TypeError:
        raise ConfigError(
            f"{place(cls, name)} is called with ({', '.join(p.name for p in parameters)}), "
            f"not ({', '.join(inspect.signature(function).parameters)})."
        ) from None


def file_of(cls: type) -> str:
    """The file a class is defined in, or the name of its module."""
    module = sys.modules.get(cls.__module__)
    return (vars(module).get("__file__") if module else None) or cls.__module__


def place(extension: Any, method: str | None = None) -> str:
    """`Count.targets (labels.py, line 12)`, of a class or of an object."""
    cls = extension if isinstance(extension, type) else type(extension)
    if method is None:
        return f"{cls.__qualname__} ({file_of(cls)})"
    owner = next((c for c in cls.__mro__ if method in vars(c)), cls)
    member: Any = vars(owner).get(method)
    function = inspect.unwrap(member.fget if isinstance(member, property) else member)  # type: ignore[arg-type]
    line = f", line {function.__code__.co_firstlineno}" if inspect.isfunction(function) else ""
    return f"{owner.__qualname__}.{method} ({file_of(owner)}{line})"


def violation(extension: Any, method: str, expected: str, value: Any) -> ConfigError:
    """The error for a method that returned something else than `expected`, such as "return the sum, a scalar"."""
    return ConfigError(f"{place(extension, method)} must {expected}, not {describe(value)}.")


def describe(value: Any) -> str:
    """Description of a value, in a few words."""
    match value:
        case object(shape=shape, dtype=dtype):  # a tensor or an array; torch is not imported for the question
            return f"a {type(value).__name__} of shape {list(shape)} and type {dtype}"
    text = repr(value)
    return text if value is None or len(text) <= 40 else f"a {type(value).__name__}"


def blame(error: BaseException) -> ConfigError | None:
    """The sentence for a failure inside the code of a plug-in, whatever it called there; None for any other failure and
    where the plug-in cannot help it (memory, a full disk)."""
    if isinstance(error, StentorError) or type(error).__name__ in MACHINE:
        return None
    if isinstance(error, OSError) and error.errno in FULL:
        return None
    inside = [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename in REGISTERED]
    if not inside:
        return None
    frame, line = inside[-1]
    text = " ".join(str(error).split())
    function = frame.f_code.co_qualname.replace(".<locals>", "")
    return ConfigError(f"{function} ({frame.f_code.co_filename}, line {line}) raised {type(error).__name__}: {text}")
