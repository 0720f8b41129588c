"""A toolkit of drawings in pages: what is drawn lies in a box of `SIZE` x `SIZE`, y down, that the browser stretches;
texts beside it are placed in percent and never stretched."""

from dataclasses import dataclass, field
from math import ceil
from typing import Any

SIZE = 1000
TICKS = (0.5, 1, 2, 5, 10)
"""Seconds between the ticks of a line: the first that gives at most `MOST_TICKS`."""
MOST_TICKS = 13


@dataclass
class Tick:
    at: float
    """Percent from the left or from the bottom."""
    label: str


@dataclass
class Span:
    """A stretch of time in a row of a drawing: a word, or a turn of a speaker."""

    left: float
    """In units of `SIZE`, as the width is."""
    width: float
    start: float
    """Seconds in the drawing's sound."""
    end: float
    title: str
    kind: str = ""
    text: str = ""


def span(start: float, end: float, line: tuple[float, float], title: str, kind: str = "", text: str = "") -> Span:
    """A label from `start` to `end`, as far as it lies in a line of the drawing (begin and end in seconds)."""
    scale = SIZE / (line[1] - line[0])
    left = (max(start, line[0]) - line[0]) * scale
    return Span(left, (min(end, line[1]) - line[0]) * scale - left, start, end, title, kind, text)


def spans_of(seconds: float, longest: float) -> list[tuple[float, float]]:
    """Begin and end of lines of the same length."""
    count = max(1, ceil(seconds / longest - 1e-6))
    return [(i * seconds / count, (i + 1) * seconds / count) for i in range(count)]


def step_of(seconds: float) -> float:
    """Seconds between the ticks of a line."""
    return next((t for t in TICKS if seconds / t <= MOST_TICKS), TICKS[-1])


def ticks_of(begin: float, end: float, step: float) -> list[Tick]:
    """The ticks between two times, at multiples of `step` seconds."""
    times = [i * step for i in range(ceil(begin / step - 1e-9), int(end / step + 1e-9) + 1)]
    return [Tick(100 * (t - begin) / (end - begin), clock(t, step)) for t in times]


def clock(seconds: float, step: float = 1.0) -> str:
    """`7`, `7.5` (where `step` is a fraction), `1:07`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f}" if step < 1 else f"{seconds:.0f}"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


@dataclass
class Bars:
    """A histogram as it is drawn: bars in the box."""

    title: str
    note: str
    bars: list[tuple[float, float, float, str]]
    """left, width, height (of `SIZE`), what it says."""
    xticks: list[tuple[float, str]]
    yticks: list[tuple[float, str]]
    facts: str
    summary: str
    lower: list[tuple[float, float, float, str]] | None = None
    """The part of each bar that stands apart, such as what was kept. None: bars have no parts."""
    limits: list[tuple[float, str]] = field(default_factory=list)
    """Thresholds: percent from the left, and what each says."""


def bars(data: dict[str, Any], title: str, note: str, form: str) -> Bars:
    """A histogram (see `stentor.dataloading.dataset_report.histogram`), drawn; `form` formats a value for people."""
    counts, start, step = data["counts"], data["start"], data["step"]
    most, width = max(counts), SIZE / len(counts)
    decimals = max(0, -int(f"{step:e}".split("e")[1]))
    edge = [f"{start + i * step:.{decimals}f}" for i in range(len(counts) + 1)]
    drawn = [
        (i * width + 0.06 * width, 0.88 * width, max(SIZE * n / most, 6), f"{edge[i]} to {edge[i + 1]}: {n:,}")
        for i, n in enumerate(counts)
        if n
    ]
    every = -(-len(counts) // 5)
    beyond = [f"{data[side]:,} {word}" for side, word in (("below", "smaller"), ("above", "larger")) if data[side]]
    low, middle, high = (form.format(data[k]) for k in ("min", "median", "max"))
    return Bars(
        title,
        note,
        drawn,
        [(100 * i / len(counts), edge[i]) for i in range(0, len(counts) + 1, every)],
        [(0.0, "0"), (50.0, f"{most / 2:,.0f}"), (100.0, f"{most:,}")] if most > 1 else [(0.0, "0"), (100.0, "1")],
        f"median {middle}" + (f"; not drawn: {', '.join(beyond)}" if beyond else ""),
        f"{title}: from {low} to {high}, median {middle}.",
    )
