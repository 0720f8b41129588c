"""The report of `stentor improve`: what entered and left in each round, the scores by round, and examples to hear."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stentor.data.atomic_write import atomic_path
from stentor.metrics.format import figure, interval, label, percent
from stentor.report.corpus import BUDGET, clips_of
from stentor.report.curves import Curve
from stentor.report.figures import Chart, ChartStyle, chart, values
from stentor.report.pages import page
from stentor.report.report import REASONS
from stentor.report.sounds import SoundBudget

EXAMPLES = 4
"""Records to hear: of each kind that entered, and of each reason."""
KINDS = {"human": "people's transcripts", "pseudo": "labelled by recognisers", "synthetic": "synthetic speech"}
LEFT = REASONS | {
    "human": "a person has transcribed it",
    "same_place": "another source has the same part of the recording",
    "held_out": "a text of a set that measures",
    "wer": "the recogniser hears something else",
    "not_spoken": "the voice cannot say it",
    "script": "the voice does not read its letters",
}
"""Meaning of the reasons of material, where the summary of its folder does not say it."""


def write_rounds_report(folder: Path) -> Path:
    """Write `report.html` into the folder of `stentor improve`, from its results.json and its rounds' folders; answers
    its path."""
    path = folder / "report.html"
    with atomic_path(path) as part:
        part.write_text(render(folder, json.loads((folder / "results.json").read_bytes())), encoding="utf-8")
    return path


def render(folder: Path, results: dict[str, Any]) -> str:
    """The page."""
    rounds, budget = results["rounds"], SoundBudget(BUDGET)
    charts = [c for c in (_by_round(results), *_hours(rounds), *_sweep(results)) if not c.is_point]
    return page(
        "rounds.html",
        name=folder.resolve().name,
        results=results,
        rounds=[_row(results, r) for r in rounds],
        charts=charts,
        hover=[values(c) for c in charts],
        heard=[part for r in reversed(rounds) for part in _heard(folder, r, budget)],
        kinds=KINDS,
        sets=_sets(results),
        metric=label(_metric(results)),
        assurance=f"{100 * results['assurance']:g} %",
    )


def _metric(results: dict[str, Any]) -> str:
    """The main metric, which is the first one of each set."""
    return str(next(iter(results["eval"][results["decided_on"]])))


def _sets(results: dict[str, Any]) -> list[str]:
    """The set that decides and the test sets."""
    return list(dict.fromkeys((results["decided_on"], *results["tests"])))


def _row(results: dict[str, Any], done: dict[str, Any]) -> dict[str, Any]:
    """A round as a row of the table."""
    metric = _metric(results)
    scores = [done["eval"].get(name, {}).get(metric) for name in _sets(results)]
    change = done["change"].get(metric)
    return {
        **done,
        "scores": [(figure(metric, s["value"]), interval(metric, s)) if s else ("", "") for s in scores],
        "changed": "" if change is None else percent(change["value"]),
        "changed_interval": "" if change is None else sureness_text(change),
        "ratio": "" if done["mix"] is None else ratio(done["mix"]),
    }


def sureness_text(change: dict[str, Any]) -> str:
    """The interval of a change and the share of the resamples with fewer errors, which decides."""
    better = change["details"].get("better")  # rounds of earlier versions do not have it
    share = "" if better is None else f", better in {100 * better:.1f} %"
    return f"{percent(change['low'])} to {percent(change['high'])}{share}"


def ratio(mix: dict[str, float]) -> str:
    """human:pseudo:synthetic."""
    return ":".join(f"{mix[kind]:g}" for kind in KINDS)


def _by_round(results: dict[str, Any]) -> Chart:
    metric, rounds = _metric(results), results["rounds"]
    curves = []
    for name in _sets(results):
        measured = [(r["number"], r["eval"][name][metric]["value"]) for r in rounds if name in r["eval"]]
        if measured:
            curves.append(Curve(name, [x for x, _ in measured], [y for _, y in measured]))
    style = ChartStyle("round 0: human data alone", percent=True, marks=True, log=False)
    return chart(f"{label(metric)} by round", curves, style)


def _hours(rounds: list[dict[str, Any]]) -> list[Chart]:
    curves = []
    for kind, meaning in KINDS.items():
        entered = [(r["number"], r["entered"][kind]["hours"]) for r in rounds if kind in r["entered"]]
        if entered:
            curves.append(Curve(meaning, [x for x, _ in entered], [y for _, y in entered]))
    style = ChartStyle("that entered", zero=True, marks=True, log=False)
    return [chart("Hours by round", curves, style)] if len(curves) > 1 else []


def _sweep(results: dict[str, Any]) -> list[Chart]:
    """The score over the share of machine-made items, of the ratios that were tried."""
    tried: list[dict[str, Any]] = next((r["sweep"] for r in results["rounds"] if r["sweep"]), [])
    metric = _metric(results)
    machine = [100 - 100 * t["mix"]["human"] / sum(t["mix"].values()) for t in tried]
    points = sorted((x, t["eval"][metric]["value"], ratio(t["mix"])) for x, t in zip(machine, tried))
    if len(points) < 2:
        return []
    xs, ys, names = (list(part) for part in zip(*points))
    note = f"over the share of machine-made items; {results['decided_on']}, shortened trainings; human:pseudo:synthetic"
    style = ChartStyle(note, percent=True, marks=True, best="min", log=False, unit="%")
    return [chart(f"{label(metric)} by ratio", [Curve(metric, xs, ys, names)], style)]


def _heard(folder: Path, done: dict[str, Any], budget: SoundBudget) -> Iterable[dict[str, Any]]:
    """For each kind of material of a round: examples that entered, and of each reason those that were left out."""
    here = folder / f"round-{done['number']}"
    for kind, left in done["left"].items():
        parts = sorted(here.glob("labels-*")) if kind == "pseudo" else [here / "speech"]
        rejects = {part: list(_records(part / "rejects.jsonl")) for part in parts if part.is_dir()}
        meanings = LEFT | {k: v for part in rejects for k, v in _meanings(part / "summary.json").items()}
        reasons = []
        for reason, amounts in sorted(left.items(), key=lambda item: -item[1]["hours"]):
            clips: list[dict[str, Any]] = []
            for part, records in rejects.items():
                of_reason = [r for r in records if r["reason"] == reason]
                clips += clips_of(part, of_reason, EXAMPLES - len(clips), budget) if len(clips) < EXAMPLES else []
            reasons.append({"reason": reason, "meaning": meanings.get(reason, ""), **amounts, "examples": clips})
        entered = clips_of(here, list(_records(here / f"{kind}.jsonl")), EXAMPLES, budget)
        yield {"round": done["number"], "kind": KINDS[kind], "entered": entered, "reasons": reasons}


def _meanings(summary: Path) -> dict[str, str]:
    """Meaning of the reasons of the stages that labelled a source."""
    stages = json.loads(summary.read_bytes()).get("stages", []) if summary.is_file() else []
    return {reason: each["meaning"] for stage in stages for reason, each in stage["dropped"].items() if each["meaning"]}


def _records(path: Path) -> Iterable[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
