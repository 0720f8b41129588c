"""The run file of one open page: what was proposed, what the person changed of it, and what the page may have missed.

An event of the page carries what the page showed when it happened. A choice and a setting that is changed right after
it cross on their way: the setting comes with the run file of before the choice, and the answer to the choice knows
nothing of it. So each run file that is sent has a number, which the page sends back with it; and what a person changed,
the difference to what was proposed, is put onto the next proposal.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stentor.errors import StentorError
from stentor.studio.runs.form import BASIC, at, basics, changed, form_of, plain, put, same, shown, take, written

_GONE: Any = object()
"""Value of a key that was taken out."""
_REMEMBERED = 20
"""Run files that were sent, and may still come back."""
Path = tuple[str, ...]
Fields = Mapping[str, Any]
"""Values that fields of the page show, by key."""


@dataclass(frozen=True)
class Rewritten:
    """A run file that a choice has written, and what became of the settings."""

    text: str
    yours: tuple[tuple[str, str, str], ...] = ()
    """(key, value, what is proposed) of what the person set, and stays."""
    fresh: tuple[tuple[str, str, str], ...] = ()
    """(key, value, the one before) of basic settings whose proposal has changed."""
    unused: tuple[str, ...] = ()
    """Keys that the person set and that this choice does not have: they wait for one that has them."""


class OpenRunFile:
    """The run file of one page. It lives in the page's session, in memory: after a restart of the studio, what the page
    sends counts."""

    def __init__(self) -> None:
        self.choosing = threading.Lock()
        """Held while a choice is answered: choices follow one another."""
        self.selection: Any = ()
        """The choices that the run file was written for."""
        self.number = 0
        """Number of the run file that was sent last."""
        self.name = ""
        """Name that was proposed for the run."""
        self.wrong: dict[str, str] = {}
        """The mistake in the value that a field shows, by key: that value is not in the run file."""
        self._lock = threading.RLock()
        self._sent: dict[int, str] = {}
        self._fields: dict[str, Any] = {}
        self._proposal: dict[str, Any] | None = None
        self._unused: dict[Path, Any] = {}
        self._dataset = ""

    def __deepcopy__(self, memo: Any) -> "OpenRunFile":
        return OpenRunFile()  # Gradio copies a page's first state for each session

    def turn_to(self, dataset: str, number: int, text: str, fields: Fields) -> bool:
        """Whether the page has come to another data set, with this run file, which it kept for it, or none: as a page
        that is opened again. The fields still show what they did before."""
        with self._lock:
            if dataset == self._dataset:
                return False
            self._dataset, self.wrong, self._fields = dataset, {}, dict(fields)
            self.selection, self._proposal, self._unused, self.name = (), None, {}, ""
            self.number = max(self.number, number)  # of an earlier studio
            self.send(text)
            return True

    def read(self, number: int, text: str, fields: Fields) -> str:
        """The run file as the person means it, whose page shows the run file `text` of this number and these fields.
        What was changed in a field is put into it, or is named in `wrong`."""
        with self._lock:
            now = self._latest(number, text)
            try:
                rows, tree = form_of(text)
            except StentorError:
                return now
            known, there = {row.key: row for row in rows}, basics(text)
            for key, value in fields.items():
                row = known.get(key)
                if row is None or (row.basic and key not in there) or self._fields.get(key, _GONE) == value:
                    continue
                self._fields[key] = value
                self.wrong.pop(key, None)
                try:
                    if not same(row, value, tree):
                        row = next((row for row in form_of(now)[0] if row.key == key), None)
                        now = changed(now, row, value) if row else now
                except StentorError as error:
                    self.wrong[key] = str(error).removeprefix(f"{key}: ")
            return now if now == text else self.send(now)

    def choose(self, proposal: dict[str, Any], text: str, chosen: tuple[str, ...] = ()) -> Rewritten:
        """The run file of a choice: the proposal with what the person changed of the one before, in its run file
        `text`; but for what is below the keys `chosen`, which the choice was about."""
        with self._lock:
            before, new = self._proposal, plain(written(proposal))
            try:
                mine = self._unused | dict(_differences(before, plain(text))) if before is not None else {}
            except StentorError:  # what is no YAML cannot be kept
                mine = {}
            self._proposal, self._unused, basic = plain(written(proposal)), {}, {b.key for b in BASIC}
            others = []
            for path, value in mine.items():
                key = ".".join(path)
                if key not in basic and any(f"{key}.".startswith(f"{top}.") for top in chosen):
                    continue
                if not _apply(new, path, value):
                    self._unused[path] = value
                elif key not in basic:
                    others.append((key, "", ""))
            result = self.send(written(new, text if mine else ""))
            proposed, final, old = _values(self._proposal), _values(new), _values(before or {})
            yours = [(key, value, proposed.get(key, "")) for key, value in final.items() if value != proposed.get(key)]
            fresh = [(key, final[key], old[key]) for key in final if key in old and old[key] != proposed.get(key)]
            fresh = [change for change in fresh if change[0] not in {key for key, *_ in yours}]
            return Rewritten(result, (*yours, *others), tuple(fresh), tuple(map(".".join, self._unused)))

    def none(self, text: str) -> Rewritten:
        """There is no run file for a choice: what the person changed waits for the next one."""
        with self._lock:
            if self._proposal is not None:
                with contextlib.suppress(StentorError):
                    self._unused |= dict(_differences(self._proposal, plain(text)))
            self._proposal = {}
            return Rewritten(self.send(""))

    def begin(self, text: str) -> None:
        """Take this run file, or none, as what is proposed."""
        with self._lock:
            self._proposal, self._unused, self.wrong = (plain(text) if text.strip() else None), {}, {}
            self.send(text)

    def send(self, text: str) -> str:
        """Note that this run file is sent to the page, with the next number."""
        with self._lock:
            self.number += 1
            self._sent[self.number] = text
            self._sent.pop(self.number - _REMEMBERED, None)
            return text

    def note(self, fields: Fields) -> None:
        """Note what the page is sent for its fields."""
        self._fields |= fields

    def _latest(self, number: int, text: str) -> str:
        """The run file that this one, as the page shows it, has become meanwhile."""
        if number >= self.number:
            return text
        latest, before = self._sent.get(self.number, ""), self._sent.get(number, text)
        if before.strip() == text.strip():
            return latest
        try:
            tree = plain(latest)
            for path, value in _differences(plain(before), plain(text)):
                _apply(tree, path, value)
            return written(tree, text)
        except StentorError:  # in the middle of a word
            return latest


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Changes, as (path, value)."""
    for key in {**old, **new}:
        before, now = old.get(key, _GONE), new.get(key, _GONE)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, (*path, key))
        elif before != now:
            yield (*path, key), now


def _apply(tree: dict[str, Any], path: Path, value: Any) -> bool:
    """Make a change; says whether there is a place for it. No section of the model or the task is made for it."""
    if not isinstance(at(tree, path[:-1]), dict) and path[0] in ("model", "task"):
        return False
    if value is _GONE:
        take(tree, path)
    elif isinstance(value, dict) and isinstance(at(tree, path), dict):
        done = [_apply(tree, (*path, key), inner) for key, inner in value.items()]
        return all(done)
    else:
        put(tree, path, value)
    return True


def _values(tree: Mapping[str, Any]) -> dict[str, str]:
    """The basic settings of a run file as the page shows them."""
    there = basics(written(tree))
    return {b.key: str(shown(there[b.key], tree)) for b in BASIC if b.key in there}
