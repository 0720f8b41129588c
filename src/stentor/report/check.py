"""The page of `stentor prepare check`: what a data set holds and what looks wrong in it, with players."""

import io
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor import __version__
from stentor.data.dataset_report import RARE, DatasetReport
from stentor.data.outliers import KINDS, CheckedRecord
from stentor.errors import StentorError
from stentor.report.drawings import environment, template_source
from stentor.report.sounds import data_url

PLAYERS = 8
"""Players of each finding."""
LONGEST = 20.0
"""Seconds of a recording that a player holds."""
BUDGET = 8_000_000
"""Bytes of sound in one page."""
SILENT_KINDS = ("unusable",)
TITLES = {
    "length": ("Length", "seconds", "{:.1f} s"),
    "rate": ("Speaking rate", "words per second (characters of scripts without spaces)", "{:.1f}"),
    "level": ("Loudness", "level of the loud parts, dBFS", "{:.0f} dB"),
}


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


def render(report: DatasetReport) -> str:
    """The page, as one file that loads nothing from elsewhere and runs no script."""
    pages = environment()
    spare = BUDGET
    findings = []
    for finding in report.findings:
        records: list[dict[str, Any]] = []
        for number, (record, row) in enumerate(zip(finding.records, finding.rows)):
            sound = None
            if number < PLAYERS and finding.kind not in SILENT_KINDS and spare > 0:
                sound = sound_of(row)
                spare -= len(sound or "")
            records.append({**record, "sound": sound})
        title, about = KINDS[finding.kind]
        finding_page = {"kind": finding.kind, "title": title, "about": about, "count": finding.count}
        findings.append({**finding_page, "records": records})
    return pages.get_template("check.html").render(
        report=report,
        style=template_source(pages, "report.css"),
        charts=[bars(name, data) for name, data in report.histograms.items()],
        findings=findings,
        strange=[c for c in report.characters if c["outside"]],
        rare=[c for c in report.characters if c["rare"] and not c["outside"]],
        few=RARE,
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M"),
    )


def bars(name: str, data: dict[str, Any]) -> Bars:
    """A histogram of the report, drawn."""
    title, note, form = TITLES[name]
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


def sound_of(row: CheckedRecord) -> str | None:
    """The first seconds of a record as a data: URL of an MP3; None when it cannot be decoded."""
    import soundfile

    from stentor.data.load_audio import load_audio

    if row.cut is None:
        return None
    try:
        audio = load_audio(row.cut)[: round(LONGEST * 16000)]
    except StentorError:
        return None
    kind, mime = ("MP3", "mpeg") if "MP3" in soundfile.available_formats() else ("WAV", "wav")
    file = io.BytesIO()
    soundfile.write(file, np.clip(audio, -1, 1), 16000, format=kind)  # LAME aborts the process at huge samples
    return data_url(f"audio/{mime}", file.getvalue())
