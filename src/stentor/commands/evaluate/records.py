"""Inputs of an evaluation: the model on its device, its task, the records and their audio; and the figures' file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from stentor.commands.evaluate_options import EvaluateOptions
from stentor.data.cut import Cut
from stentor.data.load_audio import load_audio
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.dataset import eval_plan, unlimited
from stentor.dataloading.mixing import DropCounter
from stentor.dataloading.planned import ModelDrops
from stentor.dataloading.section import Data
from stentor.engine.device import accelerator
from stentor.engine.section import Train
from stentor.errors import AudioError, ConfigError, DataError, without_secrets
from stentor.inference.model import Model
from stentor.pipeline.journal import write_json, write_lines
from stentor.sources.base import Source, source_notes
from stentor.tasks.base import Task
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe
from stentor.text.protocols import NORMALIZERS

if TYPE_CHECKING:
    from accelerate import Accelerator


UNTIMED = " Records without word times (`words`) are scored on their text alone with --task transcribe."


def place_model(loaded: Model, where: str = "auto") -> Accelerator:
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


def by_normalizer(task: Task, options: EvaluateOptions) -> dict[str, Task]:
    """The task with `--scoring` and each normaliser of `--normalizer` by its name, the main one first. Raises
    ConfigError for a task that normalises no texts."""
    task = task if options.scoring is None else scored_as(task, options.scoring)
    if isinstance(task, Speak) or options.normalizers == ["auto"]:
        return {"auto": task}
    if not isinstance(task, Transcribe) or task.translate:
        kind = "translates" if isinstance(task, Transcribe) else f"is for the task {task.type}"
        raise ConfigError(f"--normalizer is for models that transcribe; {options.model} {kind}: leave it out.")
    names = dict.fromkeys(task.normalizer if name == "auto" else name for name in options.normalizers)
    return {name: task.model_copy(update={"normalizer": name}) for name in names}


def scored_as(task: Task, scoring: str) -> Transcribe:
    """The task with the normaliser and the counting of errors of `--scoring`."""
    known = get_args(Transcribe.model_fields["scoring"].annotation)
    if scoring not in known:
        raise ConfigError(f"--scoring {scoring}: there is no such scoring; known are: {', '.join(known)}.")
    if not isinstance(task, Transcribe):
        raise ConfigError(f"--scoring is for models that transcribe; this is one for {task.type}.")
    normalizer = {"normalizer": scoring} if scoring in NORMALIZERS else {}
    return task.model_copy(update={"scoring": scoring, **normalizer})


def records(
    loaded: Model, task: Task, source: Source, options: EvaluateOptions
) -> tuple[BatchSampler, DropCounter, Data]:
    """The records of a data source that the model can be scored on, what is left out of them, and the settings."""
    bundle = loaded.bundle
    longest = bundle.processor.max_seconds or 1e9  # a score says how many longer ones it leaves out
    section = Data(train=[source], batch_tokens=options.batch_tokens, max_seconds=longest, min_seconds=0.0, workers=0)
    section = unlimited(section) if task.any_length else section
    drop_reason = ModelDrops(task, bundle.processor, training=False)
    try:
        plan, dropped = eval_plan(source, options.data, section, bundle.processor, task.drop_reason, drop_reason)
    except DataError as error:
        raise DataError(f"{error}{UNTIMED if 'no_words' in str(error) else ''}") from None
    for note in source_notes(source, "--data"):
        print(note, file=sys.stderr, flush=True)
    return plan, dropped, section


class Recordings:
    """The recordings of `--data` that are scored one by one, as a whole: read, counted, and what is found of them
    written."""

    def __init__(self, options: EvaluateOptions, loaded: Model, task: Task, source: Source):
        self.options, self.rate = options, loaded.bundle.processor.sample_rate
        self.plan, self.dropped, self.section = records(loaded, task, source, options)
        self.cuts: list[Cut] = []
        """The records whose audio was read."""

    def audio(self) -> Iterator[np.ndarray]:
        """The audio, float32 [samples], of each record that can be read; its cut is in `cuts` just before."""
        for item in (item for items in self.plan.epoch(0) for item in items):
            try:
                audio = load_audio(item.cut, self.rate)
            except AudioError as error:
                self.dropped.add(error.reason, f"{item.cut.id}: {error}")
                continue
            self.cuts.append(item.cut)
            yield audio

    def check(self, done: str) -> None:
        """Raises DataError when too many could not be read, or none could be `done`."""
        self.dropped.check(len(self.cuts) + self.dropped.bad, self.section.max_bad, self.options.data)
        if not self.cuts:
            raise DataError(f"{self.options.data}: no record could be {done}.")

    def write(self, found: Mapping[str, Any], predictions: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Write what was found to the file of `--json`, where it is asked for."""
        if self.options.json is not None:
            facts = {"model": self.options.model, "data": self.options.data, "records": len(self.cuts)}
            write_figures(self.options.json, {**facts, **found, **self.dropped.facts()}, predictions)


def left_out(dropped: DropCounter) -> str:
    """Lines that say how many records were not scored, and why; empty when all were."""
    return "".join(
        f"\nNot scored, {count} {reason}: {', '.join(dropped.named[reason][:3])}"
        for reason, count in dropped.reasons.items()
    ) + (UNTIMED if "no_words" in dropped.reasons else "")


def write_figures(
    path: Path, figures: Mapping[str, Any], predictions: Iterable[Mapping[str, Any]] | None = None
) -> None:
    """Write the scores of `--json`, with `NAME.predictions.jsonl` beside it when there are predictions."""
    write_json(path, figures)
    if predictions is not None:
        lines = without_secrets("".join(json.dumps(p, ensure_ascii=False) + "\n" for p in predictions))
        write_lines(path.with_suffix(".predictions.jsonl"), [lines])
