"""What the studio's page costs a person who waits for it, and a training that it watches.

    python benchmarks/studio.py [--rounds 5] [--minutes 4] [--recorded 100]

In a Chromium without a screen, on the machine of the studio itself:

* from the command to the first page and to one that can be used, beside the smallest page that Gradio makes (a field, a
  button, `launch()`), in turn, each in a fresh process; medians;
* with 100 recorded rows: another data set in another language, the next phrase by key, ten rows more, and the longest
  frame while the list is scrolled through; medians, timed in the page itself from the event to the next drawn frame;
* one training, with a page that watches it and without one in turn: steps a second, CPU seconds for each step, and the
  CPU seconds that the studio spends for a minute of training.

Needs chromium on PATH, and the extras studio and test. It asks nothing of the network.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import results

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from browser import Browser  # noqa: E402
from studio_process import StudioProcess  # noqa: E402
from studio_steps import reach, settle, step  # noqa: E402

FIRST, CHANGE, WATCH = 3.0, 1.0, 1.0
"""Targets: seconds to the first page and for a change of phrases, percent of a training."""
PEER = """
import sys, gradio as gr
with gr.Blocks() as page:
    gr.Button("Go", elem_id="create").click(lambda text: text, gr.Textbox(), gr.Textbox())
page.launch(server_port=int(sys.argv[1]), quiet=True)
"""
DRAWN = """new Promise((done) => {
    const began = performance.now();
    const drawn = () => done(performance.now() - began);
    const look = () => requestAnimationFrame((%s) ? drawn : look);
    %s;
    look();
})"""
"""Milliseconds from an action to the first frame after a condition."""
SCROLL = """new Promise((done) => {
    let worst = 0, before = performance.now(), at = 0;
    const next = (now) => {
        worst = Math.max(worst, now - before);
        before = now;
        scrollTo({top: at += 120, behavior: "instant"});
        at < document.documentElement.scrollHeight - innerHeight ? requestAnimationFrame(next) : done(worst);
    };
    scrollTo({top: 0, behavior: "instant"});
    requestAnimationFrame((now) => { before = now; requestAnimationFrame(next); });
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training that is watched")
    parser.add_argument("--recorded", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="studio-") as made:
        folder = Path(made)
        fill(folder / "studio", args.recorded)
        studio = StudioProcess(folder / "studio")
        rows = [row for part in (starts, reading, watching) for row in part(folder, studio, args)]
    results.write("studio", rows, rounds=args.rounds, recorded=args.recorded)


def fill(folder: Path, recorded: int) -> None:
    """A data set `english` with so many recorded rows of 2 s (seeded noise with pauses), and an empty one in German."""
    from stentor.studio.projects import Projects
    from stentor.studio.recorder import Rows

    projects, rng = Projects(folder), np.random.default_rng(0)
    projects.create("german", "de")
    dataset = projects.create("english", "en")
    rows = Rows(dataset)
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
            else:
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
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60):
                return process, f"http://127.0.0.1:{port}/"
        except OSError:
            assert process.poll() is None, "the peer ended"
            time.sleep(0.02)


def reading(folder: Path, studio: StudioProcess, args: argparse.Namespace) -> list[dict]:
    """Changes of the rows, timed in the page."""
    (place := folder / "reading").mkdir()
    studio.start()
    count = "document.querySelectorAll('stentor-speak .row').length"
    current = "document.querySelector('stentor-speak').at?.data.number"
    found: dict[str, list[float]] = {name: [] for name in ("data set and language", "next phrase", "ten more", "frame")}
    with Browser(place) as browser:
        for _ in range(args.rounds):
            page = browser.open(studio.address)
            page.wait("document.querySelector('#dataset input')?.value", "a data set is chosen", 180)
            for name, wanted in (("german", 10), ("english", args.recorded)):
                if page.value("#dataset input") == name:
                    page.choose("#dataset", "german" if name == "english" else "english")
                option = f"ul[role=listbox] li[aria-label={name}]"
                page.click("#dataset input")
                page.find(option)
                press = "new MouseEvent('mousedown', {bubbles: true})"
                change = DRAWN % (
                    f"document.querySelector('stentor-speak')?.getAttribute('dataset') === '{name}' && "
                    f"{count} === {wanted}", f"document.querySelector('{option}').dispatchEvent({press})",
                )  # fmt: skip
                found["data set and language"].append(page.js(change))
            page.click("stentor-speak .row[data-number='2'] .number")
            before = page.js(current)
            key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'n', bubbles: true}))"
            found["next phrase"].append(page.js(DRAWN % (f"{current} === {before + 1}", key)))
            found["frame"].append(page.js(SCROLL))
            more = DRAWN % (f"{count} === {args.recorded + 10}", "document.querySelector('#more').click()")
            found["ten more"].append(page.js(more))
            page.close()
            Path(studio.folder / "datasets" / "english" / "rows.json").unlink(missing_ok=True)
    studio.end()
    rows = []
    print(f"with {args.recorded} recorded rows")
    for name, values in found.items():
        what = "longest frame while scrolling" if name == "frame" else name
        rows.append({"what": what, "ms": round(statistics.median(values), 1), "worst_ms": round(max(values), 1)})
        print(f"{what:32} {rows[-1]['ms']:8.0f} ms (at worst {rows[-1]['worst_ms']:.0f})")
    slowest = max(row["ms"] for row in rows[:3]) / 1000
    print(f"Target for a change: {CHANGE} s; {'met' if slowest < CHANGE else 'missed'} ({slowest:.2f} s).\n")
    return rows


def watching(folder: Path, studio: StudioProcess, args: argparse.Namespace) -> list[dict]:
    """One training, watched in every second stretch of time."""
    (place := folder / "watching").mkdir()
    studio.start()
    stretches = max(2, round(args.minutes * 60 / 20))
    with Browser(place) as browser:
        page = browser.open(studio.address)
        step(page, "3 Train")
        settle(page, epochs=100_000)
        page.click("#start")
        reach(page, "running", 20)
        page.close()
        (run,) = (studio.folder / "runs").iterdir()
        found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for number in range(stretches):
            watched = bool(number % 2)
            if watched:
                page = browser.open(studio.address)
                step(page, "3 Train")
                reach(page, "running")
            found[watched].append(stretch(studio, run, 20.0))
            if watched:
                page.close()
    studio.end()
    rows = []
    print(f"{'a training':14} {'steps/s':>8} {'CPU s a step':>13} {'CPU s of the studio a minute':>29}")
    for watched, parts in found.items():
        middle = {key: statistics.median(part[key] for part in parts) for key in parts[0]}
        name = "watched" if watched else "not watched"
        rows.append({"what": f"training, {name}", **{key: round(value, 4) for key, value in middle.items()}})
        print(
            f"{name:14} {middle['steps_per_second']:8.2f} {middle['cpu_per_step']:13.4f} "
            f"{middle['studio_cpu_per_minute']:29.2f}"
        )
    seen, alone = rows
    looks = seen["studio_cpu_per_minute"] - alone["studio_cpu_per_minute"]
    share = 100 * looks / seen["training_cpu_per_minute"]
    slower = 100 * (1 - seen["steps_per_second"] / alone["steps_per_second"])
    seen |= {"looks_percent": round(share, 2), "slower_percent": round(slower, 2)}
    print(f"Looking costs {looks:.2f} CPU seconds a minute, {share:.2f} % of what the training takes itself; a watched "
          f"training is {slower:.1f} % slower. Target: {WATCH} %; {'met' if share < WATCH else 'missed'}.")  # fmt: skip
    return rows


def stretch(studio: StudioProcess, run: Path, seconds: float) -> dict[str, float]:
    """What training and studio did in so many seconds."""
    from stentor.studio import detached

    pid = detached.process(run)
    assert studio.process and pid, "the training has ended"
    training, ours = psutil.Process(pid), psutil.Process(studio.process.pid)

    def now() -> tuple[float, int, float, float]:
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        return time.perf_counter(), last["step"], spent(training), spent(ours)

    before = now()
    time.sleep(seconds)
    took, steps, training_cpu, studio_cpu = (b - a for a, b in zip(before, now()))
    return {
        "steps_per_second": steps / took, "cpu_per_step": training_cpu / max(1, steps),
        "training_cpu_per_minute": 60 * training_cpu / took, "studio_cpu_per_minute": 60 * studio_cpu / took,
    }  # fmt: skip


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
