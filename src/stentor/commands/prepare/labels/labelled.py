"""Labelled records of `stentor prepare labels`: transcribed in the same way, they say how sure a label is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stentor.commands.prepare.segments import named, run_pass
from stentor.commands.prepare.segments.worker import SegmentsWorker, Work
from stentor.data.cut import UnusableRecord, speaker_of, text_of
from stentor.data.record_table import RecordTable
from stentor.errors import DataError
from stentor.inference.labels.calibration import ErrorModel, fit_words, outcome
from stentor.inference.segments.base import Segment, Stage
from stentor.inference.segments.label import LabelStage
from stentor.inference.segments.select import SelectStage

LEAST = 20
"""Labelled records."""


def learn(
    options: Any,
    label: LabelStage,
    filters: Sequence[Stage],
    select: SelectStage,
    work: RecordTable[Work],
    settings: dict[str, Any],
) -> tuple[LabelStage, SelectStage, dict[str, Any]]:
    """The stages with what the labelled records show, and facts about these for the summary. Raises DataError where
    there are too few of them."""
    worker = SegmentsWorker(named([label, *filters]))
    journal = run_pass(worker, work, options, {**settings, "pass": "labelled"}, "labelled records")
    cuts = {each.id: each.cut for each in work}
    pairs: list[tuple[Segment, str, str | None]] = []
    for line in journal.lines(each.id for each in work):
        cut = cuts[line["id"]]
        if "dropped" in line or isinstance(cut, UnusableRecord) or not text_of(cut):
            continue
        pairs += [(Segment(**s), text_of(cut) or "", speaker_of(cut)) for s in line["record"]["segments"]]
    if len(pairs) < LEAST:
        raise DataError(
            f"{len(pairs)} of {len(work):,} labelled records can be used, and to choose a threshold {LEAST} are needed: "
            "give more, or leave --labelled out."
        )
    numbers = range(len(label.models) * len(label.decodings))
    language = pairs[0][0].measures.get("language")
    maps = [fit_words([(s.measures["hypotheses"][i]["words"], t) for s, t, _ in pairs], language) for i in numbers]
    label = label.calibrated(maps)
    outcomes = []
    for segment, text, speaker in pairs:
        result = label.judge(segment, segment.measures["hypotheses"])
        if isinstance(result, Segment):
            outcomes.append(outcome(result.measures, text, speaker))
    words, errors = sum(o.words for o in outcomes), sum(o.errors for o in outcomes)
    facts = {
        "calibrated": True,
        "labelled_records": len(outcomes),
        "labelled_hours": round(sum(s.seconds for s, _, _ in pairs) / 3600, 6),
        "labelled_words": words,
        "labelled_error": round(errors / max(words, 1), 4),
    }
    return label, select.informed(ErrorModel(outcomes, select.seed)), facts
