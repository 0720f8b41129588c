"""Examples and error statistics of each evaluation set, for the report."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from stentor.metrics.format import figure
from stentor.report.examples import ReportExample, add_sounds, choose
from stentor.report.run_folder import RunFolder

SETS = 6
"""Evaluation sets that get examples; more would make the page too heavy."""


@dataclass
class ExampleSet:
    """Examples and error statistics of one evaluation set."""

    name: str
    items: int
    clean: int | None
    """Items without any error; None when unknown."""
    worst: list[ReportExample]
    typical: list[ReportExample]
    counts: list[tuple[str, int]] = field(default_factory=list)
    frequent: list[tuple[str, list[tuple[list[str], int, float]]]] = field(default_factory=list)
    """Kind, and per error its words, its count and its bar's length in percent."""
    groups: list[tuple[str, list[tuple[str, str, str, float]], int]] = field(default_factory=list)
    """What is grouped by; label, rate, made of, bar in percent; and how many more groups there are."""


def example_sets(
    run: RunFolder, budget: int, timed: Collection[str] = (), drawn: Collection[str] = ()
) -> list[ExampleSet]:
    """What to show of each evaluation set: those with predictions first in the order of the results. `budget`: bytes of
    sound. Of sets whose word times are shown (`timed`) only items with errors are, and nothing of those with timelines
    (`drawn`)."""
    scores = run.results.get("eval") or {}
    names = [n for n in (*scores, *(n for n in run.predictions if n not in scores)) if n not in drawn]
    sets: list[ExampleSet] = []
    share = budget // max(1, min(SETS, len(run.predictions)))
    for name in names:
        metric = main_text_metric(scores.get(name, {}))
        details = scores[name][metric].get("details") or {} if metric else {}
        rows = run.predictions.get(name, []) if len(sets) < SETS else []
        breakdown = (run.results.get("by") or {}).get(name, {})  # in a table with intervals
        typical_items = 0 if name in timed else 6
        normalizer = details.get("normalizer", "whisper_basic")
        worst, typical = choose(rows, normalizer, typical=typical_items) if rows else ([], [])
        # Each set gets its share, so that the first one's long recordings do not silence the others.
        in_turn = [e for pair in zip_longest(worst, typical) for e in pair if e is not None]
        left = add_sounds(in_turn, min(share, budget))
        budget -= min(share, budget) - left
        example_set = ExampleSet(
            name=name,
            items=details.get("items") or len(rows),
            worst=worst,
            typical=typical,
            clean=details["items"] - details["items_with_errors"] if "items_with_errors" in details else None,
            counts=[(k, details[k]) for k in ("substitutions", "deletions", "insertions") if k in details],
            frequent=_frequent(details.get("frequent") or {}),
            groups=[
                _group(k.removeprefix("by_"), v, metric)
                for k, v in details.items()
                if k.startswith("by_") and k.removeprefix("by_") not in breakdown
            ],
        )
        if rows or example_set.frequent or example_set.groups:
            sets.append(example_set)
    return sets


def main_text_metric(scores: Mapping[str, Any]) -> str:
    """The first metric that compares texts, or the first of all; empty without scores."""
    return next((m for m in scores if m in ("wer", "cer")), next(iter(scores), ""))


def _frequent(counts: Mapping[str, Sequence[Sequence[Any]]], top: int = 10) -> list[tuple[str, list[Any]]]:
    """What happened more than once: single slips are in the examples."""
    most = max((entry[-1] for entries in counts.values() for entry in entries), default=1)
    rows = []
    for kind, entries in counts.items():
        repeated = [(list(map(str, words)), n, 100 * n / most) for *words, n in entries[:top] if n > 1]
        if repeated:
            rows.append((kind, repeated))
    return rows


def _group(
    name: str, labels: Mapping[str, Mapping[str, Any]], metric: str, top: int = 12
) -> tuple[str, list[Any], int]:
    """Groups from the worst to the best; of many, only the worst."""
    rows = sorted(labels.items(), key=lambda item: -item[1]["value"])
    most = max((row["value"] for _, row in rows), default=0) or 1
    shown = [
        (label, figure(metric, row["value"]), f"{row['errors']:,} / {row['total']:,}", 100 * row["value"] / most)
        for label, row in rows[:top]
    ]
    return name, shown, max(0, len(rows) - top)
