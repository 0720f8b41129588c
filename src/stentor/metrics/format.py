"""Formatting of metrics and figures for people: in progress lines, reports and model cards."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

ERROR_RATES = frozenset({"wer", "cer", "mer", "der", "jer", "ser", "eer", "cpwer", "tcpwer"})
RATES = ERROR_RATES | {"chrf", "ece", "accuracy", "precision", "recall", "f1", "within", "matched", "confused", "moved"}
"""Parts of names of metrics that are shares."""

LABELS = {
    "der_collar": "DER, 0.25 s collar",
    "der_no_overlap": "DER without overlap",
    "speaker_count": "right speaker count",
    "frame_f1": "frame F1",
    "chrf": "chrF",
    "cpwer": "cpWER",
    "tcpwer": "tcpWER",
    "aas_ms": "accumulated average shift",
}

MINOR = frozenset(
    {
        "aas_ms",
        *(f"word_{slot}_{kind}_ms" for slot in ("start", "end") for kind in ("mean", "median")),
        *(f"{name}_{tolerance}ms" for name in ("within", "word_f1") for tolerance in (20, 100, 200)),
    }
)
"""Metrics that say nearly the same as another one: left out where there is little room."""


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text, each column as wide as its longest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def label(metric: str) -> str:
    """A metric's name for people: `WER`, `CTC WER`, `mean boundary error`, `word F1, 50 ms collar`."""
    if parts := re.fullmatch(r"word_(time|start|end)_(mean|median)_ms", metric):
        return f"{parts[2]} {'boundary' if parts[1] == 'time' else parts[1]} error"
    if parts := re.fullmatch(r"within_(\d+)ms", metric):
        return f"boundaries within {parts[1]} ms"
    if parts := re.fullmatch(r"word_f1_(\d+)ms", metric):
        return f"word F1, {parts[1]} ms collar"
    if metric in LABELS:
        return LABELS[metric]
    words = metric.replace("_", " ")
    return words.upper() if is_rate(metric) and len(metric.rpartition("_")[2]) == 3 else words


def deciding_first(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a set with the one that decides first: the word error rate leads word times."""
    return {"wer": scores["wer"], **scores} if "wer" in scores and "word_time_mean_ms" in scores else dict(scores)


def is_rate(metric: str) -> bool:
    """Whether a metric is a share that people read in percent: one of its parts (`dev/ctc_wer`) is a known rate."""
    name = metric.lower().replace("/", "_")
    return bool(RATES & set(name.split("_"))) or name.endswith("speaker_count")


def figure(metric: str, value: float | None) -> str:
    """A metric's value: `3.61 %` for rates, `12.3 ms` for times, `0.0418` for the rest; `–` for none."""
    if value is None or math.isnan(value):
        return "–"
    if is_rate(metric):
        return f"{100 * value:.2f} %"
    if metric.endswith("_ms"):
        return f"{value:,.0f} ms" if abs(value) >= 100 else f"{value:.1f} ms"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(change: float | None) -> str:
    """A relative change: `−25.0 %`, `+3.1 %`; `–` for none."""
    if change is None or math.isnan(change):
        return "–"
    return f"{100 * change:+.1f} %".replace("-", "−")


def interval(metric: str, score: Mapping[str, Any]) -> str:
    """The 95 % interval of a score (`low`, `high`) as `2.90–4.41 %`; empty when it has none."""
    low, high = score.get("low"), score.get("high")
    if low is None or high is None or low == high:  # of a single item all resamples are the same
        return ""
    if is_rate(metric):
        return f"{100 * low:.2f}–{100 * high:.2f} %"
    if metric.endswith("_ms"):
        return f"{low:.1f}–{high:.1f} ms"
    return f"{low:.4g}–{high:.4g}"


def der_parts(score: Mapping[str, Any]) -> str:
    """Components of a diarization error rate, and how it is scored; empty for other scores."""
    details = score.get("details") or {}
    if "miss_rate" not in details:
        return ""
    parts = [("missed", "miss"), ("false alarm", "false_alarm"), ("confusion", "confusion")]
    collar = f"{details['collar']:g} s collar" if details["collar"] else "no collar"
    return (
        ", ".join(f"{name} {100 * details[f'{key}_rate']:.1f} %" for name, key in parts)
        + f"; {collar}, overlap {'' if details['overlap'] else 'not '}scored"
    )


def loss_parts(score: Mapping[str, Any]) -> str:
    """Records and targets that an evaluation loss is the mean of; empty for other scores."""
    details = score.get("details") or {}
    targets = details.get("targets")
    return f"{details['items']:,} records, {sum(targets.values()):,} targets" if targets else ""


def duration(seconds: float) -> str:
    """A length of time: `48 s`, `3 min 20 s`, `2 h 05 min`."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s" if seconds >= 10 or rounded == seconds else f"{seconds:.1f} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def count(number: float) -> str:
    """A large number in short: `950`, `12.3 k`, `4.21 M`, `7.30 G`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:,.0f}"
