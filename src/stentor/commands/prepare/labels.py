"""`stentor prepare labels`: audio without transcripts to records with pseudo-labels.

The stages of `stentor prepare segments`: some that cut (`vad`), then `label`, filters, and `select`. Records whose text
is known, if there are any, go through `label` and the filters first: they calibrate the confidences, and their errors
set the threshold for the wanted error. TO holds what `stentor prepare segments` writes; `summary.json`
has `selection` besides."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from stentor.commands.prepare.segments.command import (
    NamedStage,
    make_corpus,
    named,
    recordings,
    refuse_unusable,
    run_pass,
)
from stentor.commands.prepare.segments.worker import SegmentsWorker, Work
from stentor.commands.prepare_options import LabelsOptions
from stentor.config.load import load as load_config
from stentor.config.load import parse_section
from stentor.config.yaml_writer import inline
from stentor.data.cut import Cut, UnusableRecord, speaker_of, text_of
from stentor.data.record_table import RecordTable
from stentor.dataloading import leakage
from stentor.dataloading.dataset import train_dataset
from stentor.errors import ConfigError, DataError, StentorError
from stentor.inference.labels.calibration import ErrorModel, Labelled, fit_words, outcome
from stentor.inference.labels.selection import fit_pace
from stentor.inference.load import TRAINING_CONFIG, find_export
from stentor.inference.segments.base import Segment, Stage
from stentor.inference.segments.label import Decoding, LabelStage
from stentor.inference.segments.select import SelectStage
from stentor.pipeline.journal import made_before

NONE = "none"
"""A `--stage` or `--filter` that stands for none at all."""
LEAST = 20
"""Labelled records from which something is learned."""


def prepare_labels(options: LabelsOptions) -> None:
    """Write the records and the page, or resume where a killed command stopped. Raises as `prepare_segments`, and
    DataError for too few labelled records."""

    if options.select not in get_args(SelectStage.model_fields["by"].annotation):
        raise ConfigError(f"--select must be confidence or random, not {options.select!r}.")
    label = LabelStage(
        models=options.model,
        decodings=[parse_section(spec, Decoding, "--decoding") for spec in options.decoding] or [Decoding()],
        round=options.round,
    )
    keys = {"by": options.select, "max_error": options.max_error, "assurance": options.assurance}
    keys |= {"hours": options.hours, "seed": options.seed}
    select = parse_section("select," + ",".join(f"{k}={inline(v)}" for k, v in keys.items()), Stage, "--select")
    before, filters = _stages(options.stage, "--stage"), _stages(options.filter, "--filter")
    work, records = recordings(options.data)
    labelled, labelled_records = recordings(options.labelled) if options.labelled else (None, None)
    sections = [s.model_dump(mode="json", by_alias=True) for s in (*before, label, *filters, select)]
    settings = {"stages": sections, "audio": options.audio, "records": records, "labelled": labelled_records}
    if (made := made_before(options.to, settings, "segments")) is not None:
        return _refuse_nothing(options, made)
    facts: dict[str, Any] = {"calibrated": False, "notes": []}
    if labelled is not None:
        label, select, facts = learn(options, label, filters, select, labelled, settings)
    stages: Sequence[NamedStage] = named([*before, label, *filters, select])

    def selection() -> dict[str, Any]:
        chosen = {**facts, "max_error": select.max_error, "by": select.by, **select.selection}
        chosen["notes"] = [*_sentences(chosen, select.assurance, select.hours), *facts["notes"]]
        print("\n".join(chosen["notes"]), flush=True)
        return {"selection": chosen}

    return _refuse_nothing(options, make_corpus(options, stages, work, settings, selection))


def _refuse_nothing(options: LabelsOptions, summary: dict[str, Any]) -> None:
    """Raise DataError when nothing was kept, or over 1 % of the recordings cannot be used."""
    refuse_unusable(summary)
    if not summary["segments"]:
        raise DataError(f"No label was kept; {options.to / 'corpus.html'} says why. {summary['selection']['notes'][0]}")


def _stages(specs: Sequence[str], option: str) -> list[Stage]:
    return [] if list(specs) == [NONE] else [parse_section(spec, Stage, option) for spec in specs]


def _sentences(chosen: dict[str, Any], assurance: float, hours: float | None) -> list[str]:
    """The choice and its expected error, for people."""
    wished, curve = f"{100 * chosen['max_error']:g} %", chosen["curve"]

    def errors(point: dict[str, Any]) -> str:
        expected = f"{100 * point['expected_error']:.1f} % of the words are expected to be wrong"
        bound = f" (in {100 * assurance:g} % of the resamples at most {100 * point['upper']:.1f} %)"
        return expected + (bound if chosen["calibrated"] else "")

    if not curve:
        sentence = "No label is left to choose from."
    elif chosen["min_confidence"] is None and hours is not None and curve[0]["upper"] <= chosen["max_error"]:
        sentence = (
            f"The surest labels last longer than {hours:g} hours, and labels that are equally sure are kept together "
            "or not at all: allow more hours."
        )
    elif chosen["min_confidence"] is None:
        sentence = (
            f"No threshold keeps an error of {wished}: even among the most confident labels {errors(curve[0])}. Allow "
            "a higher error, label with better models, or give more labelled records."
        )
    else:
        limits = f"An error of {wished} allows" if hours is None else f"An error of {wished} in {hours:g} hours allows"
        sentence = f"{limits} {100 * chosen['kept_share']:.0f} % of the seconds: {errors(chosen)}."
    if chosen["calibrated"]:
        return [sentence]
    doubt = "This is by the models' own probabilities, which can be far too high or too low: --labelled measures them."
    return [sentence, doubt]


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


def refuse_few(cuts: Iterable[Cut | UnusableRecord], place: str, fix: str) -> None:
    """Raise DataError, with the place of these labelled records and another fix, where too few have a text: this is
    known before any model listens to them."""
    texts = [not isinstance(cut, UnusableRecord) and bool((text_of(cut) or "").strip()) for cut in cuts]
    if sum(texts) < LEAST:
        raise DataError(
            f"{sum(texts)} of {len(texts):,} records of {place} have a text; {LEAST} are needed to choose a threshold "
            f"for labels: give more, or {fix}."
        )


def _lost(lines: Iterable[dict[str, Any]]) -> str:
    """Reasons why labelled records got none, with counts, in brackets."""
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
    """Overlap of the labelled records with the data that a model was trained on: it is surer of these than of others,
    and the threshold is then too low. Nothing where no config tells what it was trained on."""
    path = find_export(model) / TRAINING_CONFIG
    if not path.is_file():
        return [f"What {model} was trained on is not known: with labelled records of it, the error is underestimated."]
    try:
        config = load_config(path).config
        train = train_dataset(config.data, config.train.seed, config.task.drop_reason, lambda _: None)
        overlap = leakage.leakage(None if train.streams else train.cuts(), {"labelled": _cuts(work)})
    except StentorError as error:
        return [f"The training data of {model} cannot be read ({error}): it may hold labelled records."]
    lines = [f"{model}: {line}" for line in leakage.summary_lines(overlap)]
    if any(overlap["labelled"][kind][0] for kind in ("ids", "recordings")):
        lines.append(
            f"{model} was trained on labelled records: it is surer of them than of others, and the error "
            "of what is kept is higher than it says here. Give records that no model was trained on."
        )
    return lines
