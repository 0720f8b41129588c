"""Open run file: the text in the editor of a page, of which the server may know a later state than the page.

An event carries what the page showed when it happened. A choice and a setting that is changed right after it cross on
their way: the setting comes with the run file of before the choice, and the answer to the choice knows nothing of it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

CROSSING = 10.0
"""Seconds for which a page may still send a text that was replaced."""


class OpenRunFile:
    """What was sent to one page, and what a person changed there. It lives in the page's session, in memory: after a
    restart of the studio, what the page sends counts."""

    def __init__(self) -> None:
        self.choosing = threading.Lock()
        """Held while a choice is answered: choices follow one another."""
        self.selection: Any = ()
        """The choices that the run file was written for."""
        self._lock = threading.Lock()
        self._text = ""
        self._replaced: dict[str, tuple[float, bool]] = {}
        """When each earlier text was replaced, and whether a choice has replaced it. An editor may end a text otherwise
        than the server has."""
        self._edits: list[tuple[float, str, Any]] = []
        """(time, key, value) of the settings that were changed."""

    def __deepcopy__(self, memo: Any) -> "OpenRunFile":
        return OpenRunFile()  # Gradio copies a page's first state for each session

    def edit(self, text: str, key: str, value: Any, change: Callable[[str], str]) -> tuple[str, bool]:
        """The run file after `change` of a setting, which the page sent with `text`; and whether a choice came between,
        so that the page shows another value by now. Raises what `change` raises."""
        with self._lock:
            when, by_choice = self._replaced.get(text.strip(), (float("-inf"), False))
            crossed = time.monotonic() - when < CROSSING
            new = change(self._text if crossed else text)
            self._send(new, by_choice=False)
            self._edits = [edit for edit in self._edits if time.monotonic() - edit[0] < CROSSING]
            self._edits.append((time.monotonic(), key, value))
            return new, crossed and by_choice

    def choose(self, text: str, began: float, change: Callable[[str, str, Any], str]) -> str:
        """The run file `text` of a choice that came at `began` (monotonic), with the settings changed since then by
        `change(text, key, value)`."""
        with self._lock:
            for when, key, value in self._edits:
                if when > began:
                    text = change(text, key, value)
            self._send(text, by_choice=True)
            return text

    def _send(self, text: str, by_choice: bool) -> None:
        now, before = time.monotonic(), self._text.strip()
        recent = {old: entry for old, entry in self._replaced.items() if now - entry[0] < CROSSING}
        recent[before] = now, by_choice
        recent.pop(text.strip(), None)
        self._replaced, self._text = recent, text
