"""The page of `stentor prepare segments`: what each stage kept and dropped of a corpus, and why, with players."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.record_table import RecordTable
from stentor.dataloading.dataset_report import histogram
from stentor.errors import StentorError
from stentor.inference.segments.base import Limit, Stage
from stentor.report.pages import page
from stentor.report.sounds import RATE, SoundBudget, mp3
from stentor.report.svg import Bars, bars

KEPT, DROPPED = 8, 3
"""Segments to hear: of those kept, and of each reason."""
LONGEST = 8.0
"""Seconds of a segment that a player holds."""
BUDGET = 6_000_000
"""Bytes of sound in one page."""
TITLES = {
    "duration": ("Length", "seconds of a segment", "{:.1f} s"),
    "snr": ("Signal-to-noise ratio", "dB", "{:.0f} dB"),
    "bandwidth": ("Bandwidth", "Hz that the sound reaches up to", "{:.0f} Hz"),
    "clipped": ("Clipping", "share of samples at full scale", "{:.4f}"),
    "level": ("Level", "of the loud parts, dBFS", "{:.0f} dB"),
    "language_probability": ("Language", "probability of the likeliest one", "{:.2f}"),
    "confidence": ("Confidence", "mean probability of a token", "{:.2f}"),
    "repeats": ("Repetition", "how often a phrase repeats in a row", "{:.0f}"),
    "compression_ratio": ("Compression", "bytes of the text over those after zlib", "{:.1f}"),
    "speaking_rate": ("Speaking rate", "letters a second", "{:.1f}"),
    "disagreement": ("Disagreement", "word error rate between two recognisers", "{:.2f}"),
}
"""Title, note and format of the measures that stages of this package take."""


def render(
    folder: Path,
    summary: dict[str, Any],
    stages: Sequence[Stage],
    records: RecordTable[dict[str, Any]],
    rejects: RecordTable[dict[str, Any]],
) -> str:
    """The page, which runs no script. `folder` is what relative paths of the audio start from."""
    budget = SoundBudget(BUDGET)
    rows: dict[tuple[str, str], list[int]] = {}
    for row, record in enumerate(rejects):
        rows.setdefault((record["stage"], record["reason"]), []).append(row)
    reasons = [
        {**dropped, "stage": stage["name"], "reason": reason, "examples": clips_of(folder, examples, DROPPED, budget)}
        for stage in summary["stages"]
        for reason, dropped in stage["dropped"].items()
        for examples in [rejects.select(rows[stage["name"], reason])]
    ]
    speakers: dict[str, float] = {}
    for record in records:
        if name := record.get("speaker"):
            speakers[name] = speakers.get(name, 0.0) + record["duration"] / 3600
    return page(
        "corpus.html",
        summary=summary,
        charts=list(filter(None, (_chart(m, stages, records, rejects) for m in _measures(stages)))),
        reasons=sorted(reasons, key=lambda r: -r["hours"]),
        kept=clips_of(folder, records, KEPT, budget),
        groups={
            "Languages": [row for row in summary["languages"].items() if row[0] != "unknown"],
            "Speakers": sorted(speakers.items(), key=lambda s: -s[1]),
        },
    )


def _measures(stages: Sequence[Stage]) -> list[str]:
    return list(dict.fromkeys(["duration", *(limit.measure for stage in stages for limit in stage.limits)]))


def _chart(
    measure: str, stages: Sequence[Stage], records: Sequence[dict[str, Any]], rejects: Sequence[dict[str, Any]]
) -> Bars | None:
    """All segments that were measured, those that were kept in front, and the thresholds."""
    kept = np.array([r[measure] for r in records if r.get(measure) is not None], float)
    # A stretch without speech is no segment: its length would say nothing.
    dropped = [r[measure] for r in rejects if r.get(measure) is not None and r["reason"] != "no_speech"]
    values = np.array([*kept, *dropped], float)
    if not len(values):
        return None
    data = histogram(values.tolist())
    start, step, counts = data["start"], data["step"], data["counts"]
    drawn = bars(data, *TITLES.get(measure, (measure, "", "{:g}")))
    width, most = 1000 / len(counts), max(counts)
    index = np.floor(kept / step).astype(int) - round(start / step)
    inside = np.bincount(index[(index >= 0) & (index < len(counts))], minlength=len(counts))
    drawn.lower = [
        (i * width + 0.06 * width, 0.88 * width, 1000 * n / most, f"kept: {n:,}") for i, n in enumerate(inside) if n
    ]
    for stage, limit in ((s, li) for s in stages for li in s.limits if li.measure == measure):
        threshold = getattr(stage, limit.key)
        if threshold is not None and start <= threshold <= start + step * len(counts):
            drawn.limits.append((100 * (threshold - start) / (step * len(counts)), _says(limit, threshold)))
    drawn.facts = f"{len(kept):,} kept of {len(values):,}, {drawn.facts}"
    return drawn


def _says(limit: Limit, threshold: float) -> str:
    return f"{'≤' if limit.upper else '≥'} {threshold:g}"


def clips_of(folder: Path, records: Sequence[dict[str, Any]], count: int, budget: SoundBudget) -> list[dict[str, Any]]:
    """Some records, evenly spread, with their sound as long as there is room in the page."""
    from stentor.audio.io import read
    from stentor.audio.selection import Selection

    chosen = []
    for record in records[:: -(-len(records) // count) or 1][:count]:
        sound = ""
        if budget.left > 0 and "audio_path" in record:
            seconds = min(record.get("duration", LONGEST), LONGEST)
            with contextlib.suppress(StentorError):  # deleted since
                path = folder / record["audio_path"]
                channel = record.get("channel") if "start" in record else None
                audio = read(path, RATE, record.get("start", 0.0), seconds, False, Selection(channel))
                sound = mp3(audio)
            if not budget.take(sound):
                sound = ""
        threshold = record.get("threshold")
        against = ", ".join(map(str, threshold)) if isinstance(threshold, list) else threshold
        value = "" if record.get("value") is None else f"{record['value']}" + (f" against {against}" if against else "")
        facts = [f"{record[k]}" for k in ("language", "speaker") if record.get(k)]
        facts += [f"{k} {TITLES[k][2].format(record[k])}" for k in ("snr", "confidence") if record.get(k) is not None]
        shown = {"text": "", "duplicate_of": "", "duration": 0.0, **record}
        chosen.append({**shown, "sound": sound, "value": value, "facts": facts})
    return chosen
