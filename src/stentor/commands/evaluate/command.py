"""`stentor evaluate`: a finished model on other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from stentor.callbacks.console import scores_text
from stentor.commands.evaluate.on_cluster import journal_path, predict_on_cluster
from stentor.commands.evaluate.records import by_normalizer, left_out, place_model, records, task_of, write_figures
from stentor.commands.evaluate.speech_board import conditions, table
from stentor.commands.evaluate_options import TASK, EvaluateOptions
from stentor.config.load import parse_source
from stentor.data.batch import Prediction
from stentor.dataloading.mixing import DropCounter
from stentor.dataloading.section import Data
from stentor.engine.device import Communicator, accelerator
from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup, breakdown
from stentor.engine.evaluate import evaluate as score
from stentor.engine.section import Train
from stentor.errors import ConfigError
from stentor.inference.declarations import refuse_unused
from stentor.inference.model import Model
from stentor.metrics.format import MINOR, figure, interval, text_table
from stentor.metrics.score import Score
from stentor.pipeline.journal import remove_journal
from stentor.sources.base import Source
from stentor.sources.speech_list import SpeechList
from stentor.tasks.base import Task
from stentor.tasks.speak.task import Speak

if TYPE_CHECKING:
    from accelerate import Accelerator


def evaluate(options: EvaluateOptions) -> str:
    """Score a model, or speech that is there already, on one data source; returns the scores as text and writes them to
    `--json` when given, with `NAME.predictions.jsonl` beside it."""
    from stentor.commands.evaluate import speech
    from stentor.inference.load import load

    speech.check_options(options)
    source = parse_source(options.data)
    if options.model is None:
        return _evaluate_speech(None, source, accelerator(Train()), options, Speak())
    loaded = load(options.model)
    tasks = by_normalizer(task_of(loaded, options), options)
    task = next(iter(tasks.values()))
    if isinstance(task, Speak):
        return _evaluate_speech(loaded, source, place_model(loaded), options, loaded.for_speech())
    if isinstance(source, SpeechList):
        raise ConfigError(f"{options.data} is a list of texts to speak; {options.model} is a model for {task.type}.")
    refuse_unused(options, TASK, f"the task {task.type}")
    plan, dropped, section = records(loaded, task, source, options)
    device = place_model(loaded)
    control, settings = Communicator(device.num_processes), EvalOptions(max_bad=section.max_bad)
    setup = EvalSetup(loaded.bundle, task, {}, device, control, settings)
    elsewhere = predict_on_cluster(options, task, plan) if options.ray is not None else None
    scores, _, predictions = score(setup, EvalSet("data", plan, dropped), elsewhere)
    parts = breakdown(task, predictions, section.by)
    normalized = {name: other.score(predictions) for name, other in tasks.items()} if len(tasks) > 1 else {}
    if options.json is not None and device.is_main_process:
        figures = _figures(options, task, scores, parts, dropped, len(predictions))
        by_name = {name: {metric: s.as_dict() for metric, s in found.items()} for name, found in normalized.items()}
        _write(options, figures | ({"normalizers": by_name} if by_name else {}), predictions)
    apart = "".join(f"\n  {row}" for row in text_table([[n, scores_text(s)] for n, s in normalized.items()]))
    minor = "".join(f"\n{metric} {figure(metric, s.value)}" for metric, s in scores.items() if metric in MINOR)
    text = f"{len(predictions)} records  {scores_text(scores)}{minor}{apart}{_parts_text(parts)}"
    return f"{text}{left_out(dropped)}"


def _evaluate_speech(
    loaded: Model | None, source: Source, device: Accelerator, options: EvaluateOptions, task: Speak
) -> str:
    from stentor.commands.evaluate import speech

    result = speech.evaluate(loaded, source, device, options, task)
    parts = breakdown(result.scorer, result.predictions, Data(train=[source]).by)
    scores = result.scores | speech.macro_averages(parts)
    if (board := conditions(options, scores, len(result.predictions))) is not None:
        result.settings["board"] = board
    if options.json is not None and device.is_main_process:
        figures = _figures(options, task, scores, parts, result.dropped, len(result.predictions))
        _write(options, figures | result.settings, result.predictions)
    head = speech.text(scores, result.settings, len(result.predictions))
    published = "" if board is None else table(board)
    return f"{head}{_parts_text(parts)}{published}{left_out(result.dropped)}"


def _write(options: EvaluateOptions, figures: Mapping[str, Any], predictions: Sequence[Prediction]) -> None:
    """Write the figures of `--json`; the answers so far are of no use any more."""
    assert options.json is not None
    write_figures(options.json, figures, map(vars, predictions))
    for journal in takewhile(lambda path: path.exists(), (journal_path(options.json, rank) for rank in count())):
        remove_journal(journal)


def _figures(
    options: EvaluateOptions,
    task: Task,
    scores: Mapping[str, Score],
    parts: Mapping[str, Any],
    dropped: DropCounter,
    count: int,
) -> dict[str, Any]:
    return {
        "model": options.model,
        "data": options.data,
        "task": task.type,
        "eval": {name: score.as_dict() for name, score in scores.items()},
        **({"by": parts} if parts else {}),
        "records": count,
        **dropped.facts(),
    }


def _parts_text(parts: Mapping[str, Any], most: int = 20) -> str:
    lines = []
    for field, values in parts.items():
        for value, scores in list(values.items())[:most]:
            metric, score = next(iter(scores.items()))
            bounds = f" (95 %: {interval(metric, score)})" if interval(metric, score) else ""
            lines.append(
                f"  {field} {value}: {metric} {figure(metric, score['value'])}{bounds}, {score['items']} records"
            )
        if len(values) > most:
            lines.append(f"  and {len(values) - most} more by {field}: see --json")
    return "".join(f"\n{line}" for line in lines)
