"""Checks of this machine: what is installed, missing or in conflict, each with its remedy.

Nothing in this folder imports anything beyond the standard library, so that it works where the packages that it looks
for are missing or broken: `python -m stentor.commands.doctor` does what `stentor doctor` does. Whatever could hang or
crash (importing torch, loading the voice) runs in a process of its own, and a check that fails says so and stops no
other.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from stentor.commands.doctor import audio, hardware, software
from stentor.commands.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    software.python,
    software.packages,
    hardware.torch,
    software.transformers,
    audio.voice,
    audio.soundfile,
    audio.av,
    software.optional,
    hardware.machine,
    hardware.disk,
    software.hub,
)


def examine() -> list[Finding]:
    """All findings, in a fixed order. Never raises."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:  # the slow ones wait for processes: threads are enough
        return [finding for findings in pool.map(_guarded, CHECKS) for finding in findings]


def _guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except Exception as error:  # a doctor that dies of an illness is of no use
        findings.append(Finding(check.__name__, WARNING, f"could not be checked ({type(error).__name__}: {error})"))
    return findings


def as_json(findings: list[Finding]) -> str:
    """`{"ok": bool, "findings": [{"name", "state", "found", "mend"}]}`."""
    rows = [{"name": f.name, "state": f.state, "found": f.answer, "mend": f.fix} for f in findings]
    return json.dumps({"ok": healthy(findings), "findings": rows}, indent=1)


def as_text(findings: list[Finding], colour: bool = False) -> str:
    """One line per finding with its fix below, and a summary line."""
    marks = {OK: ("ok", "32"), NOTE: ("--", "2"), WARNING: ("!!", "33"), BROKEN: ("XX", "31")}
    width = max(len(f.name) for f in findings)
    lines = []
    for finding in findings:
        mark, paint = marks[finding.state]
        shown = f"\x1b[{paint}m{mark}\x1b[0m" if colour else mark
        lines.append(f"{shown}  {finding.name:<{width}}  {finding.answer}")
        if finding.fix:
            lines.append(f"{' ' * (width + 6)}{'to have it' if finding.state == NOTE else 'fix'}: {finding.fix}")
    broken = sum(f.state == BROKEN for f in findings)
    warnings = sum(f.state == WARNING for f in findings)
    if broken:
        lines.append(f"\n{broken} broken (XX), {_some(warnings, 'warning')} (!!).")
    elif warnings:
        lines.append(f"\nNothing is broken; {_some(warnings, 'warning')} (!!).")
    else:
        lines.append("\nAll is well.")
    return "\n".join(lines)


def _some(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing is broken."""
    return all(f.state != BROKEN for f in findings)


def main(json_output: bool = False) -> int:
    """Print the findings; the exit code is 1 when something is broken, else 0."""
    findings = examine()
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(as_json(findings) if json_output else as_text(findings, colour))
    return 0 if healthy(findings) else 1
