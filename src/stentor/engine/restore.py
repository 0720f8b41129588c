"""Restoring: a trainer takes over a checkpoint, of its own run to resume or of another run to branch from.

Nothing is written before `begin`, so that a start that is refused leaves the run folder unchanged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from stentor.dataloading.stream_shards import ShardedStream
from stentor.engine import checkpoint, ema, interpolate
from stentor.engine.record_list import changed_records, write_records
from stentor.engine.state import TrainState, save
from stentor.engine.tensor_files import StoredTensors
from stentor.errors import ConfigError, without_secrets
from stentor.section import Section
from stentor.section.changes import Change, affecting_weights, changes, listed
from stentor.version import EXPORT_KEYS

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer

TRAINING_CONFIG = "export/training_config.json"
"""File of a checkpoint with the config that it was trained with."""


@dataclass(frozen=True)
class Origin:
    """A checkpoint of another run that a run starts from."""

    folder: Path
    run: str
    """Name of that run."""

    def as_dict(self) -> dict[str, Any]:
        """Return what is recorded of it in checkpoints and results.json."""
        meta = self.folder / checkpoint.META
        step = json.loads(meta.read_text())["step"]
        return {"run": self.run, "step": step, "checkpoint": str(self.folder), "hash": checkpoint.hash_of(meta)}


@dataclass
class Restored:
    """The checkpoint that a trainer was restored from: of its own run, or of another one."""

    resumed: Path | None
    origin: Origin | None
    initial: dict[str, Tensor] | None
    """Weights from before the first step, if `begin` has to store them."""
    begun: bool = False
    """Whether `begin` was called."""


def restore(trainer: Trainer, resumed: Path | None, origin: Origin | None = None) -> None:
    """Load `resumed`, the newest undamaged checkpoint of the run or, if it has none, that of `origin`. Nothing is
    written. Called on all ranks. Raises what `load` raises."""
    origin = None if resumed else origin
    folder = origin.folder if origin else resumed
    if origin and trainer.train.interpolate is not None and not _start_of(origin).is_dir():
        raise ConfigError(
            f"train.interpolate needs the weights from before the first step, and the run {origin.run} has not stored "
            "them, because it was started without this setting: leave it out."
        )
    trainer.restored = Restored(resumed, origin, None if origin else interpolate.initial_weights(trainer))
    if folder is not None:
        load(trainer, folder, origin)
    # Without a checkpoint there are rows of a run that was killed before its first one.
    trainer.logger.forget_after(-1 if resumed is None else trainer.step)


def begin(trainer: Trainer) -> None:
    """Write to the run folder for the first time: the start is accepted. Called on all ranks."""
    restored = trainer.restored
    assert restored is not None
    if restored.begun:
        return
    restored.begun = True
    trainer.logger.begin()
    if trainer.main:
        if restored.resumed is not None:
            checkpoint.set_aside_after(trainer.checkpoints, trainer.step, "damaged")
        if restored.origin is not None and trainer.train.interpolate is not None:
            target = trainer.checkpoints / interpolate.START
            shutil.copytree(_start_of(restored.origin), target, copy_function=checkpoint.link_file, dirs_exist_ok=True)
        write_records(trainer.checkpoints.parent, trainer.setup.train_data)
    if restored.initial is not None:
        interpolate.write_weights(trainer, trainer.checkpoints / interpolate.START, restored.initial)
    if restored.origin is not None:
        save(trainer)  # from then on the branch does not need the other run
    restored.initial = None


def _start_of(origin: Origin) -> Path:
    """Return the folder with the weights from before the first step of another run."""
    return origin.folder.parent / interpolate.START


def latest_checkpoint(trainer: Trainer) -> Path | None:
    """Return the newest undamaged checkpoint, the same on all ranks."""
    folder: Path | None = trainer.communicator.on_main(lambda: checkpoint.newest_good(trainer.checkpoints, trainer.say))
    return folder


def changed_settings(trainer: Trainer, folder: Path) -> list[Change]:
    """Return what differs between the settings that a checkpoint was trained with and those of the trainer."""
    before = json.loads((folder / TRAINING_CONFIG).read_text(encoding="utf-8"))
    return changes({k: v for k, v in before.items() if k not in EXPORT_KEYS}, cast(Section, trainer.config))


def load(trainer: Trainer, folder: Path, origin: Origin | None = None) -> None:
    """Load a checkpoint into the trainer, as a branch if it is that of `origin`. Raises ConfigError if it belongs to
    another model or, without `origin`, to other data, and if settings have changed and no step is left."""
    resume = folder / "resume"
    state = _read_state(folder)
    differences = changed_settings(trainer, folder)
    data, records = trainer.setup.train_data, None
    same_data = state.fingerprint == trainer.fingerprint
    if not same_data or state.texts not in ("", data.texts_digest):  # older checkpoints have none
        records = changed_records(folder.parent.parent, data, trainer.bundle.traits, same_data)
    _check_vocabulary(folder, differences)
    if not same_data and origin is None:
        raise ConfigError(
            f"The training data or its batching differs from that of {folder} ({records}), so its position in the data "
            "is not valid. Restore the data and its settings, or branch: another `name` with `--resume-from "
            f"{folder}` and more than {state.progress.step} steps continues with the optimizer on the new data."
        )
    _load_weights(trainer, folder, differences)
    _check_optimizer(trainer, folder, state.optim, differences)
    trainer.backend.load_optimizer_state(StoredTensors.of(resume, "optimizer"), state.optimizer)
    if trainer.ema is not None:  # a new average starts with the current weights
        trainer.ema.load(ema.exported_weights(folder))
    if origin is not None:
        _start_branch(state, trainer, differences, same_data)
    _restore(trainer, state, differences, same_data)
    if same_data:
        _warn_of_changed_audio(trainer, state.audio)
    if trainer.step >= trainer.total_steps:
        _refuse_changes(trainer, folder, origin, affecting_weights(differences))
    _describe(trainer, folder, origin, differences, records)


def _check_vocabulary(folder: Path, differences: Sequence[Change]) -> None:
    """Raise ConfigError for changed settings of what the weights have a row for, which would mean something else."""
    if fixed := [change for change in differences if change.effect == "fixed"]:
        raise ConfigError(
            f"{folder} has the tokenizer or alphabet that its weights were trained with, so that it cannot be resumed "
            f"with other settings of it ({listed(fixed)}). Restore them, or start a new run under another `name` to "
            "train with another tokenizer or alphabet."
        )


def _refuse_changes(trainer: Trainer, folder: Path, origin: Origin | None, changed: Sequence[Change]) -> None:
    """Raise ConfigError for changed settings and for a branch, of a checkpoint after which no step is left."""
    if not (changed or origin):
        return
    unit = "train.steps" if trainer.train.steps is not None else "train.epochs"
    what = f"settings have changed ({listed(changed)}), but " if changed else ""
    more = f"raise `{unit}`, so that there are more than {trainer.step} steps"
    here = more if origin else f"{more}, here or in a branch (another `name` with `--resume-from {folder}`)"
    raise ConfigError(
        f"{folder} is at step {trainer.step} of {trainer.total_steps}: {what}nothing is left to train. Nothing was "
        f"written. To train from the start, choose another `name`{' without --resume-from' if origin else ''}; to "
        f"continue from these weights, {here}."
    )


def _read_state(folder: Path) -> TrainState:
    path = folder / "resume" / "state.json"
    try:
        return TrainState.from_dict(json.loads(path.read_text()))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} was not written by this version of Stentor ({error} is missing or invalid): resume with the "
            f"version that wrote it, or start a new run under another `name` with `model.init` set to "
            f"{folder / 'export'}."
        ) from None


def _load_weights(trainer: Trainer, folder: Path, differences: Sequence[Change]) -> None:
    model, weights = trainer.bundle.model, StoredTensors.of(folder / "resume", "weights")
    here = ema.trained_tensors(model)
    missing, extra = sorted(here.keys() - set(weights)), sorted(set(weights) - here.keys())
    shapes = [n for n in here if n in weights and weights.shape(n) != here[n].shape]
    parts = [str(change) for change in differences if change.key == "model.type"]
    parts += [f"{len(missing)} trained tensors are not in it, such as {missing[0]}"] if missing else []
    parts += [f"{len(extra)} of its tensors are not trained here, such as {extra[0]}"] if extra else []
    parts += [f"{n} is {list(weights.shape(n))} there and {list(here[n].shape)} here" for n in shapes[:1]]
    if parts:
        same = not any(change.key.startswith("model.") for change in differences)
        restore = "training data and the task (the `model:` section is unchanged)" if same else "`model:` section"
        raise ConfigError(
            f"The checkpoint {folder} belongs to another model ({'; '.join(parts)}). Restore the {restore}, or "
            f"start a new run under another `name`; if its weights fit, with `model.init` set to {folder / 'export'}."
        )
    ema.read_weights(model, weights)


def _check_optimizer(trainer: Trainer, folder: Path, before: str, differences: Sequence[Change]) -> None:
    """Raise ConfigError when the optimizer needs another state than the checkpoint has."""
    now = trainer.config.optim.type
    needs = {"adam": "amsgrad", "adamw": "amsgrad", "rmsprop": "momentum"}.get(now)
    more = [c for c in differences if c.key == f"optim.{needs}" and c.now and not c.before]
    if before == now and not more:
        return
    what = f"optim.type {before}, not {now}" if before != now else f"another optimizer ({more[0]})"
    raise ConfigError(
        f"The checkpoint {folder} has the state of {what}. Restore it, or start a new run under another `name` with "
        f"`model.init` set to {folder / 'export'}, which takes the weights alone."
    )


def _start_branch(state: TrainState, trainer: Trainer, differences: Sequence[Change], same_data: bool) -> None:
    """Leave out of the state of another run what does not hold for the branch."""
    if any(change.key.startswith(("data.eval", "task.", "callbacks.")) for change in differences):
        state.progress.best, state.progress.evaluated, state.callbacks = [], 0, {}
        state.plateau[:2] = None, 0
    if same_data:
        return
    # The other data begins with an epoch of its own; batches stay numbered over the whole training.
    progress, first = state.progress, state.progress.next_index
    progress.position = {"epoch": progress.epoch + 1, "within": 0, "index": first}
    progress.bad, progress.seen = {}, 0
    shards = trainer.setup.train_data.num_shards
    state.lanes = [[shard, [-(-(first - shard) // shards), progress.epoch + 1]] for shard in range(shards)]


def _restore(trainer: Trainer, state: TrainState, differences: Sequence[Change], same_data: bool) -> None:
    trainer.progress, trainer.unjudged = state.progress, state.progress.step
    trainer.judged = {state.progress.good or 0, *(b["step"] for b in state.progress.best)}
    if isinstance(trainer.batch_sampler, ShardedStream):
        trainer.batch_sampler.resume_at(state.lanes)
    for reason, message in state.progress.bad.values():
        trainer.dropped.add(reason, message)
    if same_data:
        trainer.meter.load_state_dict(state.meter, trainer.main)
    trainer.plateau.best, trainer.plateau.bad, trainer.plateau.factor = state.plateau
    if state.scaler and trainer.accelerator.scaler:
        trainer.accelerator.scaler.load_state_dict(state.scaler)
    for number, callback in enumerate(trainer.callbacks):
        if (callback_state := state.callbacks.get(f"{number}-{callback.type}")) is not None:
            callback.load_state_dict(callback_state)
    if not any(change.key == "train.accumulate" for change in differences):
        _keep_step_size(trainer, state.batches_per_step)


def _warn_of_changed_audio(trainer: Trainer, before: dict[str, str]) -> None:
    both = before.keys() & trainer.audio.keys()
    if changed := sorted(name for name in both if before[name] != trainer.audio[name]):
        trainer.event("changed_audio", ids=changed, sampled=len(both))
        named = ", ".join(changed[:5]) + (" ..." if len(changed) > 5 else "")
        trainer.say(
            f"Warning: the audio of {len(changed)} of {len(both)} sampled training records has changed since this run "
            f"started ({named}). Training continues with the new audio; to train on it from the start, choose another "
            "`name`."
        )


def _keep_step_size(trainer: Trainer, before: int) -> None:
    """Adjust the accumulation after a change of the number of processes, to keep the batches per step."""
    if before == trainer.batches_per_step:
        return
    if before % trainer.world == 0:
        trainer.accumulate = before // trainer.world
        trainer.say(f"Keeping {before} batches per step: accumulating {trainer.accumulate} on each process.")
    else:
        trainer.say(
            f"A step had {before} batches; from now on, with {trainer.world} processes, it has "
            f"{trainer.batches_per_step}."
        )


def _describe(
    trainer: Trainer, folder: Path, origin: Origin | None, differences: Sequence[Change], records: str | None
) -> None:
    """Say what is continued and what has changed, and record it as a part of the training."""
    where = folder.name if origin is None else f"{folder}, a branch of the run {origin.run}"
    trainer.say(f"Resuming from step {trainer.step} of {trainer.total_steps} ({where}).")
    part: dict[str, Any] = {"from": trainer.step + 1}
    if origin is not None:
        part["origin"] = origin.as_dict()
    if effective := affecting_weights(differences):
        trainer.say(f"Changed settings from step {trainer.step + 1} on: {listed(effective)}.")
        part["changed"] = {c.key: [c.before, c.now] for c in effective}
    if records:
        part["records"] = records
        trainer.say(f"Changed training data: {records}. Tokenizer and alphabet stay those of the checkpoint.")
    if len(part) > 1:
        trainer.progress.parts.append(json.loads(without_secrets(json.dumps(part))))
