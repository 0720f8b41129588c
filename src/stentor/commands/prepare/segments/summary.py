"""Summary of `stentor prepare segments`: what each stage kept and dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from stentor.inference.segments.base import Stage
from stentor.pipeline.runner import format_table


def summarize_corpus(
    stages: Sequence[tuple[str, Stage]],
    counts: Sequence[Sequence[float]],
    records: Sequence[dict[str, Any]],
    rejects: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """`recordings`, `segments`, `hours`, `speakers`, `languages` (hours), and of each stage what it was given and kept,
    and its reasons with count, hours and meaning. `counts`: see `Corpus`."""
    languages: dict[str, float] = {}
    for record in records:
        name = record.get("language") or record.get("text_language") or "unknown"
        languages[name] = languages.get(name, 0.0) + record["duration"] / 3600
    unread = [r for r in rejects if r["stage"] == "read"]
    return {
        "recordings": len({r["recording"] for r in chain(records, rejects)}),
        "unusable_recordings": len(unread),
        "recorded_hours": round(counts[0][1] / 3600, 6) if counts else 0.0,
        "segments": len(records),
        "hours": round(sum(r["duration"] for r in records) / 3600, 6),
        "speakers": len({r["speaker"] for r in records if "speaker" in r}),
        "languages": {name: round(hours, 6) for name, hours in sorted(languages.items(), key=lambda x: -x[1])},
        "stages": [
            {
                "name": name,
                "given": int(count[0]),
                "given_hours": round(count[1] / 3600, 6),
                "kept": int(count[2]),
                "kept_hours": round(count[3] / 3600, 6),
                "dropped": _reasons(stage, (r for r in rejects if r["stage"] == name)),
            }
            for (name, stage), count in zip(stages, counts, strict=False)
        ],
        "unusable": [{"recording": r["recording"], "reason": r["reason"], "message": r["message"]} for r in unread],
    }


def _reasons(stage: Stage, rejects: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each reason, that of most hours first: count, hours, meaning."""
    seconds: dict[str, list[float]] = {}
    for r in rejects:
        seconds.setdefault(r["reason"], []).append(r["duration"])
    rows = sorted(seconds.items(), key=lambda row: -sum(row[1]))
    return {
        reason: {"count": len(each), "hours": round(sum(each) / 3600, 6), "meaning": stage.reasons.get(reason, "")}
        for reason, each in rows
    }


def print_summary(summary: dict[str, Any]) -> None:
    """A table for the console."""
    rows = [("recordings", summary["recordings"], f"{summary['recorded_hours']:.2f} hours")]
    for stage in summary["stages"]:
        dropped = ", ".join(f"{d['count']:,} {reason}" for reason, d in stage["dropped"].items())
        note = f"{stage['kept_hours']:.2f} hours" + (f"; dropped: {dropped}" if dropped else "")
        rows.append((f"after {stage['name']}", stage["kept"], note))
    print(format_table(rows))
    if summary["unusable"]:
        print(f"unusable recordings: {len(summary['unusable']):,}, listed in rejects.jsonl")
