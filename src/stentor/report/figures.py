"""Line charts as plain data for the report's template: SVG paths, ticks and the values to show under the pointer.

The drawing is split in two so that it stays crisp at any width: lines are paths in the box of svg.py with strokes of
constant width; tick labels are text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from stentor.report.svg import SIZE, Tick

POINTS = 400
"""Most points of a curve in the page; longer curves are drawn by the mean, lowest and highest of each stretch."""
LETTER, LINE = 3.0, 8.0
"""Width of a letter and height of a line of the texts beside points, in percent of a narrow chart."""


@dataclass
class Curve:
    """One line of a chart: values `ys` at optimizer steps `xs` (ascending, finite)."""

    name: str
    xs: list[float]
    ys: list[float]
    labels: Sequence[str] = ()
    """Texts beside the points."""
    faint: "Curve | None" = None
    """Another line in the same colour, drawn faintly."""


@dataclass
class ChartLine:
    """A curve as it is drawn."""

    name: str
    path: str
    """The line that is read: smoothed when the curve is dense and noisy."""
    raw: str = ""
    """The logged values behind a smoothed line, drawn faintly; empty when the line shows them already."""
    dots: str = ""
    """Marks of single values (evaluations)."""
    best: tuple[float, float] | None = None
    """Place of the best value in percent (left, bottom)."""
    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)
    last: str = ""
    labels: list[tuple[float, float, str]] = field(default_factory=list)
    """Texts and their places in percent (left, bottom)."""


@dataclass
class Chart:
    """A chart, ready for the template."""

    title: str
    note: str
    lines: list[ChartLine]
    xticks: list[Tick]
    yticks: list[Tick]
    borders: list[Tick]
    """Where a new stage begins."""
    summary: str
    """Description of the chart for screen readers."""
    percent: bool
    bounds: tuple[float, float, float, float]
    """x from, x to, y from, y to; y in logarithms (base 10) when `log`."""
    log: bool
    ordered: bool = False
    """Whether the lines are steps of one scale, and so are their colours."""
    unit: str = ""
    """Unit of x; empty: optimizer steps."""
    group: str = ""
    """The heading that the chart stands under."""

    @property
    def is_point(self) -> bool:
        """Whether all values are at one x: such a chart is a row of a table."""
        return len({x for line in self.lines for x in line.xs}) <= 1


@dataclass(frozen=True)
class ChartStyle:
    """Style of the curves of a chart."""

    note: str = ""
    percent: bool = False
    """Values are shares, shown times 100."""
    zero: bool = False
    """The axis starts at 0."""
    marks: bool = False
    """Dots at each value."""
    best: str | None = None
    """`min` or `max`, to mark that value."""
    smooth: bool = False
    """Allow a moving average."""
    log: bool | None = None
    """None: decided by the spread."""
    ordered: bool = False
    """The curves are steps of one scale."""
    unit: str = ""
    """Unit of x; empty: optimizer steps."""
    group: str = ""
    """See `Chart.group`."""


PLAIN = ChartStyle()


def chart(
    title: str, curves: Sequence[Curve], style: ChartStyle = PLAIN, borders: Sequence[tuple[float, str]] = ()
) -> Chart:
    """A chart of at least one curve with a point or more. `borders`: steps at which a stage begins, with its name."""
    ys = [y for c in curves for y in c.ys]
    log = style.log
    if log is None:
        log = min(ys) > 0 and max(ys) / min(ys) > 30
    low, high, values = _scale(min(ys), max(ys), zero=style.zero, log=log, percent=style.percent)
    xs = [x for curve in curves for c in (curve, curve.faint) if c for x in (c.xs[0], c.xs[-1])]
    x0, x1 = _x_bounds(min(xs), max(xs)) if style.unit else (0.0, max(1.0, *xs))

    def left(x: float) -> float:
        return (x - x0) / (x1 - x0)

    def up(y: float) -> float:
        y = math.log10(y) if log else y
        return min(1.0, max(0.0, (y - low) / (high - low)))

    lines, averaged = [], 0
    for c in curves:
        width = _smoothing(c) if style.smooth else 1
        averaged = max(averaged, width)
        shown = Curve(c.name, c.xs, _moving_average(c.ys, width)) if width > 1 else c
        thin = _thin(shown)
        line = ChartLine(
            name=c.name,
            path=_path([(left(x), up(y)) for x, y in zip(thin.xs, thin.ys)]),
            raw=_path([(left(x), up(y)) for x, y in _envelope(c)]) if width > 1 or len(c.xs) > POINTS else "",
            xs=[float(f"{x:.3g}") if style.unit else round(x) for x in thin.xs],
            ys=[float(f"{y:.4g}") for y in thin.ys],
            last=value_text(c.ys[-1], style.percent),
            labels=[(round(100 * left(x), 2), round(100 * up(y), 2), text) for x, y, text in zip(c.xs, c.ys, c.labels)],
        )
        if c.faint:
            line.raw = _path([(left(x), up(y)) for x, y in zip(c.faint.xs, c.faint.ys)])
        if style.marks or len(c.xs) == 1:
            line.dots = "".join(f"M{_px(left(x))} {_px(1 - up(y))}h0" for x, y in zip(thin.xs, thin.ys))
        if style.best is not None:
            sign = 1 if style.best == "min" else -1
            at = min(range(len(c.ys)), key=lambda i: (sign * c.ys[i], -i))  # of equal values the later one
            line.best = (round(100 * left(c.xs[at]), 2), round(100 * up(c.ys[at]), 2))
        lines.append(line)
    _keep_apart(lines)
    notes = [style.note] if style.note else []
    if log:
        notes.append("log scale")
    if averaged > 1:
        notes.append(f"bold: mean of {averaged} rows")
    return Chart(
        title=title,
        note=", ".join(notes),
        lines=lines,
        xticks=[Tick(round(100 * left(v), 2), _x_text(v, style)) for v in _steps(x0, x1, 0.0 if style.unit else 1.0)],
        yticks=[Tick(round(100 * up(v), 2), text) for v, text in values],
        borders=[Tick(round(100 * left(x), 2), name) for x, name in borders if x0 <= x <= x1],
        summary=f"{title}. " + " ".join(_sentence(c, style) for c in curves),
        percent=style.percent,
        bounds=(x0, x1, low, high),
        log=log,
        ordered=style.ordered,
        unit=style.unit,
        group=style.group,
    )


def values(chart: Chart) -> dict[str, Any]:
    """Values that `charts.js` shows of a chart under the pointer, as plain data."""
    lines = [{"name": line.name, "xs": line.xs, "ys": line.ys} for line in chart.lines]
    return {key: getattr(chart, key) for key in ("percent", "bounds", "log", "ordered", "unit")} | {"lines": lines}


def value_text(value: float, percent: bool = False) -> str:
    """A value as it is written beside a chart."""
    if percent:
        return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"
    if value == 0:
        return "0"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        text = f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e")
        return text if abs(value) < 1e-3 else step_text(value)
    return f"{value:.4g}"


def step_text(value: float) -> str:
    """A count as an axis label: `800`, `1.5k`, `20k`, `3M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def _x_text(x: float, style: ChartStyle) -> str:
    return f"{x:.3g} {style.unit}" if style.unit else step_text(x)


def _sentence(curve: Curve, style: ChartStyle) -> str:
    def point(k: int) -> str:
        at = _x_text(curve.xs[k], style) if style.unit else f"step {curve.xs[k]:g}"
        return f"{value_text(curve.ys[k], style.percent)} at {at}"

    low = min(range(len(curve.ys)), key=curve.ys.__getitem__)
    return f"{curve.name}: {point(0)}, {point(-1)}, lowest {point(low)}."


def _x_bounds(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis that counts no steps: it begins at 0, unless all there is lies in its upper half."""
    x0 = 0.0
    if high / 2 < low < high:
        step = _nice((high - low) / 4)
        x0 = math.floor(low / step) * step
    return x0, x0 + 1.05 * max(0.1, high - x0)


def _keep_apart(lines: Sequence[ChartLine]) -> None:
    """Move each text beside a point that would lie over an earlier one up or down, by lines of text."""
    placed: list[tuple[float, float, str]] = []

    def free(left: float, bottom: float, text: str) -> bool:
        end = left + LETTER * (len(text) + 1)
        beside = (end <= x or x + LETTER * (len(t) + 1) <= left or abs(bottom - y) >= LINE for x, y, t in placed)
        return 0 <= bottom <= 100 and all(beside)

    for line in lines:
        for at, (left, bottom, text) in enumerate(line.labels):
            offsets = (k * LINE for n in range(len(placed) + 1) for k in (n, -n))
            bottom += next((offset for offset in offsets if free(left, bottom + offset, text)), 0.0)
            line.labels[at] = (left, round(bottom, 2), text)
            placed.append(line.labels[at])


def _scale(
    low: float, high: float, *, zero: bool, log: bool, percent: bool
) -> tuple[float, float, list[tuple[float, str]]]:
    """Ends of the value axis (logarithms when `log`) and its ticks with their labels."""
    if log:
        a, b = math.log10(low), math.log10(high)
        pad = 0.04 * (b - a)
        a, b = a - pad, b + pad
        mantissas = (1,) if b - a > 3 else (1, 3) if b - a > 1.7 else (1, 2, 5)
        decades = range(math.floor(a), math.ceil(b) + 1)
        ticks = [m * 10.0**d for d in decades for m in mantissas if a <= math.log10(m * 10.0**d) <= b]
        if b - a > 6:
            ticks = ticks[:: math.ceil((b - a) / 6)]
        return a, b, [(t, _tick_text(t, percent)) for t in ticks]
    most = 1.0 if percent and high <= 1.0 else math.inf
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        pad = abs(high) * 0.1 or 1.0
        low, high = (0.0, high + pad) if zero and low >= 0 else (low - pad, high + pad)
    step = _nice((high - low) / 4)
    low = math.floor(low / step + 1e-9) * step
    room = 0.02 * (high - low)  # a line along the very top would hide in the frame
    high = min(most, math.ceil((high + room) / step - 1e-9) * step)
    return low, high, [(t, _tick_text(t, percent)) for t in _range(low, high, step)]


def _steps(low: float, high: float, least: float) -> list[float]:
    step = max(least, _nice((high - low) / 5))
    return _range(math.ceil(low / step - 1e-9) * step, high, step)


def _range(low: float, high: float, step: float) -> list[float]:
    return [round(low + i * step, 12) for i in range(math.floor((high - low) / step + 1e-6) + 1)]


def _nice(step: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `step`."""
    scale = 10.0 ** math.floor(math.log10(step))
    return next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= step * 0.999999)


def _tick_text(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.4g} %"
    if value and (abs(value) >= 1e4 or abs(value) < 1e-3):
        if abs(value) >= 1:
            return step_text(value)
        return f"{value:.2g}".replace("e-0", "e-")
    return f"{value:.4g}"


def _smoothing(curve: Curve) -> int:
    """Rows that a moving average spans: 1 (none) for short or already smooth curves."""
    n = len(curve.ys)
    return 1 if n < 60 else max(5, 2 * (n // 60) + 1)


def _moving_average(values: Sequence[float], width: int) -> list[float]:
    """Centred mean over `width` values, narrower at both ends so that nothing is shifted."""
    sums = [0.0]
    for v in values:
        sums.append(sums[-1] + v)
    means = []
    for i in range(len(values)):
        half = min(width // 2, i, len(values) - 1 - i)
        means.append((sums[i + half + 1] - sums[i - half]) / (2 * half + 1))
    return means


def _stretches(n: int) -> list[range]:
    parts = min(n, POINTS)
    return [range(i * n // parts, (i + 1) * n // parts) for i in range(parts)]


def _thin(curve: Curve) -> Curve:
    """The curve with at most `POINTS` points: means of equal stretches, the last point kept."""
    if len(curve.xs) <= POINTS:
        return curve
    parts = _stretches(len(curve.xs))
    xs = [fmean(curve.xs[i] for i in part) for part in parts]
    ys = [fmean(curve.ys[i] for i in part) for part in parts]
    return Curve(curve.name, [*xs[:-1], curve.xs[-1]], [*ys[:-1], curve.ys[-1]])


def _envelope(curve: Curve) -> list[tuple[float, float]]:
    """Lowest and highest value of each stretch, in order: no spike is lost to thinning."""
    points = []
    for part in _stretches(len(curve.xs)):
        ends = {min(part, key=curve.ys.__getitem__), max(part, key=curve.ys.__getitem__)}
        points += [(curve.xs[i], curve.ys[i]) for i in sorted(ends)]
    return points


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_px(x)} {_px(1 - y)}" for x, y in points)


def _px(share: float) -> str:
    return f"{share * SIZE:.1f}".rstrip("0").rstrip(".")
