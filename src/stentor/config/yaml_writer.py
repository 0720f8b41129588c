"""YAML writer: plain data in block style, in a form that readers of YAML 1.1 and 1.2 agree on; and changed values in a
text that otherwise stays, comments too."""

import json
import re
from collections.abc import Mapping
from typing import Any

from stentor.data.yaml_text import scalar


def dump(value: Any, indent: int = 0) -> str:
    """Plain data as block style YAML that YAML 1.1 and 1.2 readers agree on."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(f"{pad}{_text(str(k))}:{_under(v, indent)}" for k, v in value.items())
    if isinstance(value, list) and value and not _flat(value):
        return "".join(f"{pad}-{_under(v, indent, item=True)}" for v in value)
    return f"{pad}{inline(value)}\n"


def _under(value: Any, indent: int, item: bool = False) -> str:
    if (isinstance(value, dict) and value) or (isinstance(value, list) and value and not _flat(value)):
        block = dump(value, indent + 1)
        return " " + block.lstrip(" ") if item else "\n" + block
    return f" {inline(value)}\n"


def _flat(value: list[Any]) -> bool:
    return not any(isinstance(v, (dict, list)) for v in value) and sum(len(inline(v)) + 2 for v in value) < 100


def inline(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(str(k))}: {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    # A YAML 1.1 reader takes 1e-08 for text, 1.0e-08 for a number.
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))


def _text(value: str) -> str:
    words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    if re.fullmatch(r"[A-Za-z_/][\w./+-]*( [\w./+-]+)*", value, re.ASCII) and value.lower() not in words:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def edited(text: str, value: Mapping[str, Any]) -> str:
    """The text of a mapping with the values of `value` where they differ. Everything else stays, comments too; new keys
    come last in their section."""
    import yaml

    changes: list[tuple[int, int, int, str]] = []  # start, end, 1 for new keys, new text

    def compare(node: yaml.Node, new: Any) -> None:
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.MappingNode) and isinstance(new, Mapping) and node.value and new:
            for key, below in node.value:
                compare(below, new[key.value])
            names = [key.value for key, _ in node.value]
            place = end - 1 if node.flow_style else len(text[:end].rstrip())
            between = ", " if node.flow_style else "\n" + " " * node.start_mark.column
            for name in new.keys() - set(names):
                changes.append((place, place, 1, f"{between}{_text(name)}: {inline(new[name])}"))
        elif isinstance(node, yaml.SequenceNode) and isinstance(new, list) and len(new) == len(node.value):
            for below, item in zip(node.value, new):
                compare(below, item)
        elif not isinstance(node, yaml.ScalarNode) or (node.value if node.style else scalar(node.value)) != new:
            old = text[start:end]
            space = " " * (not old)  # of an empty value
            changes.append((start, end, 0, space + inline(new) + old[len(old.rstrip()) :]))

    compare(yaml.compose(text, yaml.SafeLoader), value)
    for start, end, _, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text
