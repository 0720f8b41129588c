"""Contract of classes that extend Stentor, checked when a class is defined and when it is called. Messages name the
class, its file, the method and what was expected."""

import difflib
import inspect
import sys
import traceback
from typing import Any

from stentor.errors import FULL, ConfigError, StentorError

MACHINE = {"MemoryError", "OutOfMemoryError"}
"""Errors of the machine, which are not caused by a plug-in."""
REGISTERED: list[str] = []
"""Files of the classes that extend Stentor: errors inside them are attributed to the plug-in."""


def check_class(cls: Any, base: Any) -> None:
    """Check a plug-in class against the base class of its section. Raises ConfigError for methods that are missing, are
    never called, or have an incompatible signature."""
    if cls.__module__.startswith("stentor."):
        return
    REGISTERED.append(file_of(cls))
    if missing := [r for r in base.required if all(getattr(cls, n) is getattr(base, n) for n in r.split(" or "))]:
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
    """Raise ConfigError if an override does not accept the arguments of the base class's method."""
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
    """Return the file in which a class is defined, or the name of its module."""
    module = sys.modules.get(cls.__module__)
    return (vars(module).get("__file__") if module else None) or cls.__module__


def place(extension: Any, method: str | None = None) -> str:
    """Return `Count.targets (labels.py, line 12)` for a class or an object."""
    cls = extension if isinstance(extension, type) else type(extension)
    if method is None:
        return f"{cls.__qualname__} ({file_of(cls)})"
    owner = next((c for c in cls.__mro__ if method in vars(c)), cls)
    member: Any = vars(owner).get(method)
    function = inspect.unwrap(member.fget if isinstance(member, property) else member)  # type: ignore[arg-type]
    line = f", line {function.__code__.co_firstlineno}" if inspect.isfunction(function) else ""
    return f"{owner.__qualname__}.{method} ({file_of(owner)}{line})"


def violation(extension: Any, method: str, expected: str, value: Any) -> ConfigError:
    """Return the error for a method that did not do as `expected`, such as "return the sum, a scalar"."""
    return ConfigError(f"{place(extension, method)} must {expected}, not {describe(value)}.")


def describe(value: Any) -> str:
    """Describe a value in a few words."""
    match value:
        case object(shape=shape, dtype=dtype):  # a tensor or an array; torch is not imported for the question
            return f"a {type(value).__name__} of shape {list(shape)} and type {dtype}"
    text = repr(value)
    return text if value is None or len(text) <= 40 else f"a {type(value).__name__}"


def blame(error: BaseException, message: object = None) -> ConfigError | None:
    """Return the error message for a failure inside the code of a plug-in; None for other failures and those that are
    not caused by the plug-in (memory, a full disk). `message`: in place of the error's."""
    if isinstance(error, StentorError) or type(error).__name__ in MACHINE:
        return None
    if isinstance(error, OSError) and error.errno in FULL:
        return None
    inside = [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename in REGISTERED]
    if not inside:
        return None
    frame, line = inside[-1]
    text = " ".join(str(message or error).split())
    function = frame.f_code.co_qualname.replace(".<locals>", "")
    return ConfigError(f"{function} ({frame.f_code.co_filename}, line {line}) raised {type(error).__name__}: {text}")
