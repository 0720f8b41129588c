"""Rows for the model card and the report: changes of scores by training, and scores by groups of records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.metrics.format import MINOR, figure, interval, label, percent


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
    """Whether more errors are made than before, beyond chance."""


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
    rows = []
    for name, before in (results.get("before") or {}).items():
        after = results["eval"].get(name, {})
        paired = (results.get("change") or {}).get(name, {})
        for metric, first in before.items():
            if metric in MINOR or metric not in after:
                continue
            last, change = after[metric], paired.get(metric, {})
            relative = change.get("value")
            if relative is None and first["value"] and last["value"] is not None:
                relative = (last["value"] - first["value"]) / first["value"]
            low, high = change.get("low"), change.get("high")
            rows.append(
                Change(
                    name,
                    label(metric),
                    figure(metric, first["value"]),
                    interval(metric, first),
                    figure(metric, last["value"]),
                    interval(metric, last),
                    "" if relative is None else percent(relative),
                    f"{percent(low)} to {percent(high)}" if low is not None else "",
                    low is not None and low > 0,
                )
            )
    return rows


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
