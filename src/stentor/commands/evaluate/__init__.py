"""`stentor evaluate`: a finished model on other data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from stentor.callbacks.console import scores_text
from stentor.commands.evaluate.on_cluster import journal_path, predict_on_cluster
from stentor.commands.evaluate_options import TASK
from stentor.config.load import parse_source
from stentor.data.batch import Prediction
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.dataset import eval_plan, unlimited
from stentor.dataloading.mixing import DropCounter
from stentor.dataloading.section import Data
from stentor.engine.device import Communicator, accelerator
from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup, breakdown
from stentor.engine.evaluate import evaluate as score
from stentor.engine.section import Train
from stentor.errors import AudioError, ConfigError, without_secrets
from stentor.inference.declarations import refuse_unused
from stentor.inference.model import Model
from stentor.metrics.format import MINOR, figure, interval
from stentor.metrics.score import Score
from stentor.pipeline.journal import remove_journal
from stentor.sources.base import Source
from stentor.sources.speech_list import SpeechList
from stentor.tasks.base import Task
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe
from stentor.text.protocols import NORMALIZERS

if TYPE_CHECKING:
    import numpy as np
    from accelerate import Accelerator
    from lhotse.cut import Cut

    from stentor.commands.evaluate_options import EvaluateOptions


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
    task = task_of(loaded, options)
    if options.scoring is not None:
        task = scored_as(task, options.scoring)
    if isinstance(task, Speak):
        return _evaluate_speech(loaded, source, placed(loaded), options, loaded.for_speech())
    refuse_unused(options, TASK, f"the task {task.type}")
    if isinstance(source, SpeechList):
        raise ConfigError(f"{options.data} is a list of texts to speak; {options.model} is a model for {task.type}.")
    plan, dropped, section = records(loaded, task, source, options.data, options.batch_tokens)
    device = placed(loaded)
    control, settings = Communicator(device.num_processes), EvalOptions(max_bad=section.max_bad)
    setup = EvalSetup(loaded.bundle, task, {}, device, control, settings)
    elsewhere = predict_on_cluster(options, task, plan) if options.ray is not None else None
    scores, _, predictions = score(setup, EvalSet("data", plan, dropped), elsewhere)
    parts = breakdown(task, predictions, section.by)
    if options.json is not None and device.is_main_process:
        figures = _figures(options, task, scores, parts, dropped, len(predictions))
        _write(options, figures, predictions)
    minor = "".join(f"\n{metric} {figure(metric, s.value)}" for metric, s in scores.items() if metric in MINOR)
    return f"{len(predictions)} records  {scores_text(scores)}{minor}{_parts_text(parts)}{left_out(dropped)}"


def _evaluate_speech(
    loaded: Model | None, source: Source, device: Accelerator, options: EvaluateOptions, task: Speak
) -> str:
    from stentor.commands.evaluate import speech

    result = speech.evaluate(loaded, source, device, options, task)
    parts = breakdown(result.scorer, result.predictions, Data(train=[source]).by)
    scores = result.scores | speech.macro_averages(parts)
    if options.json is not None and device.is_main_process:
        figures = _figures(options, task, scores, parts, result.dropped, len(result.predictions))
        _write(options, figures | result.settings, result.predictions)
    head = speech.text(scores, result.settings, len(result.predictions))
    return f"{head}{_parts_text(parts)}{left_out(result.dropped)}"


def _write(options: EvaluateOptions, figures: Mapping[str, Any], predictions: Sequence[Prediction]) -> None:
    """Write the figures of `--json`; the answers of a cluster are of no use any more."""
    assert options.json is not None
    write_figures(options.json, figures, map(vars, predictions))
    if options.ray is not None and (journal := journal_path(options)) is not None:
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


def placed(loaded: Model, where: str = "auto") -> Accelerator:
    """The device of an evaluation, in the precision of the training, with the model on it; `where` may be cpu."""
    import torch

    precision = loaded.training.get("train", {}).get("precision", "auto")  # a folder of transformers says nothing
    on_gpu = torch.cuda.is_available() and where != "cpu"
    device = accelerator(Train(precision=precision if on_gpu else "auto", device="cpu" if where == "cpu" else "auto"))
    loaded.bundle.model.to(device.device)
    return device


def task_of(loaded: Model, options: EvaluateOptions) -> Task:
    """The task that a model is scored on: its own, or that of `--task` when its family has the heads for it."""
    task = loaded.task
    if options.task is None or options.task == task.type:
        return task
    task_class = Task.choices().get(options.task)
    # A family serves several tasks; a model has the heads of its own, and of a special or the general case of it.
    related = task_class is not None and (issubclass(task_class, type(task)) or isinstance(task, task_class))
    if task_class is None or not related or options.task not in type(loaded.bundle.family).tasks:
        raise ConfigError(f"{options.model} is a model for {task.type}; it cannot be scored on task {options.task}.")
    shared = {k: v for k, v in task.model_dump(exclude={"type"}).items() if k in task_class.model_fields}
    scored = task_class.model_validate(shared)  # such as the normaliser
    assert isinstance(scored, Task)
    return scored


def scored_as(task: Task, scoring: str) -> Transcribe:
    """The task with the normaliser and the counting of errors of `--scoring`."""
    known = get_args(Transcribe.model_fields["scoring"].annotation)
    if scoring not in known:
        raise ConfigError(f"--scoring {scoring}: there is no such scoring; known are: {', '.join(known)}.")
    if not isinstance(task, Transcribe):
        raise ConfigError(f"--scoring is for models that transcribe; this is one for {task.type}.")
    normalizer = {"normalizer": scoring} if scoring in NORMALIZERS else {}
    return task.model_copy(update={"scoring": scoring, **normalizer})


def write_figures(
    path: Path, figures: Mapping[str, Any], predictions: Iterable[Mapping[str, Any]] | None = None
) -> None:
    """Write the scores of `--json`, with `NAME.predictions.jsonl` beside it when there are predictions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False), encoding="utf-8")
    if predictions is not None:
        with path.with_suffix(".predictions.jsonl").open("w", encoding="utf-8") as file:
            file.write(without_secrets("".join(json.dumps(p, ensure_ascii=False) + "\n" for p in predictions)))


def records(
    loaded: Model, task: Task, source: Source, data: str, batch_tokens: int = 2000
) -> tuple[BatchSampler, DropCounter, Data]:
    """The records of a data source, called `data`, that the model can be scored on, what is left out of them, and the
    settings."""
    bundle = loaded.bundle
    section = Data(train=[source], batch_tokens=batch_tokens, max_seconds=1e9, min_seconds=0.0, workers=0)
    section = unlimited(section) if task.any_length else section

    def drop_reason(cut: Cut) -> tuple[str, str] | None:
        return bundle.family.drop_reason(bundle.processor, cut, False)

    plan, dropped = eval_plan(source, data, section, bundle.processor, task.drop_reason, drop_reason)
    return plan, dropped, section


def readable_audio(plan: BatchSampler, rate: int, cuts: list[Cut], dropped: DropCounter) -> Iterator[np.ndarray]:
    """The audio, float32 [samples], of each record that can be read; its cut is added to `cuts` just before."""
    from stentor.data.load_audio import load_audio

    for item in (item for items in plan.epoch(0) for item in items):
        try:
            audio = load_audio(item.cut, rate)
        except AudioError as error:
            dropped.add(error.reason, f"{item.cut.id}: {error}")
            continue
        cuts.append(item.cut)
        yield audio


def left_out(dropped: DropCounter) -> str:
    """Lines that say how many records were not scored, and why; empty when all were."""
    return "".join(
        f"\nNot scored, {count} {reason}: {', '.join(dropped.named[reason][:3])}"
        for reason, count in dropped.reasons.items()
    )


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
