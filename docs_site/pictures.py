"""Pictures of README.md and docs/: the report of a finished quickstart, and that run in the studio, in Chromium.

    python docs_site/pictures.py runs/quickstart

Everything is made here: the recordings are built-in voices, and the Hub is the stand-in of the tests.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.sources.phrases import command
from stentor.studio.projects import Projects

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from browser import Browser, Page  # noqa: E402
from hub_server import Hub  # noqa: E402
from studio_process import StudioProcess  # noqa: E402
from studio_steps import create, record  # noqa: E402

RATE = 16000
VOICE = "en-us+f3"
REPORT, WINDOW, PHONE = ({"width": w, "height": h} for w, h in ((880, 1056), (1000, 860), (390, 844)))
CLIPS, HEARD = 48, 12
"""Recordings of the data set, and sentences that the microphone hears."""


def spoken(text: str) -> np.ndarray:
    """Speech at half of the full scale, between pauses."""
    audio = say(text, voice=VOICE, speed=150).audio
    return np.pad(0.5 * audio / np.abs(audio).max(), RATE // 4)


def prepare(folder: Path, run: Path) -> list[str]:
    """Make the run known to the studio and write what the microphone hears. Return the texts of the data set."""
    rng = random.Random(3)
    texts = [command(rng) for _ in range(CLIPS + HEARD)]
    write(folder / "microphone.wav", np.concatenate([np.pad(spoken(t), (0, RATE)) for t in texts[CLIPS:]]), RATE)
    shutil.copytree(run, folder / "runs" / "quickstart")
    return texts[:CLIPS]


class Pictures:
    """A page of the studio, and the folder for its pictures."""

    def __init__(self, page: Page, to: Path):
        self.page, self.to = page, to
        page.tab.set_viewport_size(WINDOW)

    def take(self, name: str, top: str = "body") -> None:
        """A picture of the window, from this element on."""
        self.page.js(f"document.querySelector({top!r}).scrollIntoView({{behavior: 'instant'}})")
        self.page.still("body")
        self.page.shot(self.to / f"{name}.png")

    def step(self, name: str) -> None:
        """Open a step. Its tab may be drawn again under the pointer, so this clicks until it is open."""
        tab = f"#step_{name}-button"
        self.page.find(tab)
        while self.page.js(f"document.querySelector('{tab}').ariaSelected") != "true":
            self.page.click(tab)
            self.page.tab.wait_for_timeout(500)
        self.page.still("#steps")

    def recording(self) -> None:
        """Step 1: three phrases are recorded, the fourth is being recorded; then the same in dark mode on a phone."""
        create(self.page, "my-voice")
        for number in (1, 2, 3):
            record(self.page, number)
        button, row = "stentor-speak .row[data-number='4'] button.record", ".row[data-number='4'] .seconds"
        self.page.click(button)
        self.page.wait(f'parseFloat(document.querySelector("{row}").textContent) > 1', "the microphone hears")
        self.page.js("document.querySelector('#steps').scrollIntoView({behavior: 'instant'})")
        self.page.shot(self.to / "speak.png")
        self.page.click(button)
        self.page.wait("document.querySelectorAll('.row[data-state=saved]').length === 4", "it is saved")
        context = self.page.browser.chromium.new_context(viewport=PHONE, device_scale_factor=2, color_scheme="dark")
        tab = context.new_page()
        tab.goto(self.page.tab.url)
        tab.locator("stentor-speak .row").nth(4).wait_for()
        tab.locator("stentor-speak").evaluate("(phrases) => phrases.scrollIntoView({behavior: 'instant'})")
        tab.wait_for_timeout(1000)  # transitions
        tab.screenshot(path=self.to / "phone.png")
        context.close()

    def checking(self, studio: Path, texts: list[str]) -> None:
        """Step 2: a data set of spoken commands is divided."""
        dataset = Projects(studio).create("kitchen", "en")
        for text in texts:
            dataset.add(spoken(text), RATE, text)
        self.page.reload()
        self.page.wait("document.querySelector('#dataset input')?.value", "a data set is open")
        self.page.choose("#dataset", dataset.name)
        self.step("check")
        self.page.wait(f"document.querySelectorAll('stentor-check .row').length === {CLIPS}", "all are listed")
        self.page.click("#split")
        self.page.wait("document.querySelector('#divided').innerText", "they are divided")
        self.take("check")

    def training(self) -> None:
        """Step 3: what is proposed, and the run of the quickstart."""
        self.step("train")
        self.take("train")
        self.page.wait("document.querySelector('#curves svg')", "the run has curves")
        self.take("run", "#runs")

    def trying(self) -> None:
        """Step 4: a held-out recording, then what the microphone hears."""
        self.step("try")
        self.page.click("#try_from input[value=held_out]")
        self.page.still("#steps")
        self.page.click("#try")
        self.page.wait("document.querySelector('#answers').innerText", "the answer is there")
        self.take("try")
        self.page.click("stentor-live .toggle")
        self.page.wait("document.querySelectorAll('stentor-live .line').length > 5", "lines are written")
        self.page.click("stentor-live summary")
        self.page.js("document.querySelector('stentor-live').scrollIntoView({behavior: 'instant'})")
        self.page.shot(self.to / "live.png")
        self.page.click("stentor-live .toggle")

    def publishing(self) -> None:
        """Step 5: the model is published."""
        self.step("publish")
        self.page.still("#publish_to", 2)
        self.page.click("#publish_go")
        self.page.wait("document.querySelector('.stentor-publication[data-state=published] a')", "it is published")
        self.take("publish")


def main(run: Path, to: Path) -> None:
    """Write report.png and the pictures of the studio."""
    (to / "studio").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = prepare(folder, run)
        hub, studio = Hub(), StudioProcess(folder / "studio")
        hub.user = "anna"
        try:
            studio.start(120, "--runs", str(folder / "runs"), **hub.environment(str(folder / "hub")))
            with Browser(folder, folder / "microphone.wav") as browser:
                report = browser.open((run / "report.html").resolve().as_uri())
                report.tab.set_viewport_size(REPORT)
                report.tab.wait_for_load_state()
                report.shot(to / "report.png")
                report.close()
                page = browser.open(studio.address)
                page.wait("document.querySelector('#create')", "the page is there")
                pictures = Pictures(page, to / "studio")
                pictures.recording()
                pictures.checking(studio.folder, texts)
                pictures.training()
                pictures.trying()
                pictures.publishing()
        finally:
            studio.end()
            hub.close()
    print(f"Wrote {to / 'report.png'} and {len(list((to / 'studio').glob('*.png')))} pictures in {to / 'studio'}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the pictures of README.md and docs/.")
    parser.add_argument("run", type=Path, help="Folder of a finished `stentor quickstart`.")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="Folder to write to. Default: docs.")
    main(**vars(parser.parse_args()))
