"""THE file to read first: from a config to a trained, scored, exported model.

Config -> task and losses -> training data -> model family -> batches (`prepare` makes a TrainingSetup of them)
       -> backend and trainer (the loop) -> the selected weights, scored -> export, results.json, report.html
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stentor.callbacks.console import Console
from stentor.callbacks.idle_loss import IdleLoss
from stentor.callbacks.memory import Memory
from stentor.callbacks.samples import Samples
from stentor.commands.addresses import with_local_models
from stentor.commands.baseline import load_baselines, score_baseline, wants_baseline
from stentor.commands.run_start import EXPORT_FILES, Start, recorded_origin
from stentor.commands.run_summary import eval_size_lines, summary
from stentor.config.checks import check_sections, losses_of
from stentor.config.schema import Config
from stentor.data.cut import field_of
from stentor.data.feature_cache import FeatureCache
from stentor.data.trained_speech import measured
from stentor.data.word_faults import untimed_words
from stentor.dataloading import leakage
from stentor.dataloading.dataset import eval_plan, train_dataset, unlimited
from stentor.dataloading.planned import ModelDrops, partly_trained, without_loss
from stentor.engine import checkpoint, interpolate, state
from stentor.engine.backend import Backend
from stentor.engine.callback import Callback
from stentor.engine.device import Communicator, accelerator, environment
from stentor.engine.evaluate import EvalSet, breakdown, metrics_row
from stentor.engine.optim import choose_groups
from stentor.engine.restore import restore
from stentor.engine.run_lock import run_lock
from stentor.engine.run_logger import RunLogger, finite
from stentor.engine.setup import TrainingSetup
from stentor.engine.signals import on_signal
from stentor.engine.trainer import Trainer
from stentor.errors import ConfigError, StentorError, Stopped, without_secrets
from stentor.export.verify import check_run
from stentor.inference.load import TRAINING_CONFIG, check_format, from_runs
from stentor.inference.speak.voice import VOICES
from stentor.losses.base import expanded
from stentor.models.parameters import parameter_table
from stentor.models.pretrained.weights import ADAPTER_FILE, check_weights
from stentor.pipeline.journal import write_json, write_lines
from stentor.publish.card import write_card
from stentor.report.report import write_report
from stentor.section.contract import blame
from stentor.section.full_paths import with_full_paths
from stentor.sources.base import source_notes
from stentor.tasks.transcribe import Transcribe
from stentor.text.letters import changed_letters
from stentor.version import RUN_FORMAT, format_keys

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.models.base import Bundle
    from stentor.tasks.base import TaskRequirements

UNHASHED = (TRAINING_CONFIG, "train_results.json", "eval_results.json", "README.md")
"""Files of an export that describe it or may be changed."""
BASELINE_FOLDER = "before"
"""Folder of a run with the scores from before training."""


def prepare(config: Config, say: Callable[[str], None], resumed_export: Path | None = None) -> TrainingSetup:
    """Read the data's metadata, build the model and plan the batches; no audio is read, nothing is written.
    `resumed_export`: see `TaskRequirements`."""
    task = config.task
    sections = losses_of(config)
    check_sections(config)
    config.data.augment.check()
    task.check()
    segments = task.training_segments if task.any_length else None
    train_data = train_dataset(config.data, config.train.seed, task.drop_reason, say, segments)
    requirements = task.requirements(sections)
    requirements.texts, requirements.cuts = train_data.texts, train_data.cuts
    requirements.complete, requirements.resumed_export = not train_data.streams, resumed_export
    torch.manual_seed(config.train.seed)
    bundle = build_model(config, requirements)
    task.check_processor(bundle.processor)
    check_weights(bundle.model.named_parameters(), "model")
    choose_groups(config.optim, [n for n, p in bundle.model.named_parameters() if p.requires_grad])
    losses = expanded(sections, bundle.codebooks, bundle.traits.loss_parts)
    processor = bundle.processor
    train_data.leave_out(ModelDrops(task, processor, training=True))
    if isinstance(processor, FeatureCache):
        for line in processor.check_cache([] if train_data.streams else list(train_data.cuts()), config.data.augment):
            say(line)
    batch_sampler = train_data.batch_sampler(processor.tokens, bundle.traits.packed_length)
    statistics = train_data.statistics(batch_sampler)
    batches_per_epoch = None if statistics is None else round(statistics["batches"])
    if batches_per_epoch == 0:
        named = train_data.dropped.named["too_long_for_batch"]
        raise ConfigError(f"No record fits into `data.batch_tokens`: raise it ({', '.join(named[:3])}).")

    data = unlimited(config.data) if task.any_length else config.data

    def eval_sets(kind: str, sources: Mapping[str, Any]) -> list[EvalSet]:
        reason = ModelDrops(task, processor, training=False)
        sets = []
        for name, source in sources.items():
            plan, dropped = eval_plan(source, f"data.{kind}.{name}", data, processor, task.drop_reason, reason)
            cuts = (item.cut for items in plan.epoch(0) for item in items)
            sets.append(EvalSet(name, plan, dropped, without_loss(task, processor, cuts)))
        return sets

    evals, tests = eval_sets("eval", config.data.eval), eval_sets("test", config.data.test)
    overlap = leakage.of_run(train_data, {s.name: s.plan for s in [*evals, *tests]})
    sources = {"train": data.train, "replay": data.replay, "eval": data.eval, "test": data.test}
    data_warnings = source_notes(sources, "data")
    if not train_data.streams:
        partly = partly_trained(task, processor, train_data.cuts())
        data_warnings += [*partly, *task.data_warnings(train_data.cuts()), *untimed_words(train_data.cuts())]
    if changed := changed_letters(train_data.texts(), bundle.traits.written):
        refuse = " `model.accents: keep` refuses such records." if bundle.family.has_accents else ""
        data_warnings.append(f"Letters that the model does not have are changed in {changed}.{refuse}")
    sizes = eval_size_lines(config.data, [*evals, *tests])
    for line in [*leakage.summary_lines(overlap), *data_warnings, *sizes]:
        say(line)
    return TrainingSetup(
        task,
        losses,
        train_data,
        bundle,
        batch_sampler,
        evals,
        tests,
        batches_per_epoch,
        overlap,
        data_warnings,
        changed,
    )


def build_model(config: Config, requirements: TaskRequirements) -> Bundle:
    """The model of the config. Raises ConfigError for sizes that torch or transformers refuse, and for exports to start
    from that only a newer Stentor reads."""
    try:
        family = from_runs(with_local_models(with_full_paths(config.model)))
        for origin in family.model_dump(include={"init", "source"}).values():
            if isinstance(origin, str):
                check_format(Path(origin))
        return family.build(requirements)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, RuntimeError, ArithmeticError, MemoryError) as error:
        problem = " ".join(str(error).split())[:300].rstrip(".")
        raise blame(error) or ConfigError(
            f"The model that `model:` describes cannot be built: {problem}. Check its sizes: widths must be multiples "
            "of their heads, and the weights must fit into memory."
        ) from error


@dataclass
class Run:
    """The run folder and this process's place among the processes of the run."""

    folder: Path
    device: Accelerator
    communicator: Communicator
    command: Sequence[str]  # command line, for results.json
    texts: Mapping[str, str]  # files to write into the run folder
    start: Start

    def logger(self, folder: Path, stage: str | None = None) -> RunLogger:
        """Return the logger of a stage, whose results are in `folder`."""
        accept = partial(self.start.accept, self.folder, folder, self.texts)
        return RunLogger(self.folder, self.device.is_main_process, stage, accept, not self.start.is_new)


@contextlib.contextmanager
def open_run(
    stages: Sequence[Config],
    folder: Path,
    texts: Mapping[str, str],
    command: Sequence[str] | None = None,
    resume_from: Path | None = None,
) -> Iterator[Run]:
    """Yield the run of a folder, which is locked against others. Called on all ranks; arguments are as in `train`."""
    device = accelerator(stages[0].train)
    communicator = Communicator(device.num_processes)
    with contextlib.ExitStack() as stack:
        communicator.on_main(lambda: stack.enter_context(run_lock(folder)))
        start: Start = communicator.on_main(partial(Start.of, folder, stages, resume_from))
        yield Run(folder, device, communicator, command or arguments(), texts, start)


def train(
    stages: list[Config],
    folder: Path,
    texts: Mapping[str, str],
    command: list[str] | None = None,
    resume_from: Path | None = None,
) -> Path:
    """Run all stages into `folder` and leave the export, the results and the report there; a run that was cut off
    resumes where it was, and a new one starts from the checkpoint `resume_from`, if one is given. `texts` are files to
    write beside them (config.yaml, resolved.yaml). Returns the folder."""
    if len({(c.train.device, c.train.precision) for c in stages}) > 1:
        raise ConfigError("stages: `train.device` and `train.precision` must be the same in all stages.")
    with open_run(stages, folder, texts, command, resume_from) as run:
        export = None
        for number, config in enumerate(stages, 1):
            stage_folder = folder if number == len(stages) else folder / "stages" / str(number)
            logger = run.logger(stage_folder, None if len(stages) == 1 else str(number))
            if export is not None:
                config = with_init(config, export)
            if not run.communicator.on_main(partial(run.start.is_finished, number, stage_folder, logger.say)):
                if len(stages) > 1:
                    logger.event("stage", stage=number, of=len(stages))
                train_stage(config, stage_folder, run, logger)
                run.device.free_memory()  # of the optimizers that it keeps, and with them of this stage's model
            elif number == len(stages) and run.device.is_main_process:
                if not (folder / "report.html").exists():
                    write_report(folder)
                print(
                    f"{folder} is finished: see {folder / 'report.html'}. Raise `train.steps` or `train.epochs` to "
                    "train on, or choose another `name`."
                )
            export = stage_folder / "export"
            logger.close()
    return folder


def with_init(config: Config, export: Path) -> Config:
    """The config with a model that starts from an export."""
    return config.model_copy(update={"model": config.model.model_copy(update={"init": str(export)})})


def train_stage(config: Config, folder: Path, run: Run, logger: RunLogger) -> None:
    """Train one stage into `folder` and write its results."""
    trainer = trainer_of(config, folder, run, logger)
    if logger.stage in (None, "1") and wants_baseline(config):
        trainer.at_start = partial(score_baseline, trainer, trainer.setup.eval_sets, logger.folder / BASELINE_FOLDER)
    trainer.fit()
    for line in trainer.dropped.lines() if trainer.progress.bad else ():
        trainer.say(f"Dropped in all {line}")

    def stop() -> None:
        raise Stopped(
            "Stopped by a signal before the results were written. Training is done and saved: run the same command to "
            "resume."
        )

    try:
        with on_signal(stop):
            finish(trainer, folder, run.command)
    except OSError as error:
        raise StentorError(
            f"The results could not be written to {folder} ({error}). Training is done and saved: make room and run "
            "the same command again."
        ) from error


def trainer_of(config: Config, folder: Path, run: Run, logger: RunLogger) -> Trainer:
    """Return the trainer of one stage, whose checkpoints are in `folder`, as far as it was trained."""
    origin, checkpoints = run.start.origin, folder / "checkpoints"
    resumed = run.communicator.on_main(partial(checkpoint.newest_good, checkpoints, logger.say))
    base = next((place / "export" for place in (resumed, origin and origin.folder) if place), None)
    branch = origin is not None or recorded_origin(folder) is not None
    if base and config.model.model_dump().get("lora") and not (base / ADAPTER_FILE).is_file():
        branch = False  # adapters that are folded into its weights would be added twice
    try:
        setup = prepare(with_init(config, base) if branch and base else config, logger.say, base)
    except ConfigError as error:
        if not (branch and base):
            raise
        raise ConfigError(f"The model is built on {base}, as with `model.init`. {error}") from error
    interpolate.check(config, setup)
    if isinstance(config.task, Transcribe) and not setup.train_data.streams:
        setup.bundle.traits.trained_speech = measured(setup.bundle.traits.trained_speech, setup.train_data.cuts())
    backend = Backend(config.optim, config.train, setup, run.device)
    trainer = Trainer(config, setup, backend, run.communicator, callbacks_of(config), logger, checkpoints)
    for line in summary(setup):
        logger.say(line)
    restore(trainer, resumed, origin)
    return trainer


def callbacks_of(config: Config) -> list[Callback]:
    """The callbacks of the config and those that every run has, of which the config may have its own."""
    always = (Console, Memory, *((Samples,) if config.task.audible else ()), IdleLoss)
    configured = {type(c) for c in config.callbacks}
    return [*config.callbacks, *(kind() for kind in always if kind not in configured)]


def arguments() -> list[str]:
    """This process's command, in a form that can be run again."""
    program, *rest = sys.argv
    return [*(["python", "-m", "stentor"] if Path(program).name == "__main__.py" else [program]), *rest]


def finish(trainer: Trainer, folder: Path, command: Sequence[str]) -> None:
    """Score the selected weights on every set, then write the export, the results, the card and the report."""
    scratch = folder / ".export.tmp"
    state.load_selected_weights(trainer)
    interpolation = interpolate.interpolate(trainer)
    weights = state.whole_weights(trainer, scratch)
    results = score_sets(trainer, folder)
    trainer.setup.train_data.collect(trainer.communicator.gather)
    if not trainer.main:
        return
    results |= run_facts(trainer, command) | ({} if interpolation is None else {"interpolate": interpolation})
    export = folder / "export"
    export.mkdir(exist_ok=True)
    state.export(trainer, export, weights)
    results["export"] = check_run(trainer, folder, weights, trainer.setup.eval_sets)
    results[EXPORT_FILES] = {
        p.relative_to(export).as_posix(): checkpoint.hash_of(p)
        for p in sorted(export.rglob("*"))
        # `evaluate --tune` changes the config, voices come and go, and the others are written below.
        if p.is_file() and p.name not in UNHASHED and p.parent.name not in (VOICES, ".eval_results")
    }
    losses = finite({k: results[k] for k in ("epoch", "train_loss", "eval_loss")})
    write_json(export / "train_results.json", {k: results[k] for k in ("seconds", "steps", "data")} | losses)
    write_json(export / "eval_results.json", results["eval"] | losses)
    write_card(export, trainer.config.plain(), results)
    shutil.rmtree(scratch, ignore_errors=True)
    write_json(folder / "results.json", finite(results))
    trainer.event("finished", step=trainer.step, eval=results["eval"])
    if folder == trainer.folder:
        write_report(folder)


def score_sets(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Score every set and write its predictions; the entries of results.json (complete on the main process)."""
    config, eval_sets = trainer.config, trainer.setup.eval_sets
    baselines = load_baselines(config, eval_sets, trainer.folder / BASELINE_FOLDER) if trainer.main else {}
    results: dict[str, Any] = {k: {} for k in ("eval", "eval_loss", "by", "before", "before_by", "change")}
    for eval_set in eval_sets:
        name = eval_set.name
        scores, means, predictions = trainer.score(eval_set)
        results["eval"][name] = {k: s.as_dict() for k, s in scores.items()}
        if means:
            results["eval_loss"][name] = metrics_row(trainer.losses, name, scores, means)[f"eval/{name}/loss"]
        if not trainer.main:
            continue
        if scores_by_field := breakdown(config.task, predictions, config.data.by):
            results["by"][name] = scores_by_field
        if name in baselines:
            for key, entry in baselines[name].compare(config, predictions, trainer.say).items():
                results[key][name] = entry
        text = "".join(json.dumps(vars(p), ensure_ascii=False) + "\n" for p in predictions)
        write_lines(folder / "predictions" / f"{name}.jsonl", [without_secrets(text)])
    return {k: v for k, v in results.items() if v or k in ("eval", "eval_loss")}


def run_facts(trainer: Trainer, command: Sequence[str]) -> dict[str, Any]:
    """Data, parameters, length and environment of the run: entries of results.json."""
    setup, progress = trainer.setup, trainer.progress
    train_data, model, parts = setup.train_data, setup.bundle.model, setup.bundle.parts()
    cuts = train_data.cuts
    table = parameter_table(model, parts)
    return {
        **format_keys(RUN_FORMAT),
        "data": {
            "used": max(train_data.records - len(progress.bad), 0),
            "hours": round(train_data.hours, 4),
            **({} if train_data.streams else {"longest_seconds": round(max(c.duration for c in cuts()), 2)}),
            **({} if train_data.streams else {"with_context": sum(bool(field_of(c, "context")) for c in cuts())}),
            **({} if train_data.replay is None else {"replay": train_data.replayed}),
            **train_data.dropped.facts(),
            "overlap": setup.overlap,
            "eval": {s.name: s.facts() for s in setup.eval_sets},
            **({"remarks": setup.data_warnings} if setup.data_warnings else {}),
            **({"changed_letters": vars(setup.changed_letters)} if setup.changed_letters else {}),
        },
        "parameters": {
            "total": sum(total for _, total, _ in table),
            "trained": sum(trained for _, _, trained in table),
            "parts": {part: {"total": total, "trained": trained} for part, total, trained in table},
        },
        "seconds": round(progress.seconds, 1),
        "steps": progress.step,
        "epoch": round(trainer.progress_epochs(), 4),
        "train_loss": trainer.logger.newest("train/loss"),
        **({"parts": progress.parts} if progress.parts else {}),
        "best": progress.best,
        "best_metric": progress.watched.get("best"),
        "stopped": trainer.stop_reason,
        "command": command,
        "environment": environment(trainer.accelerator),
    }
