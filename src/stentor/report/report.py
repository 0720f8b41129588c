"""The run report: one HTML file that holds everything, made from the files of a run folder alone."""

import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.metrics.format import MINOR, count, der_parts, duration, figure, interval, is_rate, label, loss_parts
from stentor.report.changes import changes, groups
from stentor.report.curves import all_charts, evaluated, grouped
from stentor.report.examples import SETS, UNSURE, example_sets
from stentor.report.figures import values
from stentor.report.pages import page
from stentor.report.run_folder import RunFolder, calibration_sets, read_run
from stentor.report.sounds import SoundBudget
from stentor.report.streams import stream_figures
from stentor.report.timeline import MOST, Timelines, timelines
from stentor.report.voices import voiced_sets
from stentor.report.word_times import WordTimes, word_times

REASONS = {
    "too_long": "longer than data.max_seconds, or than the model reads",
    "text_too_long": "more text than the model can write, or than CTC has frames for",
    "too_long_for_batch": "does not fit into data.batch_tokens",
    "too_many_speakers": "more speakers than the model can name",
    "not_in_alphabet": "letters that the model cannot write",
    "unknown_language": "a language that the model does not know",
    "too_short": "shorter than data.min_seconds",
    "too_many_tokens": "longer than task.max_tokens",
    "too_few_tokens": "shorter than task.min_tokens",
    "no_segments": "nothing says who talks when",
    "empty_text": "no words in the transcript",
    "no_text": "no transcript",
    "empty": "no audio in the file",
    "silent": "nothing but silence",
    "missing": "the file does not exist",
    "ambiguous": "several different files of this name",
    "unreadable": "the file cannot be read",
    "not_finite": "NaN or infinity in the audio",
    "no_words": "no word times to cut at",
    "no_piece": "no piece of the wanted length between pauses",
    "not_single": "not one recording of one speaker",
    "no_channel": "the file has fewer channels",
    "truncated": "much shorter than its header says",
}
"""Meaning of the drop reasons; others are shown by their name alone."""


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder and answer its path. Works for finished, running, stopped and failed runs:
    sections without data are left out. Raises ConfigError when the folder is not a run folder."""
    run_folder = Path(run_folder)
    path = run_folder / "report.html"
    path.write_text(render(read_run(run_folder)), encoding="utf-8")
    return path


def render(run: RunFolder) -> str:
    """The page."""
    curves, streams = grouped(all_charts(run.metrics), list(run.results.get("eval") or {})), stream_figures(run.streams)
    charts = [*(s.chart for s in streams if s.chart), *(c for group in curves for c in group.charts)]
    budget = SoundBudget()
    timed, spoken, voiced = timed_sets(run, budget), spoken_sets(run, budget), voiced_sets(run, budget)
    sets = example_sets(run, budget, {t.name for t in timed}, {s.name for s in spoken} | {v.name for v in voiced})
    return page(
        "report.html",
        run=run,
        boards=boards(run),
        changes=changes(run.results),
        groups=groups(run.results),
        facts=facts(run),
        status=status(run),
        curves=curves,
        hover=[values(c) for c in charts],
        streams=streams,
        data=data_view(run),
        sets=sets,
        timed=timed,
        spoken=spoken,
        voiced=voiced,
        parameters=parameter_rows(run.results.get("parameters") or {}),
        timeline=timeline(run),
        environment=list(flat(without(run.results.get("environment") or {}, "command"))),
        command=command(run),
        unsure=UNSURE,
    )


# Headline -------------------------------------------------------------------------------------------------------------


@dataclass
class Board:
    """One evaluation set in the headline."""

    name: str
    metric: str
    value: str
    interval: str
    made_of: str
    others: list[tuple[str, str]]
    normalizer: str | None
    bar: tuple[float, float, float] | None
    """Low, value and high in percent of the axis that all sets share."""
    calibrates: bool
    """Whether confidences were fitted on the set."""


def boards(run: RunFolder) -> list[Board]:
    """Final scores per set; of a run without results yet, those of its last evaluation."""
    scores = run.results.get("eval") or last_scores(run)
    mains = {name: next(iter(metrics.items())) for name, metrics in scores.items() if metrics}
    # Shares and times have an axis that begins at 0, which all sets share.
    drawn = all(is_rate(metric) or metric.endswith("_ms") for metric, _ in mains.values())
    top = max((max(s.get("high") or 0, s["value"] or 0) for _, s in mains.values()), default=0) * 1.08
    rows, fitted = [], calibration_sets(run.resolved)
    for name, (metric, score) in mains.items():
        value = score["value"]
        bar = None
        if drawn and top > 0 and value is not None:
            low, high = score.get("low"), score.get("high")
            ends = (value, value) if low is None or high is None else (low, high)
            bar = (100 * ends[0] / top, 100 * value / top, 100 * ends[1] / top)
        details = score.get("details") or {}
        others = {m: s for m, s in scores[name].items() if m not in (metric, *MINOR)}
        rows.append(
            Board(
                name=name,
                metric=label(metric),
                value=figure(metric, value),
                interval=interval(metric, score),
                bar=bar,
                made_of=f"{score['errors']:,} errors in {score['total']:,}"
                if score.get("total")
                else (der_parts(score) or loss_parts(score)),
                others=[(label(m), figure(m, s["value"])) for m, s in others.items()],
                normalizer=details.get("normalizer"),
                calibrates=name in fitted,
            )
        )
    return rows


def last_scores(run: RunFolder) -> dict[str, dict[str, dict[str, Any]]]:
    """Newest `eval/SET/METRIC` of each kind in metrics.jsonl, in the form of results.json."""
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for row in run.metrics:
        for key, value in row.items():
            name, metric = evaluated(key)
            if metric:
                scores.setdefault(name, {})[metric] = {"value": value}
    return scores


def status(run: RunFolder) -> tuple[str, str]:
    """(kind, words) of how the run stands; kind is finished, stopped, failed or running."""
    event = run.last_event("finished", "stopped", "failed")
    started = run.last_event("started")
    if event is None or (started is not None and run.events.index(started) > run.events.index(event)):
        return ("finished", "finished") if run.results else ("running", "not finished")
    kind = event["event"]
    why = event.get("reason") or event.get("error") or event.get("message")
    return kind, f"{kind}: {why}" if why and kind != "finished" else kind


def facts(run: RunFolder) -> list[tuple[str, str]]:
    """Short facts below the title."""
    results, rows = run.results, []
    if run.task:
        rows.append(("task", run.task))
    if model := (run.resolved.get("model") or {}).get("type"):
        rows.append(("model", model))
    parameters = parameter_rows(results.get("parameters") or {})
    if parameters:
        trained, total = parameters[-1].trained, parameters[-1].total
        rows.append(("parameters", count(total) + (f", {count(trained)} trained" if trained < total else "")))
    stages = [*run.earlier, results]
    step = sum(r.get("steps", 0) for r in stages) or max((r.get("step") or 0 for r in run.metrics), default=0)
    if step:
        rows.append(("steps", f"{step:,}"))
    if seconds := sum(r.get("seconds", 0) for r in stages):
        rows.append(("time", duration(seconds)))
    if device := _device(results.get("environment") or {}):
        rows.append(("on", device))
    return rows


def _device(environment: Mapping[str, Any]) -> str | None:
    return next((str(environment[k]) for k in ("gpu", "device", "cpu") if environment.get(k)), None)


def command(run: RunFolder) -> str | None:
    """The exact command line of the (last) start."""
    started = run.last_event("started") or {}
    value = run.results.get("command") or started.get("command")
    return shlex.join(value) if isinstance(value, list) else value


# Data, parameters, events ---------------------------------------------------------------------------------------------


@dataclass
class Dropped:
    """Records that were left out for one reason."""

    reason: str
    meaning: str
    records: int
    share: float
    """Percent of all records."""
    named: list[str]
    """The first ones, each with what is wrong with it."""


@dataclass
class DataView:
    """Records that were used and dropped in training, then the same for evaluation sets that lost records."""

    used: int
    total: int
    facts: list[str]
    dropped: list[Dropped]
    evals: list[tuple[str, list[Dropped]]]
    kinds: list[str]
    """Columns of `overlap`."""
    overlap: list[tuple[str, list[str]]]
    """A set, and what it shares with the training data, of each kind."""


def data_view(run: RunFolder) -> DataView | None:
    data = run.results.get("data")
    if not data:
        return None
    used = int(data["used"])
    dropped = _dropped(data, used)
    evals = [(name, _dropped(part, _items(run, name))) for name, part in (data.get("eval") or {}).items()]
    facts = [duration(3600 * data["hours"])] if "hours" in data else []
    facts += [f"longest {data['longest_seconds']:.1f} s"] if "longest_seconds" in data else []
    rest = flat(
        without(data, "used", "dropped", "named", "eval", "hours", "longest_seconds", "overlap", "changed_letters")
    )
    facts += [f"{key.replace('_', ' ')} {value}" for key, value in rest if value != "0"]
    overlap = data.get("overlap") or {}
    kinds = list(dict.fromkeys(kind for shared in overlap.values() for kind in shared))
    rows = [
        (name, [_shared(*shared[kind]) if kind in shared else "" for kind in kinds]) for name, shared in overlap.items()
    ]
    total = used + sum(d.records for d in dropped)
    return DataView(used, total, facts, dropped, [(name, lost) for name, lost in evals if lost], kinds, rows)


def _shared(shared: int | None, of: int) -> str:
    """Count of a set's texts, speakers, ... that are in the training data as well."""
    return "" if not of else "unknown" if shared is None else f"{shared:,} of {of:,}"


def _items(run: RunFolder, name: str) -> int:
    """Items of an evaluation set that were scored."""
    score: Mapping[str, Any] = next(iter(run.results["eval"].get(name, {}).values()), {})
    return (score.get("details") or {}).get("items") or len(run.predictions.get(name, []))


def _dropped(data: Mapping[str, Any], used: int) -> list[Dropped]:
    counts = {reason: n for reason, n in data["dropped"].items() if n}
    total = used + sum(counts.values())
    named = data.get("named") or {}
    return [
        Dropped(reason, REASONS.get(reason, ""), n, 100 * n / total, named.get(reason, [])[:20])
        for reason, n in sorted(counts.items(), key=lambda item: -item[1])
    ]


@dataclass
class ParameterRow:
    part: str
    total: int
    trained: int


def parameter_rows(parameters: Mapping[str, Any]) -> list[ParameterRow]:
    """Parameters per part, the sum last. Takes `{"parts": {part: {"total", "trained"}}}`."""
    parts = parameters.get("parts", parameters)
    rows = [
        ParameterRow(name, int(p["total"]), int(p.get("trained", p["total"])))
        for name, p in parts.items()
        if isinstance(p, Mapping) and p.get("total")
    ]
    if rows:
        rows.append(ParameterRow("all", sum(r.total for r in rows), sum(r.trained for r in rows)))
    elif isinstance(parameters.get("total"), int):
        rows = [ParameterRow("all", parameters["total"], int(parameters.get("trained", parameters["total"])))]
    return rows


def timeline(run: RunFolder) -> list[tuple[str, str, str]]:
    """(when, event, what) of what happened; evaluations and single bad files have their own places."""
    events = [e for e in run.events if e.get("event") not in ("evaluated", "bad_audio")]
    if len(events) > 60:  # keep what is rare and the ends
        rare = [e for e in events if e.get("event") != "saved"]
        events = rare if len(rare) <= 60 else rare[:30] + rare[-30:]
    start = events[0].get("time", 0.0) if events else 0.0
    return [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e["time"]))
            if i == 0
            else f"+ {duration(e['time'] - start)}",
            str(e.get("event")),
            ", ".join(f"{k} {v}" for k, v in flat(without(e, "time", "event", "command", "eval"))),
        )
        for i, e in enumerate(events)
        if isinstance(e.get("time"), (int, float))
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted key, text)."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        elif isinstance(value, float):
            yield name, f"{value:.6g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, f"{value:,}"
        else:
            yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in keys}


# Word times -----------------------------------------------------------------------------------------------------------


def timed_sets(run: RunFolder, budget: SoundBudget) -> list[WordTimes]:
    """The word times of each evaluation set that has any."""
    timed: list[WordTimes] = []
    for name, scores in (run.results.get("eval") or {}).items():
        if "word_time_mean_ms" in scores and len(timed) < SETS:
            # Half of it is for the texts: who reads about times wants to hear what was said as well.
            share = budget.share(budget.left // 2 // min(SETS, len(run.results["eval"])))
            timed.append(word_times(name, scores, run.predictions.get(name, []), share))
    return timed


# Timelines ------------------------------------------------------------------------------------------------------------


def spoken_sets(run: RunFolder, budget: SoundBudget) -> list[Timelines]:
    """Speaker timelines of each evaluation set of the task `diarize`."""
    names = [n for n, scores in (run.results.get("eval") or {}).items() if "der" in scores and run.predictions.get(n)]
    shown = min(SETS, len(names))
    return [
        timelines(
            name,
            run.results["eval"][name],
            run.predictions[name],
            budget.share(budget.left // shown),
            max(4, MOST // shown),
        )
        for name in names[:SETS]
    ]
