"""YAML text as plain data, by the core schema of YAML 1.2: `1e-4` is a number; `no`, `1_000` and `2026-01-01` are text.

PyYAML reads the text; the numbers, truth values and nulls of YAML 1.1, which it takes otherwise, are left out.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NO_TEXT = re.compile(f"(?:{'|'.join([*_NULL - {''}, *_BOOL])}|{_INT.pattern}|{_FLOAT.pattern})?$")
MOST_LEVELS = 100
_PLAIN = "tag:yaml.org,2002:plain"


def scalar(text: str) -> Any:
    """The value of an unquoted scalar by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".n", "n"))
    return text


def read_yaml(text: str) -> Any:
    """The one document of a text. Raises yaml.YAMLError, also for more than `MOST_LEVELS` levels: PyYAML's reader in C
    recurses without a limit and would end the process."""
    import yaml

    depth = 0
    for event in events(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_LEVELS:
            raise yaml.YAMLError(f"more than {MOST_LEVELS} levels")
    return yaml.load(text, loader())


@functools.cache
def loader() -> Any:
    """A SafeLoader of PyYAML, the one in C where it is installed, that takes plain scalars as `scalar` does."""
    import yaml

    class Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[Any, Any] = {}

    Loader.add_implicit_resolver(_PLAIN, _NO_TEXT, None)
    Loader.add_constructor(_PLAIN, lambda _, node: scalar(node.value))
    return Loader


def events(text: str) -> Iterator[Any]:
    """The events of a text (yaml.Event), with the lines that they come from, read as they are asked for: a text that is
    refused at its start is not read to its end. An error comes from the reader in Python, which says more than the one
    in C, and is raised at its event as yaml.YAMLError."""
    import yaml

    read = 0
    if yaml.__with_libyaml__:
        with contextlib.suppress(yaml.YAMLError):
            for event in yaml.parse(text, yaml.CSafeLoader):
                read += 1
                yield event
            return
    yield from itertools.islice(yaml.parse(text, yaml.SafeLoader), read, None)
