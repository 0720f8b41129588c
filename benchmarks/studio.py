"""Waiting times of a person: start-up of the command line, and the studio's page."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from benchmarks import harness
from benchmarks.harness import FOLDER, RATE, Result, Row, Rows, Table, benchmark

# Start-up

BIN = Path(sys.executable).parent
COMMANDS = {
    "stentor --help": [BIN / "stentor", "--help"],
    "stentor config show RECIPE": [BIN / "stentor", "config", "show", FOLDER.parent / "recipes" / "voxlm_05b.yaml"],
    "accelerate --help": [BIN / "accelerate", "--help"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
    'python -c "import transformers"': [sys.executable, "-c", "import transformers"],
    "python -c pass": [sys.executable, "-c", "pass"],
}
TARGET = 0.3


@benchmark
def startup(rounds: int = 10) -> Result:
    """Start-up time of the command line: ours beside `accelerate --help` and a bare `import torch`, in one run.

    Every command runs in a fresh process, all in turn in each round; medians of wall and CPU seconds.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, command in COMMANDS.items():
            one = harness.timed_command(command)
            if number:  # the first round fills the disk cache
                times[name].append(one)
    middle = {name: [statistics.median(column) for column in zip(*pairs)] for name, pairs in times.items()}
    table, peer = Table(), middle["accelerate --help"][0]
    for name, (wall, cpu) in middle.items():
        table.add({"command": name, "wall": round(wall, 3), "cpu": round(cpu, 3), "ratio": round(peer / wall, 1)})
    ours = max(row["wall"] for row in table if row["command"].startswith("stentor"))
    harness.verdict("seconds of ours", ours, most=TARGET)
    return table, {"rounds": rounds, "target_seconds": TARGET}


# The studio

sys.path.append(str(FOLDER.parent / "tests"))  # for the browser, the studio's process and a person's steps
FIRST, CHANGE, WATCH = 3.0, 1.0, 1.0
"""Targets: seconds to the first page and for a change, percent of a training."""
LIMIT = 30.0
"""Seconds after which a change has failed."""
STRETCH, QUIET = 20.0, 5.0
"""Seconds that a training is measured for at a time, and that pass before it, after a page was opened or closed."""
ROWS = "document.querySelectorAll('stentor-speak .row').length"
PEER = """
import sys, gradio as gr
with gr.Blocks() as page:
    gr.Button("Go", elem_id="create").click(lambda text: text, gr.Textbox(), gr.Textbox())
page.launch(server_port=int(sys.argv[1]), quiet=True)
"""
TIMED = """(() => {
    let began = null;
    window.timed = new Promise((done, fail) => {
        const why = () => (began === null ? "the event did not come" : "its outcome was not drawn")
            + (document.hidden ? "; the page is hidden and draws nothing" : "");
        setTimeout(() => fail(new Error(why())), %(limit)d);
        const drawn = () => done(performance.now() - began);
        const look = () => requestAnimationFrame((%(holds)s) ? drawn : look);
        addEventListener("%(event)s", () => { began = performance.now(); look(); }, {capture: true, once: true});
    });
    window.timed.catch(() => {});
    return true;
})()"""
"""From now on `timed` is a promise of the milliseconds from the next event to the first frame after a condition."""
SCROLL = """new Promise((done, fail) => {
    let worst = 0, before = null, at = 0;
    setTimeout(() => fail(new Error(`no end at ${at} of ${document.documentElement.scrollHeight} pixels`)), %d);
    const next = (now) => {
        worst = Math.max(worst, now - (before ?? now));
        before = now;
        scrollTo({top: at += 120, behavior: "instant"});
        at < document.documentElement.scrollHeight - innerHeight ? requestAnimationFrame(next) : done(worst);
    };
    scrollTo({top: 0, behavior: "instant"});
    requestAnimationFrame(next);
})"""


@benchmark
def studio(
    parts: tuple[Literal["start", "changes", "watching"], ...] = ("start", "changes", "watching"),
    rounds: int = 5,
    minutes: Annotated[float, "Of training that are measured."] = 4.0,
    recorded: Annotated[int, "Rows of the data set that are recorded."] = 100,
) -> Result:
    """Studio: seconds that a person waits for the page, and what it costs a training that it follows.

    In a Chromium without a screen, on the machine of the studio itself:

    * start: from the command to the first page and to one that can be used, beside the smallest page that Gradio makes
      (a field, a button, `launch()`), in turn, each in a fresh process; medians;
    * changes: with 100 recorded rows: another data set in another language, the next phrase by key, ten rows more, a
      letter typed, a text that is saved, and the longest frame while the list is scrolled through. A person's mouse and
      keys do it; the page itself measures from the event to the first frame that shows what came of it; medians;
    * watching: one training, with a page that watches it and without one in turn: steps a second, CPU seconds of a
      step, and CPU seconds of the studio (and of the browser, which shares the machine here) in a minute.

    Nothing waits without a limit. A part that fails says why, and the others still run; benchmarks/results/studio.json
    keeps the earlier figures of a part that was not run or failed, and each part's own date and load. Needs chromium on
    PATH and the extras studio and test; asks nothing of the network.
    """
    import psutil

    from studio_process import StudioProcess

    before = harness.RESULTS / "studio.json"
    known = json.loads(before.read_text())["rows"] if before.is_file() else []
    order, failed = ("start", "changes", "watching"), []
    with tempfile.TemporaryDirectory(prefix="studio-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        _fill(folder / "studio", recorded)
        for name in parts:
            process = StudioProcess(folder / "studio")
            (place := folder / name).mkdir()
            try:
                if name == "watching":
                    rows = _watching(place, process, minutes)
                else:
                    rows = {"start": _starts, "changes": _changes}[name](place, process, rounds, recorded)
            except (AssertionError, OSError, psutil.Error) as error:
                failed.append(name)
                print(f"{name} FAILED: {type(error).__name__}: {error}\n", file=sys.stderr)
                continue
            finally:
                process.end()
            facts: Row = {"part": name, "date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1)}
            facts |= {"rounds": rounds, "recorded": recorded} if name != "watching" else {}
            known = [row for row in known if row["part"] != name] + [facts | row for row in rows]
    if len(failed) == len(parts):
        raise SystemExit(f"Failed: {', '.join(failed)}.")
    return sorted(known, key=lambda row: order.index(row["part"])), {"failed": ", ".join(failed)}


def _fill(folder: Path, recorded: int) -> None:
    """A data set `english` with so many recorded rows of 2 s (seeded noise with pauses), and an empty one in German."""
    from stentor.studio.dataset.recorder import PhraseRows
    from stentor.studio.projects import Projects

    projects, rng = Projects(folder), np.random.default_rng(0)
    projects.create("german", "de")
    dataset = projects.create("english", "en")
    rows = PhraseRows(dataset)
    for key in rows.keys[:recorded]:
        speech = 0.2 * rng.standard_normal(2 * RATE).astype(np.float32) * (np.arange(2 * RATE) % 8000 > 2000)
        dataset.add(speech, RATE, rows.row(key)["text"] or f"number {key}", prompt=key)


def _starts(folder: Path, studio: Any, rounds: int, recorded: int) -> Rows:
    """Seconds until a page answers, and until it can be used, ours and the peer's in turn."""
    from browser import Browser

    times: dict[str, list[tuple[float, float]]] = {"studio": [], "smallest Gradio page": []}
    for number in range(rounds + 1):
        for name, seconds in times.items():
            (place := folder / f"start-{name[:6]}-{number}").mkdir()
            with Browser(place) as browser:  # it is open already, as a person's is
                page = browser.open("about:blank")
                began, process = time.perf_counter(), None
                if name == "studio":
                    studio.start()
                    address = studio.address
                else:
                    process, address = _peer()
                answered = time.perf_counter() - began
                page.go(address)
                page.find("#create" if process else "button[role=tab]")
                usable = time.perf_counter() - began
                if process:
                    process.terminate()
                    process.wait()
                studio.end()
            if number:  # the first round fills the disk cache
                seconds.append((answered, usable))
    rows = []
    for name, pairs in times.items():
        answered, usable = (round(statistics.median(column), 2) for column in zip(*pairs))
        rows.append({"what": f"start, {name}", "first_page": answered, "usable": usable})
    for key in ("first_page", "usable"):
        rows[0][f"{key}_ratio"] = round(rows[1][key] / rows[0][key], 2)
    _shown(rows)
    harness.verdict("seconds to the first page", rows[0]["first_page"], most=FIRST)
    return rows


def _shown(rows: Rows) -> None:
    table = Table()
    for row in rows:
        table.add(row)


def _peer() -> tuple[subprocess.Popen, str]:
    """The peer, once its page answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", PEER, str(port)], **silent)
    until = time.monotonic() + 4 * LIMIT
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60):
                return process, f"http://127.0.0.1:{port}/"
        except OSError:
            assert process.poll() is None and time.monotonic() < until, "the peer's page does not answer"
            time.sleep(0.02)


def _timed(page: Any, what: str, event: str, holds: str, does: Callable[[], Any]) -> float:
    """Milliseconds from the event of what a person does to the first frame after a condition."""
    page.js(TIMED % {"event": event, "holds": holds, "limit": 1000 * LIMIT})
    does()
    try:
        return page.js("window.timed")
    except (AssertionError, TimeoutError) as error:
        seen = page.js(f"[{ROWS}, document.activeElement.className, document.activeElement.tagName]")
        raise AssertionError(f"{what}: not within {LIMIT:.0f} s: {holds}\n{error}\nrows, focus: {seen}") from None


def _changes(folder: Path, studio: Any, rounds: int, recorded: int) -> Rows:
    """Changes of the rows, timed in the page."""
    from browser import Browser

    studio.start()
    current = "document.querySelector('stentor-speak').at?.data.number"
    shown = -(-recorded // 10) * 10
    timings: dict[str, list[float]] = {}

    def note(what: str, event: str, holds: str, does: Callable[[], Any]) -> None:
        timings.setdefault(what, []).append(_timed(page, what, event, holds, does))

    with Browser(folder) as browser:
        for number in range(rounds):
            page = browser.open(studio.address)
            page.wait("document.querySelector('#dataset input')?.value", "a data set is chosen", 2 * LIMIT)
            if page.value("#dataset input") != "english":
                page.choose("#dataset", "english")
            page.wait(f"{ROWS} === {shown}", "the recorded rows are there", 2 * LIMIT)
            for name, rows in (("german", 10), ("english", shown)):
                page.js("document.activeElement.blur()")
                page.click("#dataset input")
                option = f"ul[role=listbox] li[aria-label={name}]"
                page.find(option)
                here = f"document.querySelector('stentor-speak')?.getAttribute('dataset') === '{name}'"
                holds = f"{here} && {ROWS} === {rows}"
                note("another data set and language", "mousedown", holds, partial(page.click, option))
            row = f"stentor-speak .row[data-number='{number + 2}']"
            page.click(f"{row} .number")
            page.wait(f"{current} === {number + 2}", "the row is the current one", LIMIT)
            note("the next phrase", "keydown", f"{current} === {number + 3}", partial(page.press, "n"))
            page.click(f"{row} textarea")
            note("a letter typed", "input", "true", partial(page.press, "x"))
            saved = f"document.querySelector(`{row} .said`).textContent.includes(stentorTexts.speak_text_saved)"
            note("a text saved", "change", saved, partial(page.press, "Enter"))
            timings.setdefault("the longest frame while scrolling", []).append(page.js(SCROLL % (1000 * LIMIT)))
            note("ten more rows", "click", f"{ROWS} === {shown + 10}", partial(page.click, "#more"))
            page.close()
            (studio.folder / "datasets" / "english" / "rows.json").unlink(missing_ok=True)
    rows = []
    for name, values in timings.items():
        rows.append({"what": name, "ms": round(statistics.median(values), 1), "worst_ms": round(max(values), 1)})
    _shown(rows)
    slowest = max(row["ms"] for row in rows if "frame" not in row["what"]) / 1000
    harness.verdict("seconds of a change", slowest, most=CHANGE)
    return rows


def _watching(folder: Path, studio: Any, minutes: float) -> Rows:
    """One training, watched in every second stretch of time."""
    from browser import Browser
    from studio_steps import reach, settle, step

    studio.start()
    stretches: dict[bool, Rows] = {False: [], True: []}
    with Browser(folder) as browser:
        page = browser.open(studio.address)
        step(page, "3 Train")
        settle(page, epochs=20_000)
        page.click("#start")
        reach(page, "running", 20)
        page.close()
        (run,) = (studio.folder / "runs").iterdir()
        for number in range(2 * max(1, round(minutes * 30 / STRETCH))):
            watched = bool(number % 2)
            if watched:
                page = browser.open(studio.address)
                step(page, "3 Train")
                reach(page, "running", 1)
            time.sleep(QUIET)
            begun, _ = _last_step(run)
            stretches[watched].append(_stretch(studio, browser, run))
            if watched:  # it did watch
                reach(page, "running", begun + 1, LIMIT)
                page.close()
    rows = []
    for watched, parts in stretches.items():
        middle = harness.medians({key: [part[key] for part in parts] for key in parts[0]}, digits=4)
        rows.append({"what": f"training, {'' if watched else 'not '}watched", "stretches": len(parts), **middle})
    alone, seen = rows
    looks = seen["studio_cpu_per_minute"] - alone["studio_cpu_per_minute"]
    seen["looks_percent"] = round(100 * looks / alone["training_cpu_per_minute"], 2)
    seen["slower_percent"] = round(100 * (1 - seen["steps_per_second"] / alone["steps_per_second"]), 2)
    _shown(rows)
    harness.verdict("what looking costs, in percent of the training", seen["looks_percent"], most=WATCH)
    return rows


def _stretch(studio: Any, browser: Any, run: Path) -> Row:
    """Return the activity of training, studio and browser during some time."""
    from stentor.studio.runs import detached

    pid = detached.process(run)
    assert studio.process and pid, "the training has ended"
    ours = studio.process.pid

    def now() -> tuple[float, ...]:
        cpu = [harness.cpu_seconds(pid), harness.cpu_seconds(ours, False), harness.cpu_seconds(browser.process.pid)]
        return time.perf_counter(), *_last_step(run), *cpu

    before = now()
    time.sleep(STRETCH)
    took, steps, seconds, training, looks, chromium = (b - a for a, b in zip(before, now()))
    assert steps > 0, "the training made no step"
    row = {"steps_per_second": steps / seconds, "cpu_per_step": training / took / (steps / seconds)}
    spent = {"training": training, "studio": looks, "browser": chromium}
    return row | {f"{name}_cpu_per_minute": 60 * cpu / took for name, cpu in spent.items()}


def _last_step(run: Path) -> tuple[int, float]:
    """The step that a run reported last, and when: it reports only every so many."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = json.loads([line for line in lines if line.endswith("\n")][-1])
    return last["step"], last["time"]
