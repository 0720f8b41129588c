"""Plan of a run before it is started: `stentor train RUN.yaml --plan-only`, in words for a person."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stentor.data.system import NEW_GROUP, kill_group
from stentor.engine.memory_estimate import gib
from stentor.errors import StentorError, without_secrets
from stentor.studio.files import disk_errors, write_bytes
from stentor.studio.projects import Projects
from stentor.studio.runs.path_policy import checked
from stentor.studio.texts import say

LONGEST = 900.0
"""Seconds that a plan may take; a model that is fetched for the first time is most of them."""
_KEPT_LINES = 12
"""Lines at the end of a plan's output that are shown when it fails."""


def plan(projects: Projects, text: str, longest: float = LONGEST) -> list[dict[str, Any]]:
    """The plan of each stage of a run file (see `stentor.commands.plan.plan`), made by a process of its own, which is
    ended after `longest` seconds.

    Raises `Mistakes` for a run file that is wrong, StentorError with what the process said when it fails, and when it
    takes too long.
    """
    checked(text, projects)
    with disk_errors(projects.tmp):
        temporary = tempfile.TemporaryDirectory(prefix="plan-", dir=projects.tmp, ignore_cleanup_errors=True)
    with temporary as name:
        folder = Path(name)
        write_bytes(folder / "run.yaml", text.encode())
        out = folder / "plan.json"
        log_path = folder / "said.txt"
        with disk_errors(log_path), log_path.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "stentor", "train", str(folder / "run.yaml"), "--plan-only", "--json", str(out)],
                cwd=projects.folder,  # where runs are started: relative paths mean the same
                env={**os.environ, "PYTHONSAFEPATH": "1", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                **NEW_GROUP,
            )
        try:
            code = process.wait(longest)
        except subprocess.TimeoutExpired:
            raise StentorError(say("plan_too_long", minutes=round(longest / 60) or 1)) from None
        finally:
            if process.poll() is None:
                kill_group(process.pid)
                process.wait()
        if code != 0:
            lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_KEPT_LINES:]
            message = without_secrets("\n".join(lines)).replace(f"{folder}{os.sep}", "")
            raise StentorError(message or say("plan_failed"))
        stages: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        return stages


def table(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Result of a plan, as (what, how much) for a person."""
    data, memory, seconds = plan["data"], plan["memory"], plan["time"]["seconds"]
    rows = []
    if "records" in data:
        rows.append((say("plan_data"), say("plan_data_is", count=data["records"], time=duration(data["hours"] * 3600))))
    for name, part in data["held_out"].items():
        held = say("plan_data_is", count=round(part["records"]), time=duration(part["hours"] * 3600))
        rows.append((say("plan_held_out", name=name), held))
    total, trained = (sum(row[key] for row in plan["parameters"]) for key in ("total", "trained"))
    rows.append((say("plan_model"), say("plan_model_is", total=short(total), trained=short(trained))))
    if data.get("steps"):
        rows.append((say("plan_steps"), say("plan_steps_is", steps=data["steps"], count=f"{data['epochs'] or 0:.3g}")))
    estimate = next((row for row in memory["methods"] if row["chosen"]), memory["methods"][0])
    free = gib(memory["free"]) if memory.get("free") is not None else "?"
    device = say("plan_gpu") if memory["device"] == "cuda" else say("plan_cpu")
    rows.append((say("plan_memory"), say("plan_memory_is", needed=gib(estimate["total"]), free=free, device=device)))
    rows.append((say("plan_time"), say("plan_time_unknown") if seconds is None else duration(seconds)))
    return rows


def warnings(plan: dict[str, Any]) -> list[str]:
    """Warnings before the start: too little memory, what is left out, settings far from the usual."""
    data, memory = plan["data"], plan["memory"]
    estimate = next((row for row in memory["methods"] if row["chosen"]), memory["methods"][0])
    notes = []
    if memory["not_tried"] and (memory.get("free") or 0) < estimate["total"]:
        notes.append(say("plan_too_large", needed=gib(estimate["total"]), free=gib(memory["free"])))
    elif memory["not_tried"]:
        notes.append(say("plan_not_tried"))
    for reason, facts in data["dropped"].items():
        more = " ..." if facts["count"] > len(facts["named"]) else ""
        notes.append(say("plan_dropped", count=facts["count"], reason=reason, named=", ".join(facts["named"]) + more))
    suggestion = plan["suggestion"]
    notes += suggestion["notes"] if suggestion else []
    return [*notes, *(line for line in plan["said"] if not line.endswith("..."))]  # these only report progress


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return say("time_seconds", count=f"{seconds:.0f}")
    if seconds < 90 * 60:
        return say("time_minutes", count=f"{seconds / 60:.0f}")
    return say("time_hours", count=f"{seconds / 3600:.1f}")


def short(count: float) -> str:
    """A number of parameters: 1.6 M, 4.7 B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"
