"""Rows for the model card and the report: changes of scores by training, and scores by groups of records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.metrics.format import MINOR, figure, interval, label, percent
from stentor.report.curves import better_end


@dataclass
class Change:
    """One metric of one set before and after training, as text."""

    set: str
    metric: str
    before: str
    before_interval: str
    after: str
    after_interval: str
    change: str
    """In percent of the value before; empty where that is 0 or unknown."""
    change_interval: str
    """Interval of the relative change, from a paired bootstrap; empty where it is unknown."""
    worse: bool
    """Whether it is worse than before, beyond chance."""


@dataclass
class ChangeGroup:
    """The records of a set that share a value of a field, by the set's main metric, as text."""

    value: str
    items: int
    score: str
    interval: str
    made_of: str
    before: str
    before_interval: str


@dataclass
class Groups:
    """The scores of a set by the values of a field."""

    set: str
    field: str
    metric: str
    rows: list[ChangeGroup]
    """Those with most items first."""
    more: int
    """Values that are left out, with fewer items."""
    compared: bool
    """Whether there are scores from before training."""


def changes(results: Mapping[str, Any]) -> list[Change]:
    """Rows of the sets that were scored before training, in their order, without minor metrics."""
    return [
        change_of(results, name, metric)
        for name, before in (results.get("before") or {}).items()
        for metric in before
        if metric not in MINOR and metric in results["eval"].get(name, {})
    ]


def change_of(results: Mapping[str, Any], name: str, metric: str) -> Change:
    """The row of a metric of a set; with nothing before where only the trained model was scored."""
    first = (results.get("before") or {}).get(name, {}).get(metric, {})
    last, change = results["eval"][name][metric], (results.get("change") or {}).get(name, {}).get(metric, {})
    relative, low, high = (change.get(key) for key in ("value", "low", "high"))
    if relative is None and first.get("value") and last["value"] is not None:
        relative = (last["value"] - first["value"]) / first["value"]
    return Change(
        name,
        label(metric),
        figure(metric, first["value"]) if first else "",
        interval(metric, first),
        figure(metric, last["value"]),
        interval(metric, last),
        "" if relative is None else percent(relative),
        f"{percent(low)} to {percent(high)}" if low is not None else "",
        _worse(metric, first, last, change),
    )


def _worse(metric: str, first: Mapping[str, Any], last: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    """By the paired interval; without one, by whether the intervals of the scores (their values) lie apart."""
    higher = better_end(metric) == "max"
    if change:
        end = change.get("high" if higher else "low")
        return end is not None and bool(end < 0 if higher else end > 0)
    better, worse = (first, last) if not higher else (last, first)
    top, bottom = better.get("high"), worse.get("low")
    top, bottom = (better.get("value") if top is None else top), (worse.get("value") if bottom is None else bottom)
    return top is not None and bottom is not None and bool(bottom > top)


def groups(results: Mapping[str, Any], most: int = 20) -> list[Groups]:
    """The breakdowns of `results["by"]`, each with at most so many values."""
    tables = []
    for name, fields in (results.get("by") or {}).items():
        metric = next(iter(results["eval"][name]))
        for field, values in fields.items():
            earlier = (results.get("before_by") or {}).get(name, {}).get(field, {})
            rows = []
            for value, scores in list(values.items())[:most]:
                score, before = scores[metric], earlier.get(value, {}).get(metric, {})
                rows.append(
                    ChangeGroup(
                        value,
                        score["items"],
                        figure(metric, score["value"]),
                        interval(metric, score),
                        f"{score['errors']:,} / {score['total']:,}" if "errors" in score and "total" in score else "",
                        figure(metric, before.get("value")) if before else "",
                        interval(metric, before),
                    )
                )
            tables.append(Groups(name, field, label(metric), rows, max(0, len(values) - most), bool(earlier)))
    return tables
