"""YAML writer: plain data in block style, in a form that readers of YAML 1.1 and 1.2 agree on."""

import json
import re
from typing import Any


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
