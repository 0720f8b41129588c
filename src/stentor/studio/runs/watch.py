"""Run view, what the page shows of runs, HTML and plain values: computed here, without Gradio, from the runs' folders.

Following a run must cost its training nothing. A look reads what the files gained since the last one, and curves are
drawn again only so often that drawing takes at most `SHARE` of one core's time, however long the run is.
"""

import functools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stentor.metrics.format import duration
from stentor.report.changes import Change, change_of
from stentor.report.curves import Series, charts_of, compared, evaluated
from stentor.report.examples import UNSURE, ReportExample, example_of
from stentor.report.pages import macro, source
from stentor.studio.projects import Projects
from stentor.studio.runs import afterwards, detached, jobs, plans
from stentor.studio.runs.jobs import Job, RunStatus
from stentor.studio.runs.judgement import main_changes, resolved, results_of
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
        another = {"round"} if job.in_rounds and now.done else set()
        return frozenset({"retry", "delete", *resume, *labels, *another})
    if now.state != "stopping":
        return frozenset({"stop"})
    asked = detached.ending(job.folder).stop_requested_at
    return frozenset({"kill"} if asked is not None and time.time() - asked > PATIENCE else ())


def status(job: Job, now: RunStatus) -> str:
    """State, sentence, progress, time left, speed; of a finished run its results and the link to its report."""
    followed = progress_of(job.folder)
    results = _results(job, now)
    with followed.lock:
        facts = _facts(job, now, followed)
        scores = list(_scores(results, followed)) if results.get("eval") else []
    share = min(1.0, now.step / now.total) if now.total else None
    if now.state == "waiting" or now.done:
        share = None
    report = f"/studio/runs/{quote(job.name)}/report" if (job.folder / "report.html").is_file() else ""
    model = f"/studio/download/run/{quote(job.name)}" if (job.folder / "export").is_dir() else ""
    return render("status", job.name, now, facts, share, scores, *(("", "") if now.alive else (report, model)))


def curves(shown: Sequence[Job]) -> str:
    """The curves of a run, or of several over each other."""
    courses = [progress_of(job.training) for job in shown]
    running = any(detached.alive(job.folder) for job in shown)
    drawn = _drawing(tuple((c.folder, c.serial) for c in courses))
    with drawn.lock:
        version, now = tuple(c.version for c in courses), time.monotonic()
        pause = max(EVERY, drawn.cost / SHARE) if drawn.version and running else 0.0
        if drawn.version != version and now - drawn.at >= pause:
            began = time.thread_time()
            drawn.html = _drawn([job.name for job in shown], courses)
            drawn.version, drawn.cost, drawn.at = version, time.thread_time() - began, now
        return drawn.html


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
    return render("memory", bars(known, busy))


def row(job: Job) -> tuple[str, str, str, str, Change]:
    """A run's line in the table of runs: name, state, steps, time and the score of its first evaluation set."""
    now = jobs.state(job)
    results = _results(job, now)
    followed = progress_of(job.folder)
    with followed.lock:
        score = next(_scores(results, followed), Change(*[""] * 8, False))
        steps = str(results.get("steps", now.step)) if now.total is None or not now.alive else f"{now.step}/{now.total}"
        seconds = results.get("seconds") or followed.seconds_trained()
    return job.name, now.state, steps, duration(seconds) if seconds else "", score


# What it is made of ---------------------------------------------------------------------------------------------------


@dataclass
class _Drawing:
    """Curves as they were drawn last."""

    version: tuple[tuple[int, int], ...] = ()
    html: str = ""
    cost: float = 0.0
    """Seconds of the thread's CPU time."""
    at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@functools.lru_cache(maxsize=32)
def _drawing(courses: tuple[tuple[Path, int], ...]) -> _Drawing:
    return _Drawing()


def _facts(job: Job, now: RunStatus, followed: RunProgress) -> list[tuple[str, str]]:
    """(what, value) of a run that lives, or lived."""
    facts = []
    if now.total:
        facts.append((say("fact_step"), f"{now.step:,} / {now.total:,}"))
    if now.state == "running" and now.total and now.step < now.total:
        left = followed.seconds_left()
        known = say("about", time=plans.duration(left)) if left is not None else say("fact_left_unknown")
        facts.append((say("fact_left"), known))
    if now.state in ("running", "stopping"):
        for key, sentence in (("audio_seconds_per_second", "speed_audio"), ("tokens_per_second", "speed_tokens")):
            if (speed := followed.last(key, 5)) is not None:
                count = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
                facts.append((say("fact_speed"), say(sentence, count=count)))
                break
    if after := afterwards.sentence(job.folder, now):
        facts.append((say("fact_after"), after))
    if retry_of := job.about.get("retry_of"):
        facts.append((say("fact_retry"), str(retry_of)))
    if not now.alive and (seconds := followed.seconds_trained()):
        facts.append((say("fact_time"), duration(seconds)))
    return facts


def _scores(results: Mapping[str, Any], followed: RunProgress) -> Iterator[Change]:
    """The main metric of each evaluation set; from the run's curves while it has no results."""
    yield from main_changes(results)
    for key, (steps, values) in followed.numbers.values.items() if not results.get("eval") else ():
        name, metric = evaluated(key)
        if metric:
            before = {name: {metric: {"value": values[0]}}} if steps[0] == 0 and len(steps) > 1 else {}
            yield change_of({"before": before, "eval": {name: {metric: {"value": values[-1]}}}}, name, metric)


def _sample_sets(job: Job, followed: RunProgress) -> Iterator[tuple[str, str, list[ReportExample]]]:
    """Name, step in words and newest answers of each set."""
    normalizer = str((resolved(job.training).get("task") or {}).get("normalizer") or "none")
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
    return results_of(job.folder) if now.done else {}


def style() -> str:
    """The style of what the report has as well, for everything inside `.stentor-run`."""
    return f".stentor-run {{\n{source('parts.css')}{macro('pairs.html', 'style')}}}\n"
