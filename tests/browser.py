"""A browser for tests: Debian's Chromium without a screen, driven over the DevTools protocol
(https://chromedevtools.github.io/devtools-protocol) as a person would: by mouse, keys and files.

    with Browser(tmp_path, microphone=wav) as browser:
        page = browser.open(address)
        page.click("#create")
        page.wait("document.querySelector('#dataset input').value", "the data set is chosen")
        assert not page.errors and page.hosts == {"127.0.0.1"}

Nothing waits for a fixed time: `wait` looks until its condition holds, and says what it waited for when it does not.
Names are resolved for loopback alone, so a page that wants something from elsewhere shows an error here.
"""

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-sync",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-pings",
    "--mute-audio",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--password-store=basic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-allow-origins=*",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--remote-debugging-port=0",
)
PATIENCE = 60.0
"""Seconds until a condition that does not come true fails the test; a machine under load is slow."""
EVERY = 0.1
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    " ": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "Delete": ("Delete", 46, ""),
}


def chromium() -> str | None:
    """The browser's command, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A Chromium of its own with an empty profile in `folder`.

    `microphone` is a WAV file (16-bit PCM) that the fake microphone plays from its beginning whenever it is opened,
    again and again.
    """

    def __init__(self, folder: Path, microphone: Path | None = None):
        command = chromium()
        assert command, "there is no Chromium on PATH"
        self.folder = folder
        profile = folder / "chromium"
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        if microphone:
            flags.append(f"--use-file-for-fake-audio-capture={microphone}")
        self.log = folder / "chromium.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([command, *flags, "about:blank"], stdout=log, stderr=log)
        self.pages: list[Page] = []
        port_file, until = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not (port_file.is_file() and port_file.read_text().count("\n")):
            if self.process.poll() is not None or time.monotonic() > until:
                self.close()
                raise AssertionError(f"Chromium did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(EVERY)
        self.address = f"http://127.0.0.1:{port_file.read_text().split()[0]}"

    def open(self, url: str, **look: Any) -> "Page":
        """A new tab; `look` as in `Page.look`."""
        asked = urllib.request.Request(f"{self.address}/json/new?{quote('about:blank')}", method="PUT")
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            target = json.load(answer)
        page = Page(self, target["id"], target["webSocketDebuggerUrl"])
        self.pages.append(page)
        page.look(**look)
        page.go(url)
        return page

    def close(self) -> None:
        for page in list(self.pages):
            page.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

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

    def __init__(self, browser: Browser, target: str, address: str):
        from websockets.sync.client import connect

        self.browser, self.target = browser, target
        self.socket = connect(address, max_size=None, open_timeout=PATIENCE, ping_interval=None)
        self.number = 0
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.send(f"{domain}.enable")

    # The protocol

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what happened meanwhile is noted."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=2 * PATIENCE))
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.note(message.get("method", ""), message.get("params", {}))

    def note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent" and params["request"]["url"].startswith(("http", "ws")):
            self.hosts.add(urlsplit(params["request"]["url"]).hostname or "")
        elif event == "Page.javascriptDialogOpening":
            self.socket.send(json.dumps({"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}))

    # What is seen

    def look(self, width: int = 1200, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """The window's size in CSS pixels, and the person's choice of light or dark. A phone has a touch screen of 390
        by 844 with two dots to a pixel."""
        if phone:
            width, height = 390, 844
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def reload(self) -> None:
        self.js("window.stale = true")
        self.send("Page.reload")
        self.wait("!window.stale", "the page is loaded again")

    def close(self) -> None:
        """As a person closes a tab: the page is gone at once."""
        with (
            contextlib.suppress(Exception),
            urllib.request.urlopen(f"{self.browser.address}/json/close/{self.target}", timeout=10),
        ):
            pass
        with contextlib.suppress(Exception):
            self.socket.close()
        self.browser.pages.remove(self)

    def js(self, expression: str) -> Any:
        """The value of an expression (a promise's, once it is there); True for an element. AssertionError with what it
        threw."""
        code = f"(async () => {{ const found = await ({expression}); return found instanceof Node || found; }})()"
        done = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            threw = done["exceptionDetails"].get("exception", {}).get("description") or done["exceptionDetails"]["text"]
            raise AssertionError(f"{expression}\nthrew {threw}")
        return done["result"].get("value")

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
            time.sleep(EVERY)

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
            time.sleep(EVERY)

    def text(self, selector: str = "body") -> str:
        """What one can read in the first element of this kind; empty when there is none."""
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def value(self, selector: str) -> str:
        """What a field holds."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).value"))

    def count(self, selector: str) -> int:
        """How many elements of this kind can be seen."""
        return int(
            self.js(f"[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.offsetParent).length")
        )

    def shot(self, path: Path, full_page: bool = False) -> Path:
        """A picture of the window, or of the whole page."""
        taken = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full_page)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    # What is done

    def find(self, selector: str, text: str | None = None) -> tuple[float, float]:
        """Where the first element of this kind that can be seen and used lies (its middle, in the window); with `text`,
        the first that reads so. Waits for it."""
        self.send("Page.bringToFront")  # a tab in the background draws nothing
        reading = "" if text is None else f" that reads {text!r}"
        place = self.wait(
            f"""(async () => {{
                if (document.readyState !== "complete") return null;  // a style sheet that comes moves everything
                const text = {json.dumps(text)};
                const usable = (e) => e.checkVisibility({{visibilityProperty: true}}) && !e.disabled
                    && e.getBoundingClientRect().height > 0;
                const reads = (e) => text === null || (e.innerText || e.value || "").trim() === text;
                const all = [...document.querySelectorAll({json.dumps(selector)})];
                const found = all.find((e) => usable(e) && reads(e));
                if (!found) return null;
                // A list of options moves when the page is scrolled, and stays within the window by itself.
                const block = found.closest("[role=listbox]") ? "nearest" : "center";
                found.scrollIntoView({{block, inline: "nearest", behavior: "instant"}});
                const before = found.getBoundingClientRect();
                await new Promise((done) => setTimeout(done, 40));
                const box = found.getBoundingClientRect();
                if (box.x !== before.x || box.y !== before.y) return null;  // it still moves
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const top = document.elementFromPoint(x, y);
                // What is covered cannot be clicked; a label stands for its field.
                return top && (found.contains(top) || top.contains(found)) ? [x, y] : null;
            }})()""",
            f"{selector}{reading} can be clicked",
        )
        return place[0], place[1]

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks where `find` found it."""
        x, y = self.find(selector, text)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        code, number, text = KEYS.get(key, (f"Key{key.upper()}", ord(key.upper()[:1]), key))
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.send("Input.dispatchKeyEvent", key=key, code=code, windowsVirtualKeyCode=number, **down)
        self.send("Input.dispatchKeyEvent", key=key, code=code, windowsVirtualKeyCode=number, type="keyUp")

    def fill(self, selector: str, text: str) -> None:
        """Replaces what a field holds, as by typing, and leaves it."""
        self.click(selector)
        self.wait(
            f"""(() => {{
                const field = document.activeElement;
                if (!field.matches({json.dumps(selector)})) {{
                    document.querySelector({json.dumps(selector)}).focus();
                    return false;
                }}
                field.select();
                return true;
            }})()""",
            f"{selector} takes the focus",
        )
        if text:
            self.send("Input.insertText", text=text)
        else:
            self.press("Delete")
        self.js("document.activeElement.blur()")

    def choose(self, selector: str, option: str) -> None:
        """Picks an option of a Gradio dropdown by what one reads."""
        self.js("document.activeElement.blur()")  # its list opens when it gets the focus
        self.click(f"{selector} input")
        self.click(f"ul[role=listbox] li[aria-label={json.dumps(option, ensure_ascii=False)}]")
        self.wait(
            f"document.querySelector({json.dumps(selector + ' input')}).value === {json.dumps(option)}",
            f"{selector} shows {option}",
            10,
        )

    def give(self, selector: str, *files: Path) -> None:
        """Chooses files for a file input, which may be hidden behind a button."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})", f"{selector} is there")
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(f) for f in files])
