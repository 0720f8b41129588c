"""Recipes of lhotse: found by name, called with what they take, and what they leave out counted."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from logging.handlers import BufferingHandler
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from stentor.data.cut import Cut, UnusableRecord, set_silent
from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lhotse import Recording, RecordingSet, SupervisionSet

log = logging.getLogger("stentor")
DIARIZED = ("MagicData-RAMC", "DISPLACE", "SIMSAMU", "REPERE")


def plain_name(name: str) -> str:
    """A name of a corpus without its case, hyphens and underscores."""
    return "".join(c for c in name.lower() if c.isalnum())


NO_RECIPE = {plain_name(title): title for title in DIARIZED} | {"ramc": "MagicData-RAMC"}
"""Corpora for diarization that come with RTTM files and that neither lhotse nor the table of known corpora has."""
PATCHED = Lock()
SHOWN = 3
"""Most of a recipe's warnings that are repeated."""


@dataclass
class Part:
    """One part of a corpus as a recipe gives it."""

    manifests: dict[str, Any]
    silent: list[Recording] = field(default_factory=list)
    """Recordings that no supervision names."""
    unusable: list[UnusableRecord] = field(default_factory=list)

    def cuts(self, empty: bool) -> Iterator[Cut | UnusableRecord]:
        """Cuts of whole recordings. `empty`: those without supervisions are recordings without speech."""
        from lhotse import CutSet

        for key in ("cuts", "cutset"):
            if key in self.manifests:
                yield from _named_after_recordings(self.manifests[key])
                return
        scored: dict[str, list[list[float]]] = {}
        for line in self.manifests.get("uem") or ():  # DIHARD III
            scored.setdefault(line.recording_id, []).append([line.start, line.end])
        recordings, supervisions = self.manifests["recordings"], self.manifests.get("supervisions")
        cuts = CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
        silent = CutSet.from_manifests(recordings=_set_of(self.silent)) if empty and self.silent else ()
        for cut in _named_after_recordings(chain(cuts, map(set_silent, silent))):
            if spans := scored.get(cut.recording_id):
                cut.custom = {**(cut.custom or {}), "uem": spans}
            yield cut
        for recording in () if empty else self.silent:
            message = f"{recording.id}: no annotation names this recording; if no one speaks in it, set `empty: true`."
            yield UnusableRecord(recording.id, "no_segments", message)
        yield from self.unusable


def names() -> list[str]:
    """Names of all corpora with a lhotse recipe."""
    import lhotse.recipes

    return sorted(n.removeprefix("prepare_") for n in dir(lhotse.recipes) if n.startswith("prepare_"))


def recipe(verb: str, name: str, others: tuple[str, ...] = ()) -> Callable[..., Any]:
    """lhotse's `prepare_<name>` or `download_<name>`. Raises `ConfigError` with the nearest names, also of `others`."""
    import lhotse.recipes

    if (function := vars(lhotse.recipes).get(f"{verb}_{name}")) is not None:
        return function
    known = sorted({*names(), *others})
    if verb == "download" and name in known:
        raise ConfigError(f"lhotse cannot download {name}: get it from its publishers and give its folder as `from`.")
    if title := NO_RECIPE.get(plain_name(name)):
        raise ConfigError(
            f"lhotse has no recipe for {title}; load its RTTM files directly: "
            "{type: rttm, path: RTTM, audio: FOLDER}."
        )
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(known)}."
    raise ConfigError(f"There is no lhotse recipe for the corpus '{name}'; {hint}")


def can_download(name: str) -> bool:
    """Whether lhotse downloads a corpus."""
    import lhotse.recipes

    return f"download_{name}" in vars(lhotse.recipes)


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a recipe. Its warnings are logged, its bars not drawn unless on a terminal. Raises `DataError`."""
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    try:
        with quiet, _warnings(function.__name__):
            return function(**arguments)
    except Exception as error:  # each recipe has its own ways to fail: assertions, missing files, bad lines
        given = ", ".join(f"{k}={str(v)!r}" for k, v in arguments.items())
        raise DataError(f"lhotse's {function.__name__}({given}) failed: {_detail(error)}") from error


def prepare(
    function: Callable[..., Any], arguments: dict[str, Any], constants: Mapping[str, Any] | None = None
) -> dict[str, Part]:
    """The parts of a corpus by name, without those that have nothing at all. `constants`: other values for those of the
    recipe's module. Raises `DataError`."""
    # Every recipe ends with these two, which stop when a part is not there, and say only how many they remove.
    inner, fixing = inspect.unwrap(function).__globals__, Fixing()
    replaced = {"fix_manifests": fixing, "validate_recordings_and_supervisions": _validate, **(constants or {})}
    with PATCHED:
        before = {name: inner[name] for name in replaced if name in inner}
        inner.update({name: replaced[name] for name in before})
        try:
            parts = {name: Part(manifests) for name, manifests in flatten(call(function, arguments)).items()}
        finally:
            inner.update(before)
    fixing.assign(list(parts.values()))
    return {name: part for name, part in parts.items() if not _is_empty(part)}


def flatten(result: Any, name: str = "") -> dict[str, dict[str, Any]]:
    """The parts of what a recipe returned, by name: `{"en/train": {"recordings": ..., "supervisions": ...}}`."""
    if not isinstance(result, dict):
        raise DataError(f"The lhotse recipe returned a {type(result).__name__} instead of manifests.")
    if any(key in result for key in ("recordings", "cuts", "cutset")):
        return {name or "all": result}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in result.items():
        parts |= flatten(value, f"{name}/{key}" if name else str(key))
    return parts


class Fixing:
    """lhotse's `fix_manifests` that lets a part pass of which nothing is there, and keeps what it removes."""

    def __init__(self) -> None:
        self.removed: list[tuple[RecordingSet, list[Recording], set[str]]] = []
        """The recordings that it left, those without supervisions, and ids that only supervisions name."""
        self.known: set[str] = set()

    def __call__(self, recordings: RecordingSet, supervisions: SupervisionSet) -> tuple[RecordingSet, SupervisionSet]:
        from lhotse import SupervisionSet, fix_manifests

        annotated = {s.recording_id for s in supervisions}
        there = {r.id for r in recordings}
        silent = [r for r in recordings if r.id not in annotated]
        if there & annotated:
            fixed = fix_manifests(recordings, supervisions)
        else:
            fixed = _set_of([]), SupervisionSet.from_segments([])
        self.known |= there
        self.removed.append((fixed[0], silent, annotated - there))
        return fixed

    def assign(self, parts: list[Part]) -> None:
        """Give each part what was removed from it; the first gets what belongs to none."""
        reported: set[str] = set()
        for left, silent, missing in self.removed if parts else ():
            part = next((p for p in parts if p.manifests.get("recordings") is left), parts[0])
            part.silent += silent
            for name in sorted(missing - self.known - reported):
                message = f"the annotation names the recording '{name}', whose audio is not there."
                part.unusable.append(UnusableRecord(name, "missing", message))
                reported.add(name)


def _named_after_recordings(cuts: Iterable[Cut]) -> Iterator[Cut]:
    """Cuts of whole recordings under the recordings' ids, which RTTM and UEM files know, where those are apart. One
    whose supervisions are all of one channel (`mic: sdm` of AliMeeting) is that channel."""
    from lhotse.cut import MultiCut
    from lhotse.cut.data import DataCut

    seen: set[str] = set()
    for cut in cuts:
        channels = {s.channel if isinstance(s.channel, int) else None for s in cut.supervisions}
        if isinstance(cut, MultiCut) and len(channels) == 1 and None not in channels:
            (cut,) = [mono for mono in cut.to_mono() if mono.channel in channels]
        if isinstance(cut, DataCut) and cut.recording is not None and cut.recording.id not in seen:
            seen.add(cut.recording.id)
            cut.id = cut.recording.id
        yield cut


def _validate(recordings: RecordingSet, supervisions: SupervisionSet, *rest: Any, **options: Any) -> None:
    from lhotse import validate_recordings_and_supervisions

    if next(iter(recordings), None) is not None:
        validate_recordings_and_supervisions(recordings, supervisions, *rest, **options)


def _is_empty(part: Part) -> bool:
    manifest = next(part.manifests[key] for key in ("cuts", "cutset", "recordings") if key in part.manifests)
    return not part.silent and not part.unusable and next(iter(manifest), None) is None


def _set_of(recordings: list[Recording]) -> RecordingSet:
    from lhotse import RecordingSet

    return RecordingSet.from_recordings(recordings)


@contextlib.contextmanager
def _warnings(name: str) -> Iterator[None]:
    """Log a recipe's warnings in one line; what is removed for lack of a counterpart is counted elsewhere."""
    root, handler = logging.getLogger(), BufferingHandler(sys.maxsize)
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        messages = [r.getMessage() for r in handler.buffer if r.name == "root"]
        messages = list(dict.fromkeys(m for m in messages if "no corresponding" not in m))
        if messages:
            more = f" (and {len(messages) - SHOWN} more)" if len(messages) > SHOWN else ""
            log.warning("lhotse's %s: %s%s", name, " ".join(messages[:SHOWN]), more)


def _detail(error: Exception) -> str:
    """The reason of a recipe's failure, with its line where the error alone says nothing."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if text and isinstance(error, AssertionError | OSError | ValueError):
        return text if isinstance(error, AssertionError) else f"{kind}: {text}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "lhotse" in f.filename]
    line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{kind}{f': {text}' if text else ''}{line}"
