"""What a person does in each step of the studio, as functions on a page (tests/browser.py) for tests and benchmarks."""

import contextlib
import json
import os
from pathlib import Path

from browser import Page

YAML = "document.querySelector('#yaml .cm-content').cmTile.view.state.doc.toString()"
"""The run file in its editor, which keeps only those lines in the page that can be seen."""
SMALL = "Small, from scratch (2 million)"


def shoot(page: Page, name: str, top: str = "body") -> None:
    """A picture from this element on, in the folder `STENTOR_SHOTS`, where somebody wants to look at it."""
    if folder := os.environ.get("STENTOR_SHOTS"):
        page.js(f"document.querySelector({json.dumps(top)}).scrollIntoView({{behavior: 'instant'}})")
        page.shot(Path(folder) / f"{name}.png")


def create(page: Page, name: str = "voice", language: str = "English") -> None:
    """Makes a data set, and waits for its first phrases."""
    page.fill("#new_name input, #new_name textarea", name)
    page.choose("#language", language)
    page.click("#create")
    page.wait("document.querySelectorAll('stentor-speak .row').length === 10", "ten phrases are there")


def record(page: Page, number: int, seconds: float = 2.0) -> None:
    """Records a phrase until so many seconds have been heard, and waits until it is saved."""
    row = f"stentor-speak .row[data-number='{number}']"
    row_element = f"document.querySelector({json.dumps(row)})"
    page.click(f"{row} button.record")
    page.wait(f"{row_element}.dataset.state === 'recording'", "the microphone is open")
    page.wait(f"parseFloat({row_element}.querySelector('.seconds').textContent) > {seconds}", "the microphone hears")
    page.click(f"{row} button.record")
    page.wait(f"{row_element}.dataset.state === 'saved'", f"recording {number} is saved")


def step(page: Page, name: str) -> None:
    """Opens a step by its tab, once it is there. The tabs of a page that has just been opened may be drawn anew under
    the pointer; then one clicks again."""
    page.find("button[role=tab]", name)
    chosen = "[...document.querySelectorAll('button[role=tab][aria-selected=true]')].some((e) => e.checkVisibility()"
    for _ in range(5):
        page.click("button[role=tab]", name)
        with contextlib.suppress(AssertionError):
            page.wait(f"{chosen} && e.innerText.trim() === {json.dumps(name)})", f"{name} is open", 5)
            return
    raise AssertionError(f"{name} does not open:\n{page.text()[:1000]}")


def upload(page: Page, file: Path, text: str) -> None:
    """Adds a recording that was made elsewhere, with its text."""
    page.click("#upload_part summary")
    page.give("#upload input[type=file]", file)
    page.fill("#pasted textarea", text)
    page.click("#take")
    page.click("#add")
    page.wait("document.querySelector('#taken .ok')", "the upload is taken")


def settle(page: Page, model: str = SMALL, epochs: int = 60) -> None:
    """Chooses a model and how long it is trained; waits until the run file says so."""
    page.wait(f"{YAML}.includes('train:')", "a run file is proposed")
    page.choose("#model", model)
    page.wait(f"{YAML}.includes('speech_llm')", "the run file is that of the model")
    page.fill("#basic_epochs input, #basic_epochs textarea", str(epochs))
    page.wait(f"/epochs: {epochs}(.0)?\\s/.test({YAML})", f"the run file says {epochs} epochs")


def state(page: Page) -> str:
    """How the chosen run stands, as the page has it; empty while it shows none."""
    return str(page.js("document.querySelector('#status .state')?.dataset.state ?? ''"))


def reach(page: Page, expected: str, least: int = 0, seconds: float = 300) -> None:
    """Waits until the page shows the chosen run in this state, at this step or a later one."""
    page.wait(
        f"((s) => s && s.dataset.state === {json.dumps(expected)} && +s.dataset.step >= {least})"
        "(document.querySelector('#status .state'))",
        f"the run is {expected} at step {least} or later",
        seconds,
    )
