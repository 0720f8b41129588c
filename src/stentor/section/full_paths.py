"""Full paths: relative paths of a config from the root of the file system, so that they hold in any directory."""

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stentor.section.section import Section

AnySection = TypeVar("AnySection", bound=Section)


def with_full_paths(section: AnySection) -> AnySection:
    """Return a copy with full paths: paths, `output`, texts of `Section.path_keys` that name something that exists, and
    such texts in the plain data of `stages`. Addresses and ids are kept."""
    copy: Any = mapped(section, _full)
    if "output" in type(section).model_fields:  # it may not exist yet
        copy.__dict__["output"] = full_path_of(copy.output)
    return copy  # type: ignore[no-any-return]


def full_path_of(text: str) -> str:
    """Return the full path of a text; an address is kept."""
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def mapped(value: Any, change: Callable[[Any, bool], Any], is_path: bool = False) -> Any:
    """Return a copy of a section, or of a part of it, with `change(value, is_path)` in the place of each plain value.
    `is_path`: whether a text is a path if it exists."""
    if isinstance(value, Section):
        copy, keys = value.model_copy(), type(value).path_keys
        copy.__dict__.update({name: mapped(inner, change, name in keys) for name, inner in value})
        return copy
    if isinstance(value, dict):
        named = {key: key in ("path", "from", "init") or (isinstance(v, str) and "/" in v) for key, v in value.items()}
        return {key: mapped(v, change, named[key]) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, change, is_path) for v in value)
    return change(value, is_path)


def _full(value: Any, is_path: bool) -> Any:
    if isinstance(value, Path):
        return value if value.is_absolute() else Path(full_path_of(str(value)))
    if is_path and isinstance(value, str) and os.path.exists(full_path_of(value)):
        _tell_if_ambiguous(value)
        return full_path_of(value)
    return value


@functools.cache
def _tell_if_ambiguous(text: str) -> None:
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text, re.ASCII):
        print(f"{text} is read as the folder of this name, not from the Hub.", file=sys.stderr)
