"""THE file to read first: from a config to a trained, scored, exported model.

Config -> task and losses -> feed (what is trained on) -> family (what is trained) -> plan (in which batches)
       -> trainer (the loop) -> the chosen weights, scored -> export, results.json, report.html
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError, StentorError, Stopped

BEFORE = "before"
"""Folder of a run with the scores from before training."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelerate import Accelerator
    from lhotse.cut import Cut

    from stentor.config.schema import Config
    from stentor.dataloading.batch_sampler import BatchSampler
    from stentor.dataloading.dataset import TrainDataset
    from stentor.dataloading.leakage import Overlap
    from stentor.dataloading.stream_shards import ShardedStream
    from stentor.engine.device import Communicator
    from stentor.engine.evaluate import EvalSet
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle
    from stentor.tasks.base import Task


@dataclass
class Prepared:
    """Everything that one stage trains with."""

    task: Task
    losses: Mapping[str, Loss]
    feed: TrainDataset
    bundle: Bundle
    plan: BatchSampler | ShardedStream
    evals: list[EvalSet]
    tests: list[EvalSet]
    batches_per_epoch: int | None
    overlap: Overlap
    remarks: list[str]
    """What the task says of the training data."""


def prepare(config: Config, tell: Any) -> Prepared:
    """Read the data's metadata, build the model and plan the batches; no audio is read, nothing is written."""
    import torch

    from stentor.data.feature_cache import FeatureCache
    from stentor.dataloading import leakage
    from stentor.dataloading.dataset import eval_plan, train_dataset, unlimited
    from stentor.engine.evaluate import EvalSet
    from stentor.losses.base import expanded

    task = config.task
    sections = config.losses if config.losses is not None else task.losses()
    config.data.augment.check()
    task.check()
    feed = train_dataset(
        config.data, config.train.seed, task.drop_reason, tell, task.training_segments if task.any_length else None
    )
    needs = task.requirements(sections)
    needs.texts, needs.cuts = feed.texts, feed.cuts
    torch.manual_seed(config.train.seed)
    bundle = config.model.build(needs)
    losses = expanded(sections, bundle.codebooks)
    processor, family = bundle.processor, bundle.family

    def drop_reason(cut: Cut, training: bool) -> tuple[str, str] | None:
        refused = family.drop_reason(processor, cut, training)
        return refused or task.length_drop_reason(cut, lambda: processor.tokens(cut, cut.duration))

    feed.leave_out(lambda cut: drop_reason(cut, True))
    if isinstance(processor, FeatureCache):
        for line in processor.check_cache([] if feed.streams else list(feed.cuts()), config.data.augment):
            tell(line)
    plan = feed.batch_sampler(processor.tokens)
    per_epoch = None if feed.streams else len(list(plan.epoch(0)))
    if per_epoch == 0:
        raise ConfigError("No record fits into `data.batch_tokens`: raise it.")

    data = unlimited(config.data) if task.any_length else config.data

    def sets(sources: Mapping[str, Any]) -> list[EvalSet]:
        def refused(cut: Cut) -> tuple[str, str] | None:
            return drop_reason(cut, False)

        return [EvalSet(n, *eval_plan(s, n, data, task.drop_reason, processor, refused)) for n, s in sources.items()]

    evals, tests = sets(config.data.eval), sets(config.data.test)
    shared = leakage.of_run(feed, [*evals, *tests])
    for line in leakage.summary_lines(shared):
        tell(line)
    remarks = [] if feed.streams else task.data_warnings(feed.cuts())
    for line in remarks:
        tell(line)
    return Prepared(task, losses, feed, bundle, plan, evals, tests, per_epoch, shared, remarks)


def train(stages: list[Config], folder: Path, texts: Mapping[str, str], command: list[str] | None = None) -> Path:
    """Run all stages into `folder` and leave the export, the results and the report there; a run that was cut off goes
    on where it was. `texts` are files to write beside them (config.yaml, resolved.yaml). Returns the folder."""
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.run_logger import RunLogger
    from stentor.report.report import write_report

    kinds = {(c.train.device, c.train.precision) for c in stages}
    if len(kinds) > 1:
        raise ConfigError("stages: `train.device` and `train.precision` must be the same in all stages.")
    device = accelerator(stages[0].train)
    control = Communicator(device.num_processes)
    written = folder / "resolved.yaml"
    same = written.exists() and written.read_text(encoding="utf-8") == texts.get("resolved.yaml")
    control.barrier()
    if device.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    before: Path | None = None
    for number, config in enumerate(stages):
        last = number == len(stages) - 1
        place = folder if last else folder / "stages" / str(number + 1)
        journal = RunLogger(folder, device.is_main_process, None if len(stages) == 1 else str(number + 1))
        if before is not None:
            config.model.init = str(before)
        if same and (place / "results.json").exists():
            if last and device.is_main_process:
                if not (folder / "report.html").exists():
                    write_report(folder)
                print(
                    f"{folder} is finished: see {folder / 'report.html'}. Raise `train.steps` or `train.epochs` to "
                    "train on, or choose another `name`."
                )
        else:
            control.barrier()
            if device.is_main_process:
                (place / "results.json").unlink(missing_ok=True)
            if len(stages) > 1:
                journal.event("stage", stage=number + 1, of=len(stages))
            _stage(config, place, journal, device, control, command or sys.argv, first=number == 0)
            device.free_memory()  # of the optimizers that it keeps, and with them of this stage's model
        before = place / "export"
        journal.close()
    return folder


def _stage(
    config: Config,
    place: Path,
    journal: Any,
    device: Accelerator,
    control: Communicator,
    command: list[str],
    first: bool,
) -> None:
    from stentor.callbacks.console import Console
    from stentor.callbacks.memory import Memory
    from stentor.callbacks.samples import Samples
    from stentor.commands.baseline import score_before, wanted
    from stentor.engine.signals import on_signal
    from stentor.engine.trainer import Trainer

    # Always there; the config may say how.
    own = {type(c) for c in config.callbacks}
    always = (Console, Memory, Samples) if config.task.audible else (Console, Memory)
    callbacks = [*config.callbacks, *(kind() for kind in always if kind not in own)]
    ready = prepare(config, journal.say)
    trainer = Trainer(
        config,
        ready.bundle,
        ready.task,
        ready.losses,
        ready.plan,
        ready.evals,
        callbacks,
        journal,
        device,
        control,
        place / "checkpoints",
        ready.feed.dropped,
        ready.feed.all_records,
        ready.batches_per_epoch,
        ready.feed.fingerprint(ready.plan),
    )
    for line in summary(ready):
        journal.say(line)
    if first and wanted(config):
        sets = [*ready.evals, *ready.tests]
        trainer.at_start = lambda: score_before(trainer, sets, journal.folder / BEFORE)
    trainer.fit()

    def stop() -> None:
        raise Stopped(
            "Stopped by a signal before the results were written. Training is done and saved: run the same command to "
            "go on."
        )

    try:
        with on_signal(stop):
            finish(config, ready, trainer, place, command)
    except OSError as error:
        raise StentorError(
            f"The results could not be written to {place} ({error}). Training is done and saved: make room and run the "
            "same command again."
        ) from error


def summary(ready: Prepared) -> list[str]:
    """What is about to be trained, in lines for a person."""
    from stentor.models.parameters import adapters_in, parameter_table

    lines = []
    if not ready.feed.streams:
        lines.append(f"Training on {ready.feed.records} records, {ready.feed.hours:.2f} h.")
    if not ready.evals:
        lines.append("Nothing is scored while training: `data.eval: {dev: held_out}` sets 5 % of the speakers aside.")
    for reason, count in sorted(ready.feed.dropped.reasons.items()):
        names = ", ".join(ready.feed.dropped.named[reason][:3])
        lines.append(f"Dropped {count} ({reason}): {names}{' ...' if count > 3 else ''}")
    adapters = adapters_in(ready.bundle.model, ready.bundle.parts())
    for part, total, trainable in parameter_table(ready.bundle.model, ready.bundle.parts()):
        own = f" ({adapters[part]:,} in adapters)" if adapters[part] else ""
        lines.append(f"Parameters of {part}: {total:,}, trained {trainable:,}{own}.")
    return lines


def finish(config: Config, ready: Prepared, trainer: Any, place: Path, command: list[str]) -> None:
    """Score the chosen weights on every set, then write the export, the results, the card and the report."""
    from stentor.commands.baseline import scored_before
    from stentor.commands.export.verify import check_run
    from stentor.engine import state
    from stentor.engine.environment import environment
    from stentor.engine.evaluate import breakdown
    from stentor.engine.run_logger import finite
    from stentor.models.parameters import parameter_table
    from stentor.publish.card import write_card
    from stentor.report.report import write_report

    weights = state.load_selected_weights(trainer)
    sets = [*ready.evals, *ready.tests]
    before = scored_before(config, sets, trainer.folder / BEFORE) if trainer.main else {}
    results: dict[str, Any] = {k: {} for k in ("eval", "by", "before", "before_by", "change", "data")}
    for eval_set in sets:
        scores, _, predictions = trainer.score(eval_set)
        results["eval"][eval_set.name] = {k: s.as_dict() for k, s in scores.items()}
        if trainer.main:
            if parts := breakdown(config.task, predictions, config.data.by):
                results["by"][eval_set.name] = parts
            if eval_set.name in before:
                for key, found in before[eval_set.name].beside(config, predictions, trainer.say).items():
                    results[key][eval_set.name] = found
            (place / "predictions").mkdir(parents=True, exist_ok=True)
            with (place / "predictions" / f"{eval_set.name}.jsonl").open("w", encoding="utf-8") as file:
                for p in predictions:
                    file.write(json.dumps(vars(p), ensure_ascii=False) + "\n")
    ready.feed.collect(trainer.control.gather)
    if not trainer.main:
        return
    results = {k: v for k, v in results.items() if v or k in ("eval", "data")}
    dropped = ready.feed.dropped
    replay = {} if ready.feed.replay is None else {"replay": ready.feed.replayed}
    results["data"] = {
        "used": ready.feed.records,
        "hours": round(ready.feed.hours, 4),
        **replay,
        "dropped": dict(dropped.reasons),
        "named": dict(dropped.named),
        "overlap": ready.overlap,
        "eval": {s.name: {"dropped": dict(s.dropped.reasons), "named": dict(s.dropped.named)} for s in sets},
        **({"remarks": ready.remarks} if ready.remarks else {}),
    }
    table = parameter_table(ready.bundle.model, ready.bundle.parts())
    results["parameters"] = {
        "total": sum(t for _, t, _ in table),
        "trained": sum(t for _, _, t in table),
        "parts": {part: {"total": t, "trained": u} for part, t, u in table},
    }
    results |= {
        "seconds": round(trainer.seconds, 1),
        "steps": trainer.step,
        "best": trainer.best,
        "stopped": trainer.stop_reason,
        "command": command,
        "environment": environment(trainer.accelerator),
    }
    (place / "export").mkdir(exist_ok=True)
    state.export(trainer, place / "export", weights)
    results["export"] = check_run(trainer, place, weights, sets)
    (place / "export" / "train_results.json").write_text(
        json.dumps({k: results[k] for k in ("seconds", "steps", "data")}, indent=1, ensure_ascii=False)
    )
    (place / "export" / "eval_results.json").write_text(json.dumps(results["eval"], indent=1, ensure_ascii=False))
    write_card(place / "export", config.plain(), results)
    temporary = place / "results.json.tmp"
    temporary.write_text(json.dumps(finite(results), indent=1, ensure_ascii=False), encoding="utf-8")
    temporary.replace(place / "results.json")
    trainer.event("finished", step=trainer.step, eval=results["eval"])
    if place == trainer.folder:
        write_report(place)
