"""Data set report: amounts of data, and records that are likely to be wrong.

`check` reads every transcript and decodes every file; its report is plain data (`DatasetReport.as_dict` is the JSON
file), drawn as a page by stentor.report.check.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.cut import Cut, UnusableRecord, language_of, speaker_of, text_of, words_of
from stentor.data.outliers import CONTROL_NAMES, KINDS, CheckedRecord, find_outliers, plural
from stentor.data.signal_stats import SignalStats, measure_cut
from stentor.errors import DataError
from stentor.models.contracts import Processor
from stentor.models.text.control_tokens import control_names
from stentor.sources.base import source_notes
from stentor.text.letters import changed_letters, same_letter
from stentor.text.normalize import plain_text

if TYPE_CHECKING:
    from stentor.sources.base import Source

MAX_BAD = 0.01
"""Share of unusable records above which the command fails."""
LISTED = 100
"""Records that are named for each finding; all are counted."""
RARE = 5
"""A character in fewer records than this is rare."""


@dataclass
class DataFinding:
    """Records of one kind of `KINDS`, the worst first."""

    kind: str
    count: int
    records: list[dict[str, Any]]
    """`{"id", "set", "detail", "text", "seconds"}` and where it is known `place`, "FILE:LINE"; at most `LISTED`."""
    rows: list[CheckedRecord] = field(default_factory=list, repr=False)
    """The same records, with their audio."""


@dataclass
class DatasetReport:
    """Contents and faults of one or several data sets."""

    sets: list[dict[str, Any]]
    totals: dict[str, Any]
    histograms: dict[str, dict[str, Any]]
    languages: list[dict[str, Any]]
    speakers: list[dict[str, Any]]
    texts: dict[str, Any]
    characters: list[dict[str, Any]]
    overlap: list[dict[str, Any]]
    findings: list[DataFinding]
    model: str | None = None

    @property
    def unusable_share(self) -> float:
        """Share of unusable records."""
        return self.totals["unusable"] / max(self.totals["records"], 1)

    def as_dict(self) -> dict[str, Any]:
        """The JSON report."""
        findings = [
            {"kind": f.kind, "title": KINDS[f.kind][0], "count": f.count, "records": f.records} for f in self.findings
        ]
        return {**vars(self), "unusable_share": self.unusable_share, "findings": findings}


@dataclass(frozen=True)
class ModelTexts:
    """A model that texts are compared with."""

    name: str
    processor: Processor
    drop_reason: Callable[[Cut], tuple[str, str] | None]
    """(reason, sentence) for a record that training would drop."""


def check(
    sources: Mapping[str, Source],
    model: ModelTexts | None = None,
    measure: Callable[[Sequence[Cut]], Iterable[SignalStats]] = lambda cuts: map(measure_cut, cuts),
) -> DatasetReport:
    """Read and decode all records of the sources, by name. The texts are compared with the `model`; `measure` decodes
    the cuts, and may do so elsewhere. Raises `DataError` for a source that cannot be read at all."""
    rows = [row for name, source in sources.items() for row in _rows(name, source, model)]
    if not rows:
        raise DataError("The data holds no records.")
    decodable = [row for row in rows if row.cut is not None]
    for row, stats in zip(decodable, measure([row.cut for row in decodable])):
        row.sound = stats
    good = [row for row in rows if not row.sound.reason]
    texts = [row.text for row in good if row.text]
    letters = changed_letters(texts, model.processor.written) if model is not None else None
    changed = letters.letters if letters is not None else {}
    single = {c for letter in changed for c in letter if model and not same_letter(c, model.processor.written(c))}
    findings = [f for f in _findings(rows, changed) if f.count]
    values: dict[str, list[float]] = {"length": [r.seconds for r in good], "rate": [r.rate for r in good if r.rate]}
    values["level"] = [r.sound.level for r in good if r.sound.rate]
    listed = [record for finding in findings for record in finding.records]
    for name, source in sources.items():
        own = [record for record in listed if record["set"] == name]
        places = source.places({record["id"] for record in own})
        for record in own:
            record |= {"place": places[record["id"]]} if record["id"] in places else {}
    return DatasetReport(
        sets=[
            {"name": name, **_totals([r for r in rows if r.set == name]), "read": source_notes(source, name)}
            for name, source in sources.items()
        ],
        totals=_totals(rows),
        histograms={name: histogram(of_records) for name, of_records in values.items() if of_records},
        languages=_groups(good, "language"),
        speakers=_groups(good, "speaker"),
        texts=_texts(good),
        characters=_characters(good, {c: changed.get(c, "") for c in single}),
        overlap=_overlap(good, list(sources)),
        findings=findings,
        model=model.name if model is not None else None,
    )


def histogram(values: Sequence[float], bins: int = 30) -> dict[str, Any]:
    """`{"start", "step", "counts", "below", "above", "min", "median", "mean", "max"}` with a round step. The bars cover
    all but the outermost half percent on each side; those are counted in `below` and `above`."""
    data = np.asarray(values, dtype=np.float64)
    low, high = np.percentile(data, [0.5, 99.5]) if len(data) > 200 else (data.min(), data.max())
    raw = max(high - low, abs(high) * 0.01, 1e-3) / bins
    size = 10 ** np.floor(np.log10(raw))
    step = float(next(m * size for m in (1, 2, 5, 10) if m * size >= raw))
    first = int(np.floor(low / step))
    count = int(np.floor(high / step)) - first + 1
    index = np.floor(data / step).astype(int) - first
    counts = np.bincount(index[(index >= 0) & (index < count)], minlength=count)
    return {
        "start": round(first * step, 9),
        "step": step,
        "counts": counts.tolist(),
        "below": int((index < 0).sum()),
        "above": int((index >= count).sum()),
        "min": float(data.min()),
        "median": float(np.median(data)),
        "mean": float(data.mean()),
        "max": float(data.max()),
    }


def _rows(name: str, source: Source, model: ModelTexts | None) -> Iterator[CheckedRecord]:
    for cut in source.cuts():
        if isinstance(cut, UnusableRecord):
            yield CheckedRecord(cut.id, name, sound=SignalStats(cut.reason, cut.message))
        else:
            row = CheckedRecord(cut.id, name, cut, text_of(cut), speaker_of(cut), language_of(cut), cut.duration)
            row.control_names = CONTROL_NAMES.findall(row.text or "")
            if model is not None:
                names = [*row.control_names, *control_names(model.processor.tokenizer, row.text or "")]
                row.control_names = list(dict.fromkeys(names))
                row.unfit = ": ".join(model.drop_reason(cut) or ()) or None
            yield row


def _totals(rows: Sequence[CheckedRecord]) -> dict[str, Any]:
    good = [r for r in rows if not r.sound.reason]
    return {
        "records": len(rows),
        "unusable": len(rows) - len(good),
        "reasons": dict(Counter(r.sound.reason for r in rows if r.sound.reason).most_common()),
        "hours": sum(r.seconds for r in good) / 3600,
        "with_text": sum(bool(r.text) for r in good),
        "with_words": sum(bool(r.cut is not None and words_of(r.cut)) for r in good),
        "words": sum(len(r.text.split()) for r in good if r.text),
        "speakers": len({s for r in good for s in r.speakers} - {None}),
        "languages": len({r.language for r in good} - {None}),
    }


def _groups(rows: Sequence[CheckedRecord], key: str) -> list[dict[str, Any]]:
    """Records and hours for each speaker or language, the largest first; None stands for records that name none."""
    groups: dict[str | None, list[float]] = defaultdict(list)
    for row in rows:
        for name, seconds in row.speakers.items() if key == "speaker" else [(row.language, row.seconds)]:
            groups[name].append(seconds)
    order = sorted(groups.items(), key=lambda item: (-sum(item[1]), str(item[0])))
    return [{"name": name, "records": len(s), "hours": sum(s) / 3600} for name, s in order]


def _texts(rows: Sequence[CheckedRecord]) -> dict[str, Any]:
    texts = Counter(r.text for r in rows if r.text)
    repeated = [(text, count) for text, count in texts.most_common(20) if count > 1]
    return {
        "distinct": len(texts),
        "repeated": sum(count for count in texts.values() if count > 1),
        "most_repeated": [{"text": text, "records": count} for text, count in repeated],
        "vocabulary": len({word for text in texts for word in text.split()}),
    }


def _characters(rows: Sequence[CheckedRecord], changed: Mapping[str, str]) -> list[dict[str, Any]]:
    """All characters of the texts, the rarest first, each with how many records hold it and one of them."""
    records: Counter[str] = Counter()
    example: dict[str, str] = {}
    for row in rows:
        for character in set(row.text or ""):
            records[character] += 1
            example.setdefault(character, row.id)
    return [
        {
            "character": c,
            "code": f"U+{ord(c):04X}",
            "name": unicodedata.name(c, "unnamed").lower(),
            "records": n,
            "rare": n < RARE,
            "outside": changed.get(c) == "",
            "written": changed.get(c, c),
            "example": example[c],
        }
        for c, n in sorted(records.items(), key=lambda item: (item[1], item[0]))
    ]


def _overlap(rows: Sequence[CheckedRecord], names: Sequence[str]) -> list[dict[str, Any]]:
    """Ids, recordings, speakers and texts that two sets share, of how many in each: a test set should share nothing
    with the training data but perhaps some texts."""
    kinds = ("ids", "recordings", "speakers", "texts")
    values: dict[str, dict[str, set[Any]]] = {name: {kind: set() for kind in kinds} for name in names}
    for row in rows:
        values[row.set]["ids"].add(row.id)
        values[row.set]["recordings"].add(row.sound.digest)
        values[row.set]["speakers"].update(set(row.speakers) - {None})
        values[row.set]["texts"].update({plain_text(row.text or "")} - {""})
    return [
        {
            "sets": [a, b],
            **{k: len(values[a][k] & values[b][k]) for k in kinds},
            "of": {k: [len(values[a][k]), len(values[b][k])] for k in kinds},
        }
        for a, b in combinations(names, 2)
    ]


def outliers_by_kind(
    rows: Sequence[CheckedRecord], changed: Mapping[str, str]
) -> dict[str, list[tuple[float, CheckedRecord, str]]]:
    """(severity, row, detail) of all measured rows that look wrong, by kind of `KINDS`, the worst first. `changed` is
    what a model writes for letters."""
    good = [r for r in rows if not r.sound.reason]
    outliers: dict[str, list[tuple[float, CheckedRecord, str]]] = defaultdict(list)
    outliers["unusable"] = [(0.0, r, f"{r.sound.reason}: {r.sound.message}") for r in rows if r.sound.reason]
    first_with: dict[str, CheckedRecord] = {}
    for row in good:
        first = first_with.setdefault(row.sound.digest, row)
        if first is not row:
            detail = f"same samples as {first.id}" + (f" ({first.set})" if first.set != row.set else "")
            outliers["same_audio"].append((0.0, row, detail))
        for kind, badness, detail in find_outliers(row, changed):
            outliers[kind].append((badness, row, detail))
    return {kind: sorted(outliers[kind], key=lambda entry: -entry[0]) for kind in KINDS}


def _findings(rows: Sequence[CheckedRecord], changed: Mapping[str, str]) -> Iterator[DataFinding]:
    """One finding of each kind, also those without records."""
    for kind, outliers in outliers_by_kind(rows, changed).items():
        records = [
            {"id": r.id, "set": r.set, "detail": detail, "text": r.text, "seconds": round(r.seconds, 3)}
            for _, r, detail in outliers[:LISTED]
        ]
        yield DataFinding(kind, len(outliers), records, [r for _, r, _ in outliers[:LISTED]])


def summary(report: DatasetReport) -> list[str]:
    """The report in a few plain lines."""
    total = report.totals
    lines = [
        f"{plural(total['records'], 'record')}, {total['hours']:.2f} hours, {plural(total['speakers'], 'speaker')}, "
        f"{plural(total['languages'], 'language')}"
    ]
    lines += [note for facts in report.sets for note in facts["read"]]
    if lengths := report.histograms.get("length"):
        lines.append(f"lengths {lengths['min']:.1f} to {lengths['max']:.1f} s, median {lengths['median']:.1f} s")
    for f in report.findings:
        first = f.records[0]
        place = first.get("place", first["id"])
        lines.append(f"{f.count:,} x {KINDS[f.kind][0].lower()}, such as {place}: {first['detail']}")
    for pair in report.overlap:
        common = [f"{plural(pair[k], k[:-1])} (of {a:,} and {b:,})" for k, (a, b) in pair["of"].items() if pair[k]]
        if common:
            lines.append(f"{pair['sets'][0]} and {pair['sets'][1]} share {', '.join(common)}")
    return lines
