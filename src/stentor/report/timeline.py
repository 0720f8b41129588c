"""Diarization timelines of the report: reference and output by speaker, with the errors below."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from stentor.metrics.format import figure
from stentor.report.sounds import SoundBudget
from stentor.report.svg import SIZE, Span, Tick, span, spans_of, step_of, ticks_of

LINE = 60.0
"""Seconds that one line shows at most."""
LINES = 4
"""Lines of one recording: of longer ones those with most that is wrong."""
MOST = 20
"""Recordings that are drawn in one page."""
COLOURS = 6
KINDS = ("missed", "false alarm", "confused")


@dataclass
class Lane:
    """One speaker: when he speaks, above, and when the model says so, below."""

    name: str
    """As the reference calls him; empty for somebody whom only the model hears."""
    output_name: str
    """As the model calls him; empty where it does not hear him."""
    colour: int
    reference: list[Span]
    output: list[Span]


@dataclass
class TimelineRow:
    """A part of a recording."""

    begin: float
    end: float
    lanes: list[Lane]
    errors: list[tuple[str, list[Span]]]
    """One row for each of `KINDS`."""
    overlap: str
    """SVG path over the times when the reference has several speakers, in a box of `SIZE`."""
    unscored: list[Span]
    """Regions outside of the UEM."""
    ticks: list[Tick]


@dataclass
class TimelineDrawing:
    """One recording."""

    id: str
    seconds: float
    der: str
    parts: str
    """Parts of the error rate."""
    speakers: str
    right: bool
    """Whether nothing is wrong."""
    lines: list[TimelineRow]
    partly: str
    """Part of the recording that is drawn; empty when all of it is."""
    sound: str = ""
    """A data: URL."""


@dataclass
class Timelines:
    """One evaluation set."""

    name: str
    facts: str
    groups: list[tuple[str, int, str]]
    """Number of speakers, recordings, error rate."""
    drawings: list[TimelineDrawing] = field(default_factory=list)
    more: int = 0
    """Recordings that are not drawn."""


@dataclass
class Compared:
    """One recording, cut wherever anything begins or ends."""

    edges: np.ndarray
    """Seconds, float64 [E + 1]."""
    names: list[str]
    """Speakers of the reference, in order of arrival."""
    output_names: list[str]
    """Those of the answer."""
    pairs: dict[str, str]
    """Speaker of the answer -> of the reference: one to one, so that most seconds are right."""
    active: np.ndarray
    """Active speakers of the reference, bool [N, E]."""
    output_active: np.ndarray
    """Active speakers of the output, bool [K, E]."""
    wrong: dict[str, np.ndarray]
    """Count of speakers that are missed, falsely raised and confused, int64 [E], 0 beyond the UEM."""
    scored: np.ndarray
    """bool [E]."""

    def seconds(self, kind: str, begin: float = 0.0, end: float = np.inf) -> float:
        """Speaker seconds of one of `KINDS` between two times."""
        lengths = np.clip(self.edges[1:], begin, end) - np.clip(self.edges[:-1], begin, end)
        return float(self.wrong[kind] @ lengths)

    def errors(self, begin: float = 0.0, end: float = np.inf) -> float:
        return sum(self.seconds(kind, begin, end) for kind in KINDS)

    @property
    def total(self) -> float:
        """Seconds of speech in the reference, each speaker's counted."""
        return float((self.active.sum(0) * self.scored) @ np.diff(self.edges))


def compare(
    reference: Sequence[Mapping[str, Any]],
    output: Sequence[Mapping[str, Any]],
    uem: Sequence[Sequence[float]] | None,
    seconds: float,
) -> Compared:
    """Correct and wrong regions. The sums are those of `stentor.metrics.diarization.errors` without collar."""
    from scipy.optimize import linear_sum_assignment

    names, output_names = ([*dict.fromkeys(s["speaker"] for s in side)] for side in (reference, output))
    times = {0.0, seconds, *(t for s in (*reference, *output) for t in (s["start"], s["end"]))}
    edges = np.array(sorted(times | {float(t) for span in uem or () for t in span}))

    def activity(spans: Iterable[Sequence[float]]) -> np.ndarray:
        change = np.zeros(len(edges), np.int64)
        for start, end in spans:
            change[np.searchsorted(edges, start)] += 1
            change[np.searchsorted(edges, end)] -= 1
        return np.cumsum(change)[:-1] > 0

    def rows(side: Sequence[Mapping[str, Any]], speakers: Sequence[str]) -> np.ndarray:
        active = [activity((s["start"], s["end"]) for s in side if s["speaker"] == name) for name in speakers]
        return np.array(active, bool).reshape(len(speakers), len(edges) - 1)

    reference_active, output_active = rows(reference, names), rows(output, output_names)
    scored = np.ones(len(edges) - 1, bool) if uem is None else activity(uem)
    common = (reference_active * scored * np.diff(edges)) @ output_active.T
    matched = [(i, j) for i, j in zip(*linear_sum_assignment(common, maximize=True), strict=True) if common[i, j] > 0]
    right = sum((reference_active[i] & output_active[j] for i, j in matched), np.zeros(len(edges) - 1, np.int64))
    reference_count, output_count = reference_active.sum(0), output_active.sum(0)
    wrong = {
        "missed": np.maximum(reference_count - output_count, 0) * scored,
        "false alarm": np.maximum(output_count - reference_count, 0) * scored,
        "confused": (np.minimum(reference_count, output_count) - right) * scored,
    }
    pairs = {output_names[j]: names[i] for i, j in matched}
    return Compared(edges, names, output_names, pairs, reference_active, output_active, wrong, scored)


def timelines(
    name: str, scores: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], budget: SoundBudget, most: int = MOST
) -> Timelines:
    """Timelines of an evaluation set. `scores` are those of `stentor.metrics.diarization.scores` as dicts, `rows`
    the predictions of the task `diarize`. The recordings with most that is wrong come first."""
    items = [
        (row, compare(row["reference"]["segments"], row["output"]["segments"], row["reference"]["uem"], _seconds(row)))
        for row in rows
    ]
    items.sort(key=lambda item: (-round(item[1].errors(), 3), str(item[0]["id"])))
    total = sum(c.total for _, c in items)
    clean = sum(c.errors() < 0.0005 for _, c in items)
    groups = (scores["der"].get("details") or {}).get("by_speakers") or {}
    view = Timelines(
        name=name,
        facts=f"{len(rows):,} recordings with {total:,.0f} s of speech, {clean:,} without any error",
        groups=[(n, part["items"], figure("der", part["value"])) for n, part in groups.items()],
        more=max(0, len(items) - most),
    )
    for row, compared in items[:most]:
        drawing = draw(row, compared)
        drawing.sound = budget.player(row.get("record") or {}, drawing.seconds)
        view.drawings.append(drawing)
    return view


def draw(row: Mapping[str, Any], compared: Compared) -> TimelineDrawing:
    """One recording, in lines of at most `LINE` seconds."""
    seconds = _seconds(row)
    spans = spans_of(seconds, LINE)
    shown = sorted(sorted(spans, key=lambda span: -compared.errors(*span))[:LINES])
    parts = [f"{kind} {compared.seconds(kind):.1f} s" for kind in KINDS if compared.seconds(kind) >= 0.05]
    wrong, total = compared.errors(), compared.total
    rate = wrong / total if total else float(wrong > 0)
    num_names, num_output_names = len(compared.names), len(compared.output_names)
    partly = f"{len(shown)} of {len(spans)} parts are drawn, those with most that is wrong"
    return TimelineDrawing(
        id=str(row["id"]),
        seconds=seconds,
        der=figure("der", rate),
        parts=", ".join(parts) + (" of " if parts else "") + f"{total:.1f} s of speech",
        speakers=f"{num_names} speaker{'' if num_names == 1 else 's'}"
        + (f", {num_output_names} heard" if num_output_names != num_names else ""),
        right=wrong < 0.0005,
        lines=[line(compared, *span) for span in shown],
        partly=partly if len(spans) > LINES else "",
    )


def line(compared: Compared, begin: float, end: float) -> TimelineRow:
    """A stretch of a recording, in seconds."""

    def bar(start: float, stop: float, title: str) -> Span:
        return span(start, stop, (begin, end), f"{title}: {start:.2f}–{stop:.2f} s")

    def stretches(active: np.ndarray) -> list[tuple[float, float]]:
        spans, edges = [], compared.edges
        for on, part in groupby(range(len(active)), key=lambda i: bool(active[i])):
            indices = list(part)
            start, stop = float(edges[indices[0]]), float(edges[indices[-1] + 1])
            if on and start < end and stop > begin:
                spans.append((start, stop))
        return spans

    def bars(names: Sequence[str], active: np.ndarray, name: str) -> list[Span]:
        return [bar(*span, name) for span in stretches(active[names.index(name)])] if name else []

    def path(active: np.ndarray) -> str:
        boxes = [bar(*span, "") for span in stretches(active)]
        return "".join(f"M{b.left:.1f} 0h{b.width:.1f}V{SIZE}h{-b.width:.1f}z" for b in boxes)

    mapped = {reference: output for output, reference in compared.pairs.items()}
    people = [(reference, mapped.get(reference, "")) for reference in compared.names]
    people += [("", output) for output in compared.output_names if output not in compared.pairs]
    lanes = [
        Lane(
            reference,
            output,
            i % COLOURS + 1 if reference else 0,
            bars(compared.names, compared.active, reference),
            bars(compared.output_names, compared.output_active, output),
        )
        for i, (reference, output) in enumerate(people)
    ]
    return TimelineRow(
        begin,
        end,
        [lane for lane in lanes if lane.reference or lane.output],
        [(kind, [bar(*span, kind) for span in stretches(compared.wrong[kind] > 0)]) for kind in KINDS],
        path(compared.active.sum(0) > 1),
        [bar(*span, "not scored") for span in stretches(~compared.scored)],
        ticks_of(begin, end, step_of(end - begin)),
    )


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row["reference"]["duration"])
