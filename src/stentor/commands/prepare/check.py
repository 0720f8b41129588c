"""`stentor prepare check`: all records of data sets decoded and inspected, as a page with what looks wrong."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stentor.commands.prepare_options import CheckOptions
from stentor.config.load import parse_source
from stentor.data.cut import Cut, language_of
from stentor.data.signal_stats import SignalStats, measure_cut
from stentor.data.storage import name_of
from stentor.dataloading.dataset_report import MAX_BAD, ModelTexts, check, summary
from stentor.dataloading.planned import ModelDrops
from stentor.errors import ConfigError, DataError
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.models.contracts import Processor
from stentor.pipeline.executor import make_executor
from stentor.pipeline.journal import write_json
from stentor.pipeline.progress import Progress
from stentor.pipeline.runner import first_of
from stentor.pipeline.worker import Worker
from stentor.report.check import render

CHUNK = 16
"""Recordings that a process takes at a time."""


def check_data(options: CheckOptions) -> None:
    """Write check.html and check.json to the folder `to`. Raises `DataError` when over 1 % of the records cannot be
    used."""
    sources = {name_of(spec): parse_source(spec) for spec in dict.fromkeys(options.data)}
    model = model_texts(options.model) if options.model else None
    report = check(sources, model, lambda cuts: _measure(cuts, options))
    page, facts = options.to / "check.html", options.to / "check.json"
    options.to.mkdir(parents=True, exist_ok=True)
    write_json(facts, report.as_dict())
    page.write_text(render(report), encoding="utf-8")
    print("\n".join(summary(report)))
    print(f"written: {page} and {facts}", flush=True)
    if report.unusable_share > MAX_BAD:
        unusable = next(f for f in report.findings if f.kind == "unusable")
        raise DataError(
            f"{unusable.count:,} of {report.totals['records']:,} records cannot be used ({report.unusable_share:.1%}). "
            + first_of([f"{r['id']}: {r['detail']}" for r in unusable.records])
        )


class MeasureWorker(Worker):
    """Signal statistics of lists of cuts."""

    def process(self, group: list[Cut]) -> list[SignalStats]:
        return [measure_cut(cut) for cut in group]

    def crashed(self, group: list[Cut]) -> list[SignalStats]:
        return [SignalStats(reject.reason, reject.message) for reject in super().crashed(group)[1]]


def _measure(cuts: Sequence[Cut], options: CheckOptions) -> Iterator[SignalStats]:
    """The statistics of the cuts, by processes that are forked where possible: others would import torch again."""
    if options.ray is None:
        options = replace(options, jobs=options.jobs or os.cpu_count())
    groups = [list(cuts[i : i + CHUNK]) for i in range(0, len(cuts), CHUNK)]
    done = 0
    with Progress("decoding", "records") as progress:
        for stats in make_executor(options, fork=True).map(MeasureWorker(), groups, lambda: False):
            yield from stats
            done += len(stats)
            progress.report(done, len(cuts))


def model_texts(name: str) -> ModelTexts:
    """Processor and drop reasons of a model, or of a folder with a tokenizer. Raises ConfigError for neither."""
    from transformers import AutoTokenizer

    try:
        model = _model(name)
    except ConfigError as error:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError):
            raise error from None
        return ModelTexts(name, Tokenized(tokenizer), lambda cut: None)
    processor = model.bundle.traits
    dropped = ModelDrops(model.task, model.bundle.processor, True)

    def drop_reason(cut: Cut) -> tuple[str, str] | None:
        if reason := dropped(cut):
            return reason
        try:
            processor.spoken_language(language_of(cut), name)
        except ConfigError as error:
            return "unknown_language", f"{cut.id}: {error}"
        return None

    return ModelTexts(name, processor, drop_reason)


def _model(name: str) -> Model:
    """The model, without its weights where it can be built so."""
    try:
        return load(name, "cpu", weights=False)
    except Exception:  # what is wrong, if it is not that, shows with the weights too
        return load(name, "cpu")


class Tokenized(Processor):
    """A tokenizer alone."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
