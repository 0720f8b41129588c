"""A browser for tests: Debian's Chromium without a screen, driven by Playwright as a person would: by mouse, keys and
files.

    with Browser(tmp_path, microphone=wav) as browser:
        page = browser.open(address)
        page.click("#create")
        page.wait("document.querySelector('#dataset input').value", "the data set is chosen")
        assert not page.errors and page.hosts == {"127.0.0.1"}

Nothing waits for a fixed time: `wait` looks until its condition holds, and says what it waited for when it does not.
Names are resolved for loopback alone, so a page that wants something from elsewhere shows an error here.
"""

import contextlib
import importlib.util
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import psutil

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
"""Added to those of Playwright, which keep Chromium from asking for anything elsewhere."""
PATIENCE = 180.0
"""Seconds until a condition that does not come true fails the test; a machine under load is slow."""
EVERY = 100
"""Milliseconds between two looks."""


def chromium() -> str | None:
    """The browser's command, if there is one, and Playwright to drive it."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromiums:
    """Chromiums that are started when they are asked for, one for each microphone, and end together: `close`.

    A microphone is a WAV file (16-bit PCM) that the fake microphone plays from its beginning whenever it is opened,
    again and again.
    """

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self.command = chromium()
        assert self.command, "there is no Chromium on PATH"
        self.playwright = sync_playwright().start()
        self.started: dict[Path | None, Any] = {}

    def of(self, microphone: Path | None) -> Any:
        if microphone not in self.started:
            flags = [*FLAGS, *([f"--use-file-for-fake-audio-capture={microphone}"] if microphone else [])]
            self.started[microphone] = self.playwright.chromium.launch(executable_path=self.command, args=flags)
        return self.started[microphone]

    def close(self) -> None:
        for started in self.started.values():
            started.close()
        self.playwright.stop()


class Browser:
    """A browser with an empty profile, in one of `chromiums` or in a Chromium of its own; pictures of pages that failed
    are in `folder`."""

    def __init__(self, folder: Path, microphone: Path | None = None, chromiums: Chromiums | None = None):
        self.folder, self.pages = folder, list[Page]()
        self.own = None if chromiums else Chromiums()
        self.chromium = (chromiums or self.own).of(microphone)
        self.person = self.chromium.new_context(viewport={"width": 1200, "height": 900})
        self.person.set_default_timeout(1000 * PATIENCE)

    @property
    def process(self) -> psutil.Process:
        """Its first process."""
        processes = self.chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
        return psutil.Process(next(process["id"] for process in processes if process["type"] == "browser"))

    def open(self, url: str) -> "Page":
        """A new tab."""
        self.pages.append(page := Page(self))
        page.go(url)
        return page

    def offline(self, offline: bool) -> None:
        """Takes the network away from all its pages, or gives it back."""
        self.person.set_offline(offline)

    def close(self) -> None:
        self.person.close()
        if self.own:
            self.own.close()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error:  # what the person would see, for whoever reads the failure
            for number, page in enumerate(self.pages):
                with contextlib.suppress(Exception):
                    error.add_note(f"page {number} looked like {page.shot(self.folder / f'failed-{number}.png')}")
        self.close()


class Page:
    """A tab. `errors` are what its console and its failed requests said, `hosts` whom it asked for anything."""

    def __init__(self, browser: Browser):
        self.browser, self.tab = browser, browser.person.new_page()
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self.note)
        self.tab.on("request", lambda request: self.asked(request.url))
        self.tab.on("websocket", lambda socket: self.asked(socket.url))
        self.tab.on("dialog", lambda dialog: dialog.accept())

    def note(self, message: Any) -> None:
        if message.type in ("error", "assert"):
            self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def asked(self, url: str) -> None:
        if url.startswith(("http", "ws")):
            self.hosts.add(urlsplit(url).hostname or "")

    # What is seen

    def look(self, phone: bool) -> None:
        """The window of a computer, or a phone's touch screen of 390 by 844 with two dots to a pixel."""
        size = {"width": 390, "height": 844} if phone else {"width": 1200, "height": 900}
        session = self.browser.person.new_cdp_session(self.tab)
        factor = {"deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        session.send("Emulation.setDeviceMetricsOverride", {**size, **factor})
        session.send("Emulation.setTouchEmulationEnabled", {"enabled": phone})

    def go(self, url: str) -> None:
        self.tab.goto(url, wait_until="commit")

    def reload(self) -> None:
        self.tab.reload(wait_until="commit")

    def close(self) -> None:
        """As a person closes a tab: the page is gone at once."""
        self.tab.close()
        self.browser.pages.remove(self)

    def js(self, expression: str) -> Any:
        """The value of an expression (a promise's, once it is there); True for an element. AssertionError with what it
        threw."""
        from playwright.sync_api import Error

        code = f"(async () => {{ const found = await ({expression}); return found instanceof Node || found; }})()"
        try:
            return self.tab.evaluate(code)
        except Error as error:
            raise AssertionError(f"{expression}\nthrew {error}") from None

    def wait(self, condition: str, what: str, seconds: float = PATIENCE) -> Any:
        """Looks until the expression is true and answers its value; a page that is just being replaced counts as not
        yet."""
        until, failure = time.monotonic() + seconds, ""
        while True:
            try:
                if value := self.js(condition):
                    return value
                failure = ""
            except AssertionError as error:
                failure = f"\n{error}"
            if time.monotonic() > until:
                console = "\n".join(self.errors[-5:]) or "nothing"
                raise AssertionError(
                    f"It did not come true in {seconds:.0f} s that {what}: {condition}{failure}\n"
                    f"The page shows: {self.text()[:1500]}\nThe console said: {console}"
                )
            self.tab.wait_for_timeout(EVERY)

    def still(self, selector: str, seconds: float = 0.7) -> None:
        """Waits until nothing in an element has changed for so long."""
        self.js(
            f"""new Promise((done) => {{
                let quiet = setTimeout(done, {1000 * seconds});
                const seen = () => {{ clearTimeout(quiet); quiet = setTimeout(done, {1000 * seconds}); }};
                const watch = {{childList: true, subtree: true, characterData: true, attributes: true}};
                new MutationObserver(seen).observe(document.querySelector({json.dumps(selector)}), watch);
            }}).then(() => true)"""
        )

    def until(self, holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Looks until something holds that is not of this page alone."""
        limit = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < limit, (
                f"It did not come true in {seconds:.0f} s that {what}.\n{self.text()[:1500]}"
            )
            self.tab.wait_for_timeout(EVERY)

    def text(self, selector: str = "body") -> str:
        """What one can read in the first element of this kind; empty when there is none."""
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def value(self, selector: str) -> str:
        """What a field holds."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).value"))

    def shot(self, path: Path) -> Path:
        """A picture of the window."""
        self.tab.screenshot(path=path)
        return path

    # What is done

    def seen(self, selector: str, text: str | None = None) -> Any:
        """The first element of this kind that can be seen; with `text`, the first that reads so."""
        reads = None if text is None else re.compile(rf"^\s*{re.escape(text)}\s*$")
        return self.tab.locator(selector).filter(visible=True, has_text=reads).first

    def find(self, selector: str, text: str | None = None) -> None:
        """Waits until it can be clicked: it does not move, and nothing covers it."""
        self.tab.bring_to_front()  # a tab in the background draws nothing
        self.seen(selector, text).click(trial=True)

    def click(self, selector: str, text: str | None = None) -> None:
        self.tab.bring_to_front()
        self.seen(selector, text).click()

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        self.tab.keyboard.press(key)

    def fill(self, selector: str, text: str) -> None:
        """Replaces what a field holds, as by typing, and leaves it."""
        self.click(selector)
        field = self.seen(selector)
        field.fill(text)
        field.blur()

    def choose(self, selector: str, option: str) -> None:
        """Picks an option of a Gradio dropdown by what one reads."""
        self.js("document.activeElement.blur()")  # its list opens when it gets the focus
        self.click(f"{selector} input")
        named, begun = (json.dumps(text, ensure_ascii=False) for text in (option, f"{option} ("))  # a language's names
        self.click(f"ul[role=listbox] li:is([aria-label={named}], [aria-label^={begun}])")
        field = f"document.querySelector({json.dumps(selector + ' input')}).value"
        self.wait(f"{field} === {named} || {field}.startsWith({begun})", f"{selector} shows {option}", 10)

    def give(self, selector: str, *files: Path) -> None:
        """Chooses files for a file input, which may be hidden behind a button."""
        self.tab.locator(selector).first.set_input_files([str(file) for file in files])
