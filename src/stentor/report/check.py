"""The page of `stentor prepare check`: what a data set holds and what looks wrong in it, with players."""

from typing import Any

from stentor.data.outliers import KINDS, CheckedRecord
from stentor.dataloading.dataset_report import RARE, DatasetReport
from stentor.errors import StentorError
from stentor.report.pages import page
from stentor.report.sounds import RATE, SoundBudget, mp3
from stentor.report.svg import bars

PLAYERS = 8
"""Players of each finding."""
LONGEST = 20.0
"""Seconds of a recording that a player holds."""
SILENT_KINDS = ("unusable",)
TITLES = {
    "length": ("Length", "seconds", "{:.1f} s"),
    "rate": ("Speaking rate", "words per second (characters of scripts without spaces)", "{:.1f}"),
    "level": ("Loudness", "level of the loud parts, dBFS", "{:.0f} dB"),
}


def render(report: DatasetReport) -> str:
    """The page, which runs no script."""
    budget = SoundBudget()
    findings = []
    for finding in report.findings:
        records: list[dict[str, Any]] = []
        for number, (record, row) in enumerate(zip(finding.records, finding.rows)):
            heard = number < PLAYERS and finding.kind not in SILENT_KINDS and budget.left > 0
            sound = sound_of(row) if heard else None
            records.append({**record, "sound": sound if sound and budget.take(sound) else None})
        title, about = KINDS[finding.kind]
        finding_page = {"kind": finding.kind, "title": title, "about": about, "count": finding.count}
        findings.append({**finding_page, "records": records})
    return page(
        "check.html",
        report=report,
        charts=[bars(data, *TITLES[name]) for name, data in report.histograms.items()],
        findings=findings,
        strange=[c for c in report.characters if c["written"] != c["character"]],
        rare=[c for c in report.characters if c["rare"] and c["written"] == c["character"]],
        few=RARE,
    )


def sound_of(row: CheckedRecord) -> str | None:
    """The first seconds of a record as a data: URL; None when it cannot be decoded."""
    from stentor.data.load_audio import load_audio

    if row.cut is None:
        return None
    try:
        return mp3(load_audio(row.cut)[: round(LONGEST * RATE)])
    except StentorError:
        return None
