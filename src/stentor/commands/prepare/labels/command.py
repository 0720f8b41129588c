"""`stentor prepare labels`: audio that nobody has written down to records with pseudo-labels.

The stages of `stentor prepare segments`: some that cut (`vad`), then `label`, filters, and `select`. Records whose text
is known, if there are any, go through `label` and the filters first: they calibrate the confidences, and their errors
say which threshold keeps an error that is wished for. TO holds what `stentor prepare segments` writes; `summary.json`
has `selection` besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from stentor.commands.prepare.segments.command import NamedStage, make_corpus, named, recordings, refuse_unusable
from stentor.config.load import parse_section
from stentor.config.yaml_writer import inline
from stentor.errors import ConfigError, DataError
from stentor.inference.segments.base import Stage
from stentor.inference.segments.label import Decoding, LabelStage
from stentor.inference.segments.select import SelectStage
from stentor.pipeline.journal import made_before

if TYPE_CHECKING:
    from stentor.commands.prepare_options import LabelsOptions

NONE = "none"
"""A `--stage` or `--filter` that stands for none at all."""


def prepare_labels(options: LabelsOptions) -> None:
    """Write the records and the page, or go on where a killed command stopped. Raises as `prepare_segments`, and
    DataError for too few labelled records."""
    from stentor.commands.prepare.labels.labelled import learn

    if options.select not in get_args(SelectStage.model_fields["by"].annotation):
        raise ConfigError(f"--select must be confidence or random, not {options.select!r}.")
    label = LabelStage(
        models=options.model,
        decodings=[parse_section(spec, Decoding, "--decoding") for spec in options.decoding] or [Decoding()],
        round=options.round,
    )
    keys = {"by": options.select} | {k: getattr(options, k) for k in ("max_error", "assurance", "hours", "seed")}
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
    """What was chosen and how far it can be believed, for people."""
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
            f"No threshold keeps an error of {wished}: of the surest labels {errors(curve[0])}. Allow a higher error, "
            "label with better models, or give more labelled records."
        )
    else:
        limits = f"An error of {wished} allows" if hours is None else f"An error of {wished} in {hours:g} hours allows"
        sentence = f"{limits} {100 * chosen['kept_share']:.0f} % of the seconds: {errors(chosen)}."
    if chosen["calibrated"]:
        return [sentence]
    doubt = "This is by the models' own probabilities, which can be far too high or too low: --labelled measures them."
    return [sentence, doubt]
