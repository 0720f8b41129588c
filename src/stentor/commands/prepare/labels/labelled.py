"""Labelled records of `stentor prepare labels`: transcribed in the same way, they say how sure a label is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.segments.command import named, run_pass
from stentor.commands.prepare.segments.worker import SegmentsWorker, Work
from stentor.config.load import load as load_config
from stentor.data.cut import UnusableRecord, speaker_of, text_of
from stentor.data.record_table import RecordTable
from stentor.dataloading import leakage
from stentor.dataloading.dataset import train_dataset
from stentor.errors import DataError, StentorError
from stentor.inference.labels.calibration import ErrorModel, Labelled, fit_words, outcome
from stentor.inference.labels.selection import fit_pace
from stentor.inference.load import TRAINING_CONFIG, find_export
from stentor.inference.segments.base import Segment, Stage
from stentor.inference.segments.label import LabelStage
from stentor.inference.segments.select import SelectStage

if TYPE_CHECKING:
    from lhotse.cut import Cut

LEAST = 20
"""Labelled records from which something is learned."""


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
    refuse_few((each.cut for each in work), "--labelled", "leave it out")

    def through(stages: Sequence[Stage], work: RecordTable[Work], name: str) -> list[dict[str, Any]]:
        worker = SegmentsWorker(named(stages), in_files=False)
        journal = run_pass(worker, work, options, {**settings, "pass": name}, f"{name} records")
        return list(journal.lines(each.id for each in work))

    heard = through([label], work, "labelled")
    records = _labelled(work, heard)
    hypotheses = range(len(label.models) * len(label.decodings))
    label = label.calibrated([fit_words(records, number) for number in hypotheses])
    pace = fit_pace([cut for cut in _cuts(work) if text_of(cut)])
    # Only now, as the filters of the data see calibrated confidences, too.
    judged = RecordTable(_judged(label, each, line) for each, line in zip(work, heard) if "record" in line)
    filtered = through([*filters, select.informed(ErrorModel(), pace)], judged, "filtered")
    kept = _labelled(judged, filtered)
    if len(kept) < LEAST:
        raise DataError(
            f"Of {len(work):,} labelled records {len(kept)} got a label that passes the filters"
            f"{_lost([*heard, *filtered])}; {LEAST} are needed to choose a threshold. Give more of them or none, "
            "filter less, or label with models that have learned more."
        )
    outcomes = [outcome(record) for record in kept]
    words, errors = sum(o.words for o in outcomes), sum(o.errors for o in outcomes)
    facts = {
        "calibrated": True,
        "labelled_records": len(outcomes),
        "labelled_hours": round(sum(r.segment.seconds for r in kept) / 3600, 6),
        "labelled_words": words,
        "labelled_error": round(errors / max(words, 1), 4),
        "notes": [note for model in label.models for note in _trained_on(model, work)],
    }
    return label, select.informed(ErrorModel(outcomes, select.seed), pace), facts


def refuse_few(cuts: Iterable[Cut | UnusableRecord], place: str, mend: str) -> None:
    """Raise DataError, with the place of these labelled records and another mend, where too few have a text: this is
    known before any model listens to them."""
    texts = [not isinstance(cut, UnusableRecord) and bool((text_of(cut) or "").strip()) for cut in cuts]
    if sum(texts) < LEAST:
        raise DataError(
            f"{sum(texts)} of {len(texts):,} records of {place} have a text; {LEAST} are needed to choose a threshold "
            f"for labels: give more, or {mend}."
        )


def _lost(lines: Iterable[dict[str, Any]]) -> str:
    """Why labelled records got none, with counts, in brackets."""
    reasons = Counter(
        reason
        for line in lines
        for reason in ([line["dropped"]] if "dropped" in line else [r["reason"] for r in line["record"]["rejects"]])
    )
    counts = [f"{reason}: {count:,}" for reason, count in reasons.items()]
    silent = ", where the models write nothing" if "no_text" in reasons else ""
    return f" ({', '.join(counts)}{silent})" if counts else ""


def _judged(label: LabelStage, work: Work, line: dict[str, Any]) -> Work:
    """The record with the label that a calibrated stage makes of what was heard."""
    results = [label.again(Segment(**segment)) for segment in line["record"]["segments"]]
    return Work(work.index, work.cut, [result for result in results if isinstance(result, Segment)])


def _labelled(work: Iterable[Work], lines: Iterable[dict[str, Any]]) -> list[Labelled]:
    """The records that have a text, with the labels that a pass has kept."""
    return [
        Labelled(Segment(**segment), text, speaker_of(each.cut))
        for each, line in zip(work, lines)
        if "record" in line and not isinstance(each.cut, UnusableRecord)
        if (text := (text_of(each.cut) or "").strip())
        for segment in line["record"]["segments"]
    ]


def _cuts(work: RecordTable[Work]) -> Iterator[Cut]:
    return (each.cut for each in work if not isinstance(each.cut, UnusableRecord))


def _trained_on(model: str, work: RecordTable[Work]) -> list[str]:
    """What the labelled records share with the data that a model was trained on: it is surer of these than of others,
    and the threshold is then too low. Nothing where no config tells what it was trained on."""
    path = find_export(model) / TRAINING_CONFIG
    if not path.is_file():
        return [f"What {model} was trained on is not known: with labelled records of it, the error is underestimated."]
    try:
        config = load_config(path).config
        train = train_dataset(config.data, config.train.seed, config.task.drop_reason, lambda _: None)
        overlap = leakage.leakage(None if train.streams else train.cuts(), {"labelled": _cuts(work)})
    except StentorError as error:
        return [f"What {model} was trained on cannot be read ({error}), so nobody knows whether labelled records are."]
    lines = [f"{model}: {line}" for line in leakage.summary_lines(overlap)]
    if any(overlap["labelled"][kind][0] for kind in ("ids", "recordings")):
        lines.append(
            f"{model} was trained on labelled records: it is surer of them than of others, and the error "
            "of what is kept is higher than it says here. Give records that no model was trained on."
        )
    return lines
