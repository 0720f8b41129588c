"""A finding, and how to look without falling over what is broken."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass

OK, NOTE, WARNING, BROKEN = "ok", "note", "warning", "broken"
"""States of a finding: fine; an optional part is missing; some runs will fail; nothing works."""

TIMEOUT = 120.0
"""Seconds that a process of its own may take (a cold disk takes long to import torch)."""


@dataclass
class Finding:
    """One line of the answer."""

    name: str
    state: str
    answer: str  # what there is
    fix: str = ""  # what to do about it; empty when nothing is wrong


def numbers(version: str) -> tuple[int, ...]:
    """(1, 33, 0, 0) for `1.33`, `1.33.0` and `1.33+cpu`."""
    numbers = [int(n) for n in re.findall(r"\d+", re.split(r"[+a-zA-Z]", version, maxsplit=1)[0])][:4]
    return tuple(numbers + [0] * (4 - len(numbers)))


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def python_process(code: str) -> tuple[int, str, str]:
    """Run code in a Python of its own: (exit code, stdout, stderr). A crash of it is an answer, not an accident."""
    # The same places to import from, whatever the current folder holds.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        command, nothing = [sys.executable, "-c", code], subprocess.DEVNULL
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, stdin=nothing)
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {TIMEOUT:.0f} s"
    if done.returncode < 0:
        return done.returncode, done.stdout, f"{done.stderr}\nkilled by signal {-done.returncode}"
    return done.returncode, done.stdout, done.stderr


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
