"""Histograms of pages, as bars in SVG."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Bars:
    """A histogram as it is drawn: bars in a box of 1000 x 1000, y down."""

    title: str
    note: str
    bars: list[tuple[float, float, float, str]]
    """left, width, height (all of 1000), what it says."""
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
    most, width = max(counts), 1000 / len(counts)
    decimals = max(0, -int(f"{step:e}".split("e")[1]))
    edge = [f"{start + i * step:.{decimals}f}" for i in range(len(counts) + 1)]
    drawn = [
        (i * width + 0.06 * width, 0.88 * width, max(1000 * n / most, 6), f"{edge[i]} to {edge[i + 1]}: {n:,}")
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
