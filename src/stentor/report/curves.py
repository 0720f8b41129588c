"""Charts of the curves in metrics.jsonl."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.metrics.format import MINOR, deciding_first, is_rate, label
from stentor.report.figures import Chart, ChartLine, ChartStyle, Curve, chart

HIGHER_IS_BETTER = {"accuracy", "f1", "precision", "recall", "similarity", "mos", "within", "matched", "chrf", "count"}

LOOP = (
    ("audio_seconds_per_second", "Audio throughput", "seconds of audio per second", False),
    ("tokens_per_second", "Token throughput", "filled sequence positions per second", False),
    ("padding", "Padding", "share of sequence positions", True),
    ("data_wait", "Waiting for data", "share of the time", True),
    ("skipped", "Skipped steps", "their loss or gradient was not finite", False),
    ("memory_gb", "Memory", "GB", False),
    ("gpu_utilization", "GPU utilisation", "share of the time with a kernel running", True),
    ("mfu", "Model FLOPs utilisation", "share of the GPU's peak", True),
)
"""Charts of the training loop: key, title, note, whether the value is a share."""


QUALITY, OPTIMISATION, THROUGHPUT = "Quality", "Optimisation", "Throughput and memory"
"""Groups of charts."""


def evaluated(key: str) -> tuple[str, str]:
    """Set and metric of a key `eval/SET/METRIC` of metrics.jsonl; empty texts for every other key."""
    kind, _, rest = key.partition("/")
    name, _, metric = rest.partition("/")
    return (name, metric) if kind == "eval" and metric else ("", "")


class Series:
    """The numbers in rows of metrics.jsonl, which may be added as they come."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self.values: dict[str, tuple[list[float], list[float]]] = {}
        """Per metric its (steps, values), finite ones only; the steps of several stages are laid end to end."""
        self.borders: list[tuple[float, str]] = []
        """Where stages begin, and their names."""
        self.rows = 0
        self._offset = self._last = 0.0
        self._stage: Any = None
        self.add(rows)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row.get("stage") != self._stage:
                if self.rows:
                    self._offset = self._last
                    self.borders.append((self._offset, f"stage {row.get('stage')}"))
                self._stage = row.get("stage")
            self.rows += 1
            self._last = self._offset + (row.get("step") or 0)
            for key, value in row.items():
                if key in ("step", "epoch", "time", "stage") or isinstance(value, bool):
                    continue
                if isinstance(value, (int, float)) and math.isfinite(value):
                    xs, ys = self.values.setdefault(key, ([], []))
                    xs.append(self._last)
                    ys.append(value)


def all_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Evaluation metrics first, then losses, then how the loop ran. Keys that are not known get a chart each."""
    return charts_of(Series(rows))


def _column(drawn: Chart, line: ChartLine) -> str:
    """Where a value is in the table: under its set, or under no heading where it is the chart's only one."""
    return line.name if len(drawn.lines) > 1 or drawn.group == QUALITY else ""


def charts_of(numbers: Series, loop: bool = True) -> list[Chart]:
    """As `all_charts`; without `loop` only what is learned: evaluation metrics, losses and learning rates."""
    series, borders = numbers.values, numbers.borders
    charts: list[Chart] = []

    def add(title: str, keys: Sequence[str], names: Sequence[str] | None = None, **options: Any) -> None:
        shown = [(k, n) for k, n in zip(keys, names or keys) if k in series]
        if shown:
            curves = [Curve(n, *series[k]) for k, n in shown]
            charts.append(chart(title, curves, ChartStyle(**{"group": OPTIMISATION, **options}), borders))

    _evaluation(series, add)
    rates = [k for k in series if k == "lr" or k.startswith("lr/")]
    add("Learning rate", rates, log=False, zero=True)
    if loop:
        _loop(series, add)
    return charts


@dataclass
class ChartGroup:
    """The charts under one heading, and in a table the metrics that were measured once."""

    name: str
    charts: list[Chart]
    head: list[str]
    """Names of the table's columns after the first."""
    rows: list[tuple[str, list[str]]]
    """A metric, and its value in each column."""
    folded: bool
    """Whether the group is closed at first."""


def grouped(charts: Sequence[Chart], sets: Sequence[str] = ()) -> list[ChartGroup]:
    """Charts by their group. A chart with one point becomes a row of a table, whose columns begin with `sets`."""
    groups = []
    for name in (QUALITY, OPTIMISATION, THROUGHPUT):
        points = [c for c in charts if c.group == name and c.is_point]
        columns = {c.title: {_column(c, line): line.last for line in c.lines} for c in points}
        found = dict.fromkeys(column for values in columns.values() for column in values)
        head = [*(name for name in sets if name in found), *(name for name in found if name not in sets)]
        rows = [(title, [values.get(column, "") for column in head]) for title, values in columns.items()]
        drawn = [c for c in charts if c.group == name and not c.is_point]
        if drawn or rows:
            groups.append(ChartGroup(name, drawn, head, rows, folded=name != QUALITY))
    return groups


def _evaluation(series: Mapping[str, Any], add: Callable[..., None]) -> None:
    """Charts of the evaluation metrics, with that of the training loss after the first."""
    metrics: dict[str, list[str]] = {}
    for key in series:
        metric = evaluated(key)[1]
        if metric and metric not in MINOR:
            metrics.setdefault(metric, []).append(key)
    terms = [m for m in metrics if m.startswith("loss_")]
    if len(terms) == 1:  # the same as the loss
        del metrics[terms[0]]
    families = {metric for numbered in _numbered(terms).values() for metric in numbered}
    codebooks = {k: keys for k, keys in metrics.items() if k in families}
    metrics = {k: keys for k, keys in metrics.items() if k not in families}
    for number, (metric, keys) in enumerate(deciding_first(metrics).items()):
        top = max(max(series[k][1]) for k in keys)
        low = min(min(series[k][1]) for k in keys)
        names = [evaluated(k)[0] for k in keys]
        shape = {"percent": is_rate(metric), "zero": is_rate(metric), "log": low > 0 and top / low > 8}
        note = "evaluation, ring: best"
        add(_title(metric), keys, names, note=note, marks=True, best=better_end(metric), group=QUALITY, **shape)
        if number == 0:
            _training_loss(series, add)
    if not metrics:
        _training_loss(series, add)
    for name in dict.fromkeys(evaluated(key)[0] for keys in codebooks.values() for key in keys):
        keys_of_set = [f"eval/{name}/{metric}" for metric in codebooks]
        numbers = _numbers(keys_of_set)
        add(
            f"Loss by codebook, {name}",
            keys_of_set,
            numbers,
            note="evaluation",
            marks=True,
            ordered=True,
            group=QUALITY,
        )


def _loop(series: Mapping[str, Any], add: Callable[..., None]) -> None:
    """Charts of how the loop ran; keys that are not known get a chart each."""
    add("Gradient norm", ["grad_norm"], note="before clipping", smooth=True)
    loop: dict[str, Any] = {"group": THROUGHPUT, "zero": True, "log": False}
    for key, title, note, percent in LOOP:
        add(title, [key], note=note, percent=percent, smooth=True, **loop)
    details = [k for k in series if k.startswith("memory/")]
    names = [k.removeprefix("memory/").removesuffix("_gb").replace("_", " ") for k in details]
    add("Memory in detail", details, names, note="GB", **loop)
    known = {"grad_norm", *(row[0] for row in LOOP)}
    for key in series:
        if key not in known and not key.startswith(("eval/", "train/", "lr", "memory/")):
            add(key, [key], smooth=True)


def compared(runs: Mapping[str, Series]) -> list[Chart]:
    """Charts with a line for each run: evaluation metrics set by set, the training loss, the learning rate. What only
    one of several runs measured is left out."""
    keys = list(dict.fromkeys(key for series in runs.values() for key in series.values))
    keys = [k for k in keys if evaluated(k)[1] not in ("", *MINOR)]
    sets = {evaluated(key)[0] for key in keys}
    charts: list[Chart] = []
    for key in [*keys[:1], "train/loss", *keys[1:], "lr"]:
        curves = [Curve(name, *series.values[key]) for name, series in runs.items() if key in series.values]
        if len(curves) < min(2, len(runs)):
            continue
        name, metric = evaluated(key)
        if not metric:
            title = {"train/loss": "Training loss", "lr": "Learning rate"}[key]
            rate = key == "lr"
            charts.append(chart(title, curves, ChartStyle(smooth=not rate, zero=rate, log=False if rate else None)))
            continue
        title = _title(metric) + (f", {name}" if len(sets) > 1 else "")
        rate = is_rate(metric)
        style = ChartStyle("evaluation, ring: best", rate, zero=rate, marks=True, best=better_end(metric))
        charts.append(chart(title, curves, style))
    return charts


def better_end(metric: str) -> str:
    """`max` for a metric whose higher values are better, else `min`."""
    return "max" if HIGHER_IS_BETTER & set(metric.lower().split("_")) else "min"


def _training_loss(series: Mapping[str, Any], add: Callable[..., None]) -> None:
    terms = [k for k in series if k.startswith("train/") and k != "train/loss"]
    codebooks = [k for numbered in _numbered(terms).values() for k in numbered]
    terms = [k for k in terms if k not in codebooks]
    losses = ["train/loss", *(terms if len(terms) > 1 or codebooks else [])]
    add("Training loss", losses, ["total", *(k.removeprefix("train/") for k in losses[1:])], smooth=True)
    add("Training loss by codebook", codebooks, _numbers(codebooks), smooth=True, ordered=True)


def _numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """Terms that are one loss by codebook, `codes_0`, `codes_1`, ..., by what they share."""
    by_stem: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        stem, _, number = name.rpartition("_")
        if stem and number.isdigit():
            by_stem.setdefault(stem, []).append((int(number), name))
    return {stem: [name for _, name in sorted(terms)] for stem, terms in by_stem.items() if len(terms) > 1}


def _numbers(names: Sequence[str]) -> list[str]:
    return [name.rpartition("_")[2] for name in names]


def _title(metric: str) -> str:
    """`CTC WER` for `ctc_wer`, `Loss, ctc` for `loss_ctc`."""
    if metric.startswith("loss_"):
        return f"Loss, {metric.removeprefix('loss_')}"
    words = label(metric)
    return words[0].upper() + words[1:] + (", ms" if metric.endswith("_ms") else "")
