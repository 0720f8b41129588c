"""Run view, what the page shows of runs, HTML and plain values: computed here, without Gradio, from the runs' folders.

Following a run must cost its training nothing. A look reads what the files gained since the last one, and curves are
drawn again only so often that drawing takes at most `SHARE` of one core's time, however long the run is.
"""

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stentor.data.yaml_text import read_yaml
from stentor.metrics.format import MINOR, deciding_first, duration, figure, interval, label
from stentor.report.curves import Series, charts_of, compared, evaluated
from stentor.report.examples import UNSURE, ReportExample, example_of
from stentor.report.pages import macro, source
from stentor.studio.files import read_json, stamp
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, jobs
from stentor.studio.runs.jobs import Job, RunStatus
from stentor.studio.runs.machine import bars
from stentor.studio.runs.progress import RunProgress, progress_of
from stentor.studio.texts import in_words, render, say

SHARE = 0.005
"""Share of one core that drawing the curves of a run may take."""
EVERY = 5.0
"""Least seconds from one drawing of the curves of a running run to the next: a page has to be sent it as well."""
MOST_COMPARED = 6
"""Runs that are laid over each other: as many as there are colours."""
PATIENCE = 60.0
"""Seconds after which a run that was asked to stop may be killed."""
LINES = 60
"""Lines of the log."""
FEW = 3
"""Charts that are seen at once: the main metric, the training loss and the learning rate."""
MOST_SAMPLES = 6
"""Answers of a set that are shown."""
_MOST_DRAWN = 32


@dataclass(frozen=True)
class RunView:
    """All that the page shows of one run."""

    status: str
    curves: str
    samples: str
    memory: str
    log: str
    table: str
    can: frozenset[str]
    """Actions that make sense now: stop, kill, resume, retry, delete; of a run in rounds labels, round."""


def choices(projects: Projects) -> list[tuple[str, str]]:
    """(label, name) of all runs, the newest first; the label tells the state in words."""
    return [(f"{job.name} · {in_words(jobs.word(job))}", job.name) for job in jobs.jobs(projects)]


def view(projects: Projects, job: Job, others: Sequence[Job] = ()) -> RunView:
    """The page of a run, with `others` laid over its curves."""
    now = jobs.state(job)
    shown = [job, *(other for other in others if other != job)][:MOST_COMPARED]
    return RunView(
        status=status(job, now),
        curves=curves(shown),
        samples=samples(job),
        memory=memory(job, now),
        log=jobs.log(job, LINES),
        table=render("table", map(row, shown)) if len(shown) > 1 else "",
        can=possible(job, now),
    )


def possible(job: Job, now: RunStatus) -> frozenset[str]:
    """Actions of a person on a run now."""
    if not job.by_studio:
        return frozenset({"retry"})
    if not now.alive:
        resume = {"resume"} if now.state in ("stopped", "failed") else set()
        labels = {"labels"} if job.in_rounds else set()  # also of a round into which nothing was sure enough to enter
        another = {"round"} if job.in_rounds and now.state == "finished" else set()
        return frozenset({"retry", "delete", *resume, *labels, *another})
    if now.state != "stopping":
        return frozenset({"stop"})
    asked = detached.stop_requested_at(job.folder)
    return frozenset({"kill"} if asked is not None and time.time() - asked > PATIENCE else ())


def status(job: Job, now: RunStatus) -> str:
    """State, sentence, progress, time left, speed; of a finished run its results and the link to its report."""
    followed = progress_of(job.folder)
    results = _results(job, now)
    with followed.lock:
        facts = _facts(job, now, followed)
        scores = list(_scores(results, followed)) if results.get("eval") else []
    share = min(1.0, now.step / now.total) if now.total else None
    if now.state in ("waiting", "finished"):
        share = None
    report = f"/studio/runs/{quote(job.name)}/report" if (job.folder / "report.html").is_file() else ""
    return render("status", job.name, now, facts, share, scores, report if not now.alive else "")


def curves(shown: Sequence[Job]) -> str:
    """The curves of a run, or of several over each other."""
    courses = [progress_of(job.training) for job in shown]
    key = tuple((c.folder, c.serial) for c in courses)
    with _DRAWING:
        version = tuple(c.version for c in courses)
        last = _DRAWN.get(key)
        running = any(detached.alive(job.folder) for job in shown)
        pause = max(EVERY, last.cost / SHARE) if last and running else 0.0
        if last and (last.version == version or time.monotonic() - last.at < pause):
            _DRAWN.move_to_end(key)
            return last.html
        began = time.thread_time()
        html = _drawn([job.name for job in shown], courses)
        _DRAWN[key] = _Drawn(version, html, time.thread_time() - began, time.monotonic())
        while len(_DRAWN) > _MOST_DRAWN:
            _DRAWN.popitem(last=False)
        return html


def samples(job: Job) -> str:
    """Outputs of the run for some held-out recordings, with differences marked and players."""
    followed = progress_of(job.training)
    with followed.lock:
        if followed.samples_html is None:
            followed.samples_html = render("samples", _sample_sets(job, followed), UNSURE)
        return followed.samples_html


def memory(job: Job, now: RunStatus) -> str:
    """Memory of the run, of the GPUs and of the machine; empty for a run that has ended."""
    if not now.alive:
        return ""
    followed = progress_of(job.training)
    with followed.lock:
        known = {key: v for key in followed.numbers.values if (v := followed.last(key)) is not None}
        busy = followed.last("gpu_utilization")
    return render("memory", bars(known, busy, detached.process(job.folder)))


@dataclass(frozen=True)
class SetScore:
    """Score of a run by the main metric of an evaluation set, before training (where it was measured) and after, as
    text."""

    set: str = ""
    metric: str = ""
    before: str = ""
    before_interval: str = ""
    after: str = ""
    after_interval: str = ""

    @classmethod
    def of(cls, name: str, metric: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> "SetScore":
        texts = [
            text
            for score in (before, after)
            for text in ((figure(metric, score["value"]), interval(metric, score)) if score else ("", ""))
        ]
        return cls(name, label(metric), *texts)


def row(job: Job) -> tuple[str, str, str, str, SetScore]:
    """A run's line in the table of runs: name, state, steps, time and the score of its first evaluation set."""
    now = jobs.state(job)
    results = _results(job, now)
    followed = progress_of(job.folder)
    with followed.lock:
        score = next(_scores(results, followed), SetScore())
        steps = str(results.get("steps", now.step)) if now.total is None or not now.alive else f"{now.step}/{now.total}"
        seconds = results.get("seconds") or followed.seconds_trained()
    return job.name, now.state, steps, duration(seconds) if seconds else "", score


def about(seconds: float) -> str:
    """A length of time as people say it: `about 4 minutes`."""
    minutes = seconds / 60
    if minutes < 0.75:
        return say("about_less_than_a_minute")
    if minutes < 1.5:
        return say("about_a_minute")
    if minutes < 55:
        return say("about_minutes", count=round(minutes) if minutes < 10 else 5 * round(minutes / 5))
    hours = minutes / 60
    if hours < 1.25:
        return say("about_an_hour")
    if hours < 36:
        return say("about_hours", count=f"{round(2 * hours) / 2:g}" if hours < 10 else round(hours))
    return say("about_days", count=f"{round(2 * hours / 24) / 2:g}")


# What it is made of ---------------------------------------------------------------------------------------------------


@dataclass
class _Drawn:
    version: tuple[tuple[int, int], ...]
    html: str
    cost: float
    """Seconds of this thread's CPU time."""
    at: float


_DRAWING = threading.Lock()
_DRAWN: OrderedDict[tuple[tuple[Path, int], ...], _Drawn] = OrderedDict()


def _facts(job: Job, now: RunStatus, followed: RunProgress) -> list[tuple[str, str]]:
    """(what, value) of a run that lives, or lived."""
    facts = []
    if now.total:
        facts.append((say("fact_step"), f"{now.step:,} / {now.total:,}"))
    if now.state == "running" and now.total and now.step < now.total:
        left = followed.seconds_left()
        facts.append((say("fact_left"), about(left) if left is not None else say("fact_left_unknown")))
    if now.state in ("running", "stopping"):
        for key, sentence in (("audio_seconds_per_second", "speed_audio"), ("tokens_per_second", "speed_tokens")):
            if (speed := followed.last(key, 5)) is not None:
                count = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
                facts.append((say("fact_speed"), say(sentence, count=count)))
                break
    if retry_of := job.about.get("retry_of"):
        facts.append((say("fact_retry"), str(retry_of)))
    if not now.alive and (seconds := followed.seconds_trained()):
        facts.append((say("fact_time"), duration(seconds)))
    return facts


def _scores(results: Mapping[str, Any], followed: RunProgress) -> Iterator[SetScore]:
    """The main metric of each evaluation set; from the run's curves while it has no results."""
    for name, scores in (results.get("eval") or {}).items():
        if (metric := next((m for m in deciding_first(scores) if m not in MINOR), None)) is not None:
            before = (results.get("before") or {}).get(name, {}).get(metric)
            yield SetScore.of(name, metric, before, scores[metric])
    for key, (steps, values) in followed.numbers.values.items() if not results.get("eval") else ():
        name, metric = evaluated(key)
        if metric:
            before = {"value": values[0]} if steps[0] == 0 and len(steps) > 1 else None
            yield SetScore.of(name, metric, before, {"value": values[-1]})


def _sample_sets(job: Job, followed: RunProgress) -> Iterator[tuple[str, str, list[ReportExample]]]:
    """Name, step in words and newest answers of each set."""
    normalizer = _normalizer(job.training)
    for (stage, name), steps in followed.samples.items():
        if stage is not None and followed.stage and stage != str(followed.stage[0]):
            continue
        last = max(steps)
        examples = [_example(job, name, row, normalizer) for row in steps[last][:MOST_SAMPLES]]
        yield name, say("samples_at", step=f"{last:,}"), examples


def _example(job: Job, name: str, row: dict[str, Any], normalizer: str) -> ReportExample:
    example = example_of(row, normalizer)
    example.ctc = example.context = None
    audio, base = (row.get("output") or {}).get("audio"), f"/studio/runs/{quote(job.name)}"
    if isinstance(audio, dict) and audio.get("file"):
        example.sound = f"{base}/spoken/{quote(str(audio['file']))}"
    elif example.record.get("audio_path"):
        example.sound = f"{base}/sound?set={quote(name, safe='')}&id={quote(example.id, safe='')}"
    return example


def _normalizer(folder: Path) -> str:
    """Text normaliser of the run."""
    from yaml import YAMLError

    try:
        text = (folder / "resolved.yaml").read_text(encoding="utf-8")
        config = read_yaml(text)
    except (OSError, YAMLError):
        return "none"
    return str((config.get("task") or {}).get("normalizer") or "none") if isinstance(config, dict) else "none"


def _drawn(names: Sequence[str], courses: Sequence[RunProgress]) -> str:
    if len(courses) == 1:
        with courses[0].lock:
            charts = charts_of(courses[0].numbers, loop=False)
    else:
        # Each alone: two pages that compare the same runs in another order must not wait for each other.
        charts = compared({name: _copied(c) for name, c in zip(names, courses, strict=True)})
    rates = [chart for chart in charts if chart.title == "Learning rate"]
    others = [chart for chart in charts if chart.title != "Learning rate"]
    charts = [*others[: FEW - len(rates)], *rates, *others[FEW - len(rates) :]]
    return render("curves", charts, "-".join(str(c.version[1]) for c in courses), FEW)


def _copied(followed: RunProgress) -> Any:
    copy = Series()
    with followed.lock:
        copy.values = {key: (list(xs), list(ys)) for key, (xs, ys) in followed.numbers.values.items()}
    return copy


def _results(job: Job, now: RunStatus) -> dict[str, Any]:
    """The results of a finished run, read again only when they have changed."""
    path = job.folder / "results.json"
    return _read(path, changed) if now.state == "finished" and (changed := stamp(path)) else {}


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: tuple[int, int]) -> dict[str, Any]:
    return read_json(path)


def style() -> str:
    """The style of what the report has as well, for everything inside `.stentor-run`."""
    return f".stentor-run {{\n{source('parts.css')}{macro('pairs.html', 'style')}}}\n"
