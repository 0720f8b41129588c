"""Studio: seconds that a person waits for the page, and what it costs a training that it follows.

    python benchmarks/studio.py [--parts start,changes,watching] [--rounds 5] [--minutes 4] [--recorded 100]

In a Chromium without a screen, on the machine of the studio itself:

* start: from the command to the first page and to one that can be used, beside the smallest page that Gradio makes (a
  field, a button, `launch()`), in turn, each in a fresh process; medians;
* changes: with 100 recorded rows: another data set in another language, the next phrase by key, ten rows more, a letter
  typed, a text that is saved, and the longest frame while the list is scrolled through. A person's mouse and keys do
  it; the page itself measures from the event to the first frame that shows what came of it; medians;
* watching: one training, with a page that watches it and without one in turn: steps a second, CPU seconds of a step,
  and CPU seconds of the studio (and of the browser, which shares the machine here) in a minute.

Nothing waits without a limit. A part that fails says why, and the others go on; benchmarks/results/studio.json keeps
the earlier figures of a part that was not run or failed, and each part's own date and load. Needs chromium on PATH and
the extras studio and test; asks nothing of the network.
"""

import argparse
import contextlib
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
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import results

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from browser import Browser, Page  # noqa: E402
from studio_process import StudioProcess  # noqa: E402
from studio_steps import reach, settle, step  # noqa: E402

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


def main() -> None:
    parts = {"start": starts, "changes": changes, "watching": watching}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(parts), help=",".join(parts))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training that are measured")
    parser.add_argument("--recorded", type=int, default=100)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    before = results.FOLDER / "studio.json"
    known = json.loads(before.read_text())["rows"] if before.is_file() else []
    failed = []
    with tempfile.TemporaryDirectory(prefix="studio-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        fill(folder / "studio", args.recorded)
        for name in args.parts:
            studio = StudioProcess(folder / "studio")
            (place := folder / name).mkdir()
            try:
                rows = parts[name](place, studio, args)
            except (AssertionError, OSError, psutil.Error) as error:
                failed.append(name)
                print(f"{name} FAILED: {type(error).__name__}: {error}\n", file=sys.stderr)
                continue
            finally:
                studio.end()
            facts = {"part": name, "date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1)}
            facts |= {"rounds": args.rounds, "recorded": args.recorded} if name != "watching" else {}
            known = [row for row in known if row["part"] != name] + [facts | row for row in rows]
    if len(failed) < len(args.parts):
        known.sort(key=lambda row: list(parts).index(row["part"]))
        results.write("studio", known)
    sys.exit(f"Failed: {', '.join(failed)}." if failed else 0)


def fill(folder: Path, recorded: int) -> None:
    """A data set `english` with so many recorded rows of 2 s (seeded noise with pauses), and an empty one in German."""
    from stentor.studio.dataset.recorder import PhraseRows
    from stentor.studio.projects import Projects

    projects, rng = Projects(folder), np.random.default_rng(0)
    projects.create("german", "de")
    dataset = projects.create("english", "en")
    rows = PhraseRows(dataset)
    for key in rows.keys[:recorded]:
        speech = 0.2 * rng.standard_normal(32000).astype(np.float32) * (np.arange(32000) % 8000 > 2000)
        dataset.add(speech, 16000, rows.text(key) or f"number {key}", prompt=key)


def starts(folder: Path, studio: StudioProcess, args: argparse.Namespace) -> list[dict]:
    """Seconds until a page answers, and until it can be used, ours and the peer's in turn."""
    times: dict[str, list[tuple[float, float]]] = {"studio": [], "smallest Gradio page": []}
    for number in range(args.rounds + 1):
        for name, seconds in times.items():
            (place := folder / f"start-{name[:6]}-{number}").mkdir()
            with Browser(place) as browser:  # it is open already, as a person's is
                page = browser.open("about:blank")
                began = time.perf_counter()
                process = None
                if name == "studio":
                    studio.start()
                    address = studio.address
                else:
                    process, address = peer()
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
    print(f"{'from the command on':24} {'first page':>12} {'usable':>10}")
    for name, pairs in times.items():
        answered, usable = (statistics.median(column) for column in zip(*pairs))
        rows.append({"what": f"start, {name}", "first_page": round(answered, 2), "usable": round(usable, 2)})
        print(f"{name:24} {answered:10.2f} s {usable:8.2f} s")
    for key in ("first_page", "usable"):
        rows[0][f"{key}_ratio"] = round(rows[1][key] / rows[0][key], 2)
    print(f"Ratio of the peer's to ours: first page {rows[0]['first_page_ratio']}, usable {rows[0]['usable_ratio']}.")
    print(f"Target for the first page: {FIRST} s; {'met' if rows[0]['first_page'] < FIRST else 'missed'}.\n")
    return rows


def peer() -> tuple[subprocess.Popen, str]:
    """The peer, once its page answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 4 * LIMIT
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60):
                return process, f"http://127.0.0.1:{port}/"
        except OSError:
            assert process.poll() is None and time.monotonic() < until, "the peer's page does not answer"
            time.sleep(0.02)


def timed(page: Page, what: str, event: str, holds: str, does: Callable, to: str) -> float:
    """Milliseconds from the event of what a person does to the first frame after a condition."""
    page.js(TIMED % {"event": event, "holds": holds, "limit": 1000 * LIMIT})
    does(to)
    try:
        return page.js("window.timed")
    except (AssertionError, TimeoutError) as error:
        seen = page.js(f"[{ROWS}, document.activeElement.className, document.activeElement.tagName]")
        raise AssertionError(f"{what}: not within {LIMIT:.0f} s: {holds}\n{error}\nrows, focus: {seen}") from None


def changes(folder: Path, studio: StudioProcess, args: argparse.Namespace) -> list[dict]:
    """Changes of the rows, timed in the page."""
    studio.start()
    current = "document.querySelector('stentor-speak').at?.data.number"
    shown = -(-args.recorded // 10) * 10
    timings: dict[str, list[float]] = {}

    def note(what: str, *how: Any) -> None:
        timings.setdefault(what, []).append(timed(page, what, *how))

    with Browser(folder) as browser:
        for number in range(args.rounds):
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
                note("another data set and language", "mousedown", f"{here} && {ROWS} === {rows}", page.click, option)
            row = f"stentor-speak .row[data-number='{number + 2}']"
            page.click(f"{row} .number")
            page.wait(f"{current} === {number + 2}", "the row is the current one", LIMIT)
            note("the next phrase", "keydown", f"{current} === {number + 3}", page.press, "n")
            page.click(f"{row} textarea")
            note("a letter typed", "input", "true", page.press, "x")
            saved = f"document.querySelector(`{row} .said`).textContent.includes(stentorTexts.speak_text_saved)"
            note("a text saved", "change", saved, page.press, "Enter")
            timings.setdefault("the longest frame while scrolling", []).append(page.js(SCROLL % (1000 * LIMIT)))
            note("ten more rows", "click", f"{ROWS} === {shown + 10}", page.click, "#more")
            page.close()
            (studio.folder / "datasets" / "english" / "rows.json").unlink(missing_ok=True)
    rows = []
    print(f"with {args.recorded} recorded rows")
    for name, values in timings.items():
        rows.append({"what": name, "ms": round(statistics.median(values), 1), "worst_ms": round(max(values), 1)})
        print(f"{name:34} {rows[-1]['ms']:8.0f} ms (at worst {rows[-1]['worst_ms']:.0f})")
    slowest = max(row["ms"] for row in rows if "frame" not in row["what"]) / 1000
    print(f"Target for a change: {CHANGE} s; {'met' if slowest < CHANGE else 'missed'} ({slowest:.2f} s).\n")
    return rows


def watching(folder: Path, studio: StudioProcess, args: argparse.Namespace) -> list[dict]:
    """One training, watched in every second stretch of time."""
    studio.start()
    stretches: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with Browser(folder) as browser:
        page = browser.open(studio.address)
        step(page, "3 Train")
        settle(page, epochs=20_000)
        page.click("#start")
        reach(page, "running", 20)
        page.close()
        (run,) = (studio.folder / "runs").iterdir()
        for number in range(2 * max(1, round(args.minutes * 30 / STRETCH))):
            watched = bool(number % 2)
            if watched:
                page = browser.open(studio.address)
                step(page, "3 Train")
                reach(page, "running", 1)
            time.sleep(QUIET)
            begun, _ = at(run)
            stretches[watched].append(stretch(studio, browser, run))
            if watched:  # it did watch
                reach(page, "running", begun + 1, LIMIT)
                page.close()
    rows = []
    print(f"{'a training':14} {'steps/s':>8} {'CPU s a step':>13} {'CPU s a minute: studio':>23} {'browser':>8}")
    for watched, parts in stretches.items():
        middle = {key: round(statistics.median(part[key] for part in parts), 4) for key in parts[0]}
        name = "watched" if watched else "not watched"
        rows.append({"what": f"training, {name}", "stretches": len(parts), **middle})
        print(
            f"{name:14} {middle['steps_per_second']:8.2f} {middle['cpu_per_step']:13.4f} "
            f"{middle['studio_cpu_per_minute']:23.2f} {middle['browser_cpu_per_minute']:8.2f}"
        )
    alone, seen = rows
    looks = seen["studio_cpu_per_minute"] - alone["studio_cpu_per_minute"]
    share = 100 * looks / alone["training_cpu_per_minute"]
    slower = 100 * (1 - seen["steps_per_second"] / alone["steps_per_second"])
    seen |= {"looks_percent": round(share, 2), "slower_percent": round(slower, 2)}
    verdict = "met" if share < WATCH else "missed"
    print(
        f"Looking costs the studio {looks:.2f} CPU seconds a minute, {share:.2f} % of what the training takes itself "
        f"(target {WATCH} %: {verdict}); a watched training is {slower:.1f} % slower.\n"
    )
    return rows


def stretch(studio: StudioProcess, browser: Browser, run: Path) -> dict[str, float]:
    """What training, studio and browser did in a stretch of time."""
    from stentor.studio.runs import detached

    pid = detached.process(run)
    assert studio.process and pid, "the training has ended"

    def now() -> tuple[float, ...]:
        cpu = spent(pid), spent(ours, children=False), spent(browser.process.pid)
        return time.perf_counter(), *at(run), *cpu

    ours = studio.process.pid
    before = now()
    time.sleep(STRETCH)
    took, steps, seconds, training, looks, chromium = (b - a for a, b in zip(before, now()))
    assert steps > 0, "the training made no step"
    return {
        "steps_per_second": steps / seconds,
        "cpu_per_step": training / took / (steps / seconds),
        "training_cpu_per_minute": 60 * training / took,
        "studio_cpu_per_minute": 60 * looks / took,
        "browser_cpu_per_minute": 60 * chromium / took,
    }


def at(run: Path) -> tuple[int, float]:
    """The step that a run told last, and when: it tells only every so many."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = json.loads([line for line in lines if line.endswith("\n")][-1])
    return last["step"], last["time"]


def spent(pid: int, children: bool = True) -> float:
    """CPU seconds of a process and of those processes that it has now."""
    process = psutil.Process(pid)
    total = 0.0
    for one in [process, *(process.children(recursive=True) if children else ())]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
