"""Evaluation with answers that are kept: on a Ray cluster, whose workers answer, or here; scores are computed where the
command runs.

Answers are appended to JSON.part as they come, so that the same command resumes after a kill.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stentor.commands.evaluate_options import EvaluateOptions
from stentor.data.batch import Prediction
from stentor.data.cut import Cut, record_from_cut
from stentor.data.record_table import Selection
from stentor.dataloading.batch_sampler import BatchSampler, PlannedBatch
from stentor.engine.evaluate import EvalReader, Predicted, planned_batches, predict
from stentor.inference.load import find_export
from stentor.pipeline.executor import make_executor
from stentor.pipeline.journal import Fingerprint, Journal
from stentor.pipeline.runner import JournalWriter, Pipeline, Results
from stentor.pipeline.worker import Worker
from stentor.tasks.base import Task

GROUP_BATCHES = 8
"""Batches that a worker is given at a time."""
SCORING = ("json", "report", "normalizer", "scoring", "processes", "ray", "jobs", "gpus_per_worker", "plugin")
"""Options that change nothing in the answers."""


class EvaluateWorker(Worker):
    """Answers groups of batches: the fields of `Predicted`. `predicted`: ids of the records that are predicted; None:
    all."""

    def __init__(self, options: EvaluateOptions, predicted: set[str] | None):
        self.options, self.predicted = options, predicted

    def setup(self, device: str) -> None:
        from stentor.commands.evaluate.records import place_model, task_of
        from stentor.inference.load import load

        loaded = load(str(self.options.model), device)
        self.bundle, self.task = loaded.bundle, task_of(loaded, self.options)
        self.accelerator = place_model(loaded, device)
        self.bundle.model.eval()
        self.reader = EvalReader(self.task, self.bundle.processor, None, seed=0)
        self.reader.predicted_ids = self.predicted

    def process(self, group: Sequence[PlannedBatch]) -> Results:
        return [self._answer(planned) for planned in group], []

    def _answer(self, planned: PlannedBatch) -> dict[str, Any]:
        import torch

        facts, examples, batch, read = self.reader[planned]
        with torch.no_grad(), self.accelerator.autocast():
            predictions = [vars(prediction) for prediction in predict(self.task, self.bundle, facts, examples)]
        return {"id": self.name([planned]), "predictions": predictions, "dropped": batch.dropped, "read": read}

    def name(self, group: Sequence[PlannedBatch]) -> str:
        return ", ".join(item.cut.id for item in group[0].items)


def predict_on_cluster(options: EvaluateOptions, task: Task, plan: BatchSampler) -> Iterator[Predicted]:
    """The answers to all batches, in their order. Raises as `answers` does."""
    batches = planned_batches(plan)
    cuts = [item.cut for batch in batches for item in batch.items]
    worker = EvaluateWorker(options, task.prediction_subset([cut.id for cut in cuts]))
    lines = answers(options, worker, batches, GROUP_BATCHES, cuts, "batches")
    for batch, line in zip(batches, lines, strict=True):
        if "record" not in line:  # every process died of it: its records are not scored
            yield Predicted(dropped=[(item.cut.id, line["dropped"], line["message"]) for item in batch.items])
            continue
        answer = line["record"]
        predictions = [Prediction(**prediction) for prediction in answer["predictions"]]
        yield Predicted(predictions, [tuple(entry) for entry in answer["dropped"]], answer["read"])


def answers(
    options: EvaluateOptions,
    worker: Worker,
    items: Sequence[Any],
    group_size: int,
    cuts: Iterable[Cut],
    unit: str,
    rank: int = 0,
) -> Iterator[dict[str, Any]]:
    """The lines of the journal for all items, in their order: `record`, what the worker answers, or the reason in
    `dropped` with a `message`. `cuts`: what the answers depend on, besides the options and the model. `rank`: number of
    the process, each of which keeps its own.

    Raises ConfigError where the journal beside `--json` belongs to a command with other settings, and `Stopped`.
    """
    settings = {key: str(value) for key, value in vars(options).items() if key not in SCORING}
    folder = options.audio_from if options.model is None else find_export(options.model)
    assert folder is not None  # `check_options`
    settings["files"] = _digest(_file_facts, sorted(folder.iterdir()))
    settings["records"] = _digest(record_from_cut, cuts)
    names = [worker.name([item]) for item in items]
    starts = range(0, len(items), group_size)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "answers" if options.json is None else journal_path(options.json, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path, settings)
        place = "nothing is kept without --json" if options.json is None else f"the answers are in {path}"
        Pipeline(
            worker=worker,
            writer=JournalWriter(journal, lambda item: worker.name([item]) in journal),
            executor=make_executor(options, ("auto",)),
            title="evaluating",
            saved=lambda: f"{len(journal):,} of {len(names):,} {unit} were answered; {place}",
            unit=unit,
            finish_groups=True,
        ).run([Selection(items.__getitem__, range(len(items))[i : i + group_size]) for i in starts])
        yield from journal.lines(names)


def journal_path(json: Path, rank: int = 0) -> Path:
    """The answers so far of a process of an evaluation with `--json`, which are deleted when the scores are written."""
    return json.with_name(f"{json.name}.part{rank or ''}")


def _file_facts(file: Path) -> tuple[str, int, int]:
    return file.name, file.stat().st_size, file.stat().st_mtime_ns


def _digest(describe: Callable[[Any], Any], records: Iterable[Any]) -> str:
    digest = Fingerprint(describe)
    for _ in digest.through(records):
        pass
    return str(digest)
