"""Streams for the report: error rate over latency, a line for each model and how it answers while one speaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.metrics.format import figure, is_rate, label
from stentor.report.figures import Chart, ChartStyle, Curve, chart

LATENCY, FAINT = "final_p50", "final_p90"

Row = Mapping[str, Any]


@dataclass
class StreamFigures:
    """All that was measured on one data source."""

    data: str
    chart: Chart | None
    """None: fewer than two latencies of recognised words."""
    head: list[str]
    rows: list[tuple[str, list[str]]]
    """Name of the model and policy, and the cells of `head`."""


def stream_figures(rows: Sequence[Row]) -> list[StreamFigures]:
    """Rows are `{model, policy, data, delay, scores}`; of the same delay the last one counts."""
    last = {(row["data"], row["model"], row["policy"], row["delay"]): row for row in rows}
    by_data: dict[str, list[Row]] = {}
    for row in last.values():
        by_data.setdefault(row["data"], []).append(row)
    return [_figures(data, rows) for data, rows in by_data.items()]


def _figures(data: str, rows: Sequence[Row]) -> StreamFigures:
    several = len({row["model"] for row in rows}) > 1
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["delay"]):
        lines.setdefault(f"{row['model']}, {row['policy']}" if several else row["policy"], []).append(row)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row["scores"]))
    main = metrics[0]
    curves = [curve for name, points in lines.items() if (curve := _curve(name, points, main))]
    style = ChartStyle(f"{rows[0]['records']:,} records", is_rate(main), zero=True, marks=True, log=False, unit="s")
    cells = [
        (name, [f"{row['delay']:g}", *(figure(metric, row["scores"].get(metric)) for metric in metrics)])
        for name, points in lines.items()
        for row in points
    ]
    drawn = chart(f"{label(main)} over latency", curves, style) if curves else None
    return StreamFigures(
        data, None if drawn is None or drawn.is_point else drawn, ["delay", *map(label, metrics)], cells
    )


def _curve(name: str, rows: Sequence[Row], metric: str) -> Curve | None:
    """Medians, with the times until nine words in ten stay behind them; None where no word was recognised."""
    curves = []
    for latency in (LATENCY, FAINT):
        known = [row for row in rows if row["scores"].get(latency) is not None]
        known.sort(key=lambda row: row["scores"][latency])
        xs, ys = ([row["scores"][key] for row in known] for key in (latency, metric))
        curves.append(Curve(name, xs, ys, [f"{row['delay']:g} s" for row in known]))
    curves[0].faint = curves[1]
    return curves[0] if curves[0].xs else None
