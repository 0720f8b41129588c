"""Train state: the content of a checkpoint besides tensors, and saving and restoring a trainer."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stentor.dataloading.stream_shards import ShardedStream
from stentor.engine import checkpoint, ema
from stentor.engine.checkpoint_writer import PendingCheckpoint, assembled, write_divided
from stentor.engine.interpolate import greedy_soup
from stentor.engine.sharding import TensorShard, is_divided, own_shards
from stentor.engine.tensor_files import MeanTensors, StoredTensors
from stentor.errors import ConfigError, without_secrets
from stentor.section.contract import violation
from stentor.version import EXPORT_FORMAT, format_keys

if TYPE_CHECKING:
    from stentor.engine.callback import Callback
    from stentor.engine.trainer import Trainer


@dataclass
class TrainProgress:
    """Progress of training. The fields are keys of state.json."""

    step: int = 0  # optimizer steps done, skipped ones included
    epoch: int = 0  # the epoch whose batches are being trained on
    position: dict[str, int] = field(default_factory=lambda: {"epoch": 0, "within": 0, "index": 0})
    """Position of the last batch: its epoch, its number in the epoch and its number in the run."""
    next_index: int = 0  # number in the run of the next step's first batch
    skipped: int = 0  # consecutive updates that were skipped for a non-finite loss or gradient
    seconds: float = 0.0  # time in the loop, including earlier processes of this run
    best: list[dict[str, Any]] = field(default_factory=list)
    """{"step", "value"} of the best evaluations, best first."""
    bad: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Records with unusable audio: id -> (reason, message)."""
    seen: int = 0  # records that were read or tried
    evaluated: int = 0  # the step that was scored last
    watched: dict[str, str | None] = field(default_factory=dict)
    """Metrics by which `best` is ranked and the plateau schedule decides; empty in older checkpoints."""


@dataclass
class TrainState:
    """Everything besides tensors that the next step depends on: state.json of a checkpoint."""

    progress: TrainProgress
    batches_per_step: int  # batches that all processes together took in an optimizer step
    fingerprint: str  # of the training data and its batching
    optim: str  # `optim.type`
    plateau: list[Any]  # best metric, evaluations without a better one, and factor of the schedule `plateau`
    scaler: dict[str, Any] | None  # loss scale of fp16
    callbacks: dict[str, dict[str, Any]]  # state of each callback by `NUMBER-TYPE`
    optimizer: dict[str, Any]  # values of the optimizer's state that are not tensors, by `PARAMETER|KEY`
    meter: dict[str, Any]  # losses since the last row of metrics
    lanes: list[Any]  # position in each shard of a stream
    audio: dict[str, str] = field(default_factory=dict)
    """Hashes of the audio of some training records, by id; older checkpoints have none."""

    def as_dict(self) -> dict[str, Any]:
        """Return the content of state.json."""
        progress = {k: v for k, v in vars(self.progress).items() if k != "watched" or v}
        return progress | {k: v for k, v in vars(self).items() if k != "progress"}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainState:
        """Create it from the content of state.json. Raises KeyError with the name of a missing key."""
        kept = {f.name: content[f.name] for f in fields(TrainProgress) if f.name != "watched"}
        progress = TrainProgress(**kept, watched=content.get("watched", {}))
        progress.bad = {name: (reason, message) for name, (reason, message) in progress.bad.items()}
        required = {f.name: content[f.name] for f in fields(cls) if f.name not in ("progress", "audio")}
        return cls(progress, **required, audio=content.get("audio", {}))


def save(trainer: Trainer) -> None:
    """Start writing a checkpoint, after the one being written; called on all ranks. It is complete, and errors are
    raised, when `wait_for_checkpoint` returns. Raises StentorError for errors of the disk."""
    wait_for_checkpoint(trainer)
    model = trainer.bundle.model
    buffers = {name for name, _ in model.named_buffers()}  # each rank's own, and changed by a forward
    shards: dict[str, dict[str, TensorShard]] = {}
    for kind, tensors in (("weights", ema.trained_tensors(model)), ("ema", trainer.ema.shadow if trainer.ema else {})):
        if tensors:
            shards[kind] = own_shards({n: t.clone() if n in buffers else t for n, t in tensors.items()}, buffers)
    shards["optimizer"], plain = trainer.backend.optimizer_state()
    frozen = ema.exported_frozen_tensors(trainer.bundle)
    whole = {n: t.detach() for n, t in frozen.items() if not is_divided(t)}
    best = [checkpoint.name_of(b["step"]) for b in trainer.progress.best]
    pending = PendingCheckpoint(
        step=trainer.step,
        state=json.dumps(_state_of(trainer, plain).as_dict()),
        shards=shards,
        frozen=own_shards({n: t for n, t in frozen.items() if is_divided(t)}),
        whole=whole if trainer.main else {},
        export=partial(export, trainer),
        then=partial(_complete, trainer, best),
    )
    trainer.writer.start(pending)


def _complete(trainer: Trainer, best: list[str], folder: Path) -> None:
    """Finish a complete checkpoint, in the background of the main process. `best`: names, best first."""
    parent = folder.parent
    if best and (parent / best[0]).exists():
        checkpoint.point(parent, "best", parent / best[0])
    checkpoint.prune(parent, trainer.train.keep, set(best[: trainer.train.keep_best]))
    if trainer.after_checkpoint is not None:
        trainer.after_checkpoint(folder)


def wait_for_checkpoint(trainer: Trainer) -> None:
    """Wait for the checkpoint being written and call the callbacks. Called on all ranks; if writing failed, raises the
    error on all of them."""
    if (folder := trainer.writer.wait()) is not None:
        trainer.event("saved", step=checkpoint.step_of(folder), folder=folder.name)
        for callback in trainer.callbacks:
            callback.on_save(trainer, folder)


def _state_of(trainer: Trainer, optimizer: dict[str, Any]) -> TrainState:
    """Return the state of a trainer. Called on all ranks."""
    meter = trainer.meter.state_dict()
    batch_sampler, scaler, plateau = trainer.batch_sampler, trainer.accelerator.scaler, trainer.plateau
    lanes = batch_sampler.starts(trainer.progress.next_index) if isinstance(batch_sampler, ShardedStream) else []
    return TrainState(
        progress=trainer.progress,
        batches_per_step=trainer.batches_per_step,
        fingerprint=trainer.fingerprint,
        optim=trainer.config.optim.type,
        plateau=[plateau.best, plateau.bad, plateau.factor],
        scaler=scaler.state_dict() if scaler else None,
        callbacks={f"{i}-{c.type}": _callback_state(c) for i, c in enumerate(trainer.callbacks)},
        optimizer=optimizer,
        meter=meter,
        lanes=[lane for part in trainer.communicator.gather(lanes) for lane in part],
        audio=trainer.audio,
    )


def _callback_state(callback: Callback) -> dict[str, Any]:
    state = callback.state_dict()
    try:
        json.dumps(state)
    except (TypeError, ValueError):
        raise violation(callback, "state_dict", "return JSON-serialisable data", state) from None
    return state


def load(trainer: Trainer, folder: Path) -> None:
    """Load a checkpoint into the trainer. Raises ConfigError if it belongs to another model or other data."""
    resume = folder / "resume"
    try:
        state = TrainState.from_dict(json.loads((resume / "state.json").read_text()))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{resume / 'state.json'} was not written by this version of Stentor ({error} is missing or invalid): "
            "resume with the version that wrote it, or start a new run under another `name` with `model.init` set to "
            f"{folder / 'export'}."
        ) from None
    if state.fingerprint != trainer.fingerprint:
        raise ConfigError(
            f"The training data or its batching differs from that of {folder}, so its position in the data is not "
            "valid. Restore the data settings, or start a new run under another `name` (with `model.init` set to "
            f"{folder / 'export'} to continue from these weights)."
        )
    weights = StoredTensors.of(resume, "weights")
    try:
        if missing := set(ema.trained_tensors(trainer.bundle.model)) - set(weights):
            raise KeyError(min(missing))
        ema.read_weights(trainer.bundle.model, weights)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"The checkpoint {folder} belongs to another model ({error}). Restore the `model:` section, or start a "
            "new run under another `name`."
        ) from None
    if state.optim != trainer.config.optim.type:
        raise ConfigError(
            f"The checkpoint {folder} has the state of optim.type {state.optim}, not {trainer.config.optim.type}. "
            "Restore it, or start a new run under another `name`."
        )
    trainer.backend.load_optimizer_state(StoredTensors.of(resume, "optimizer"), state.optimizer)
    if trainer.ema is not None:  # a new average starts with the current weights
        trainer.ema.load(ema.exported_weights(folder))
    _restore(trainer, state)
    _warn_of_changed_audio(trainer, state.audio)
    trainer.logger.forget_after(trainer.step)
    done = " No step is left: changed settings do not change weights." if trainer.step == trainer.total_steps else ""
    trainer.say(f"Resuming from step {trainer.step} of {trainer.total_steps} ({folder.name}).{done}")


def _restore(trainer: Trainer, state: TrainState) -> None:
    trainer.progress = state.progress
    if isinstance(trainer.batch_sampler, ShardedStream):
        trainer.batch_sampler.resume_at(state.lanes)
    for reason, message in state.progress.bad.values():
        trainer.dropped.add(reason, message)
    trainer.meter.load_state_dict(state.meter, trainer.main)
    trainer.plateau.best, trainer.plateau.bad, trainer.plateau.factor = state.plateau
    if state.scaler and trainer.accelerator.scaler:
        trainer.accelerator.scaler.load_state_dict(state.scaler)
    for number, callback in enumerate(trainer.callbacks):
        if (callback_state := state.callbacks.get(f"{number}-{callback.type}")) is not None:
            callback.load_state_dict(callback_state)
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


def latest_checkpoint(trainer: Trainer) -> Path | None:
    """Return the newest undamaged checkpoint, the same on all ranks."""
    folder: Path | None = trainer.communicator.on_main(lambda: checkpoint.newest_good(trainer.checkpoints, trainer.say))
    return folder


def export(trainer: Trainer, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write an export folder from whole weights: the files of the family and the training config. For checkpoints, this
    runs in the background."""
    trainer.bundle.family.save(trainer.bundle, weights, folder)
    content = format_keys(EXPORT_FORMAT) | trainer.config.plain()
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / "training_config.json").write_text(without_secrets(text), encoding="utf-8")


def _best_checkpoints(trainer: Trainer) -> list[tuple[dict[str, Any], Path]]:
    """Return the best undamaged checkpoints, best first, and their entries in `progress.best`, on all ranks."""

    def undamaged() -> list[tuple[dict[str, Any], Path]]:
        checkpoints = []
        for best in trainer.progress.best:
            folder = trainer.checkpoints / checkpoint.name_of(best["step"])
            if damage := checkpoint.damage(folder):
                trainer.say(f"The checkpoint {folder.name}, one of the best, is skipped: {damage}.")
            else:
                checkpoints.append((best, folder))
        return checkpoints

    checkpoints: list[tuple[dict[str, Any], Path]] = trainer.communicator.on_main(undamaged)
    return checkpoints


def restore_best(trainer: Trainer) -> None:
    """Load the weights of the best checkpoint into the model."""
    wait_for_checkpoint(trainer)
    if checkpoints := _best_checkpoints(trainer):
        trainer.ema = None  # it includes later steps and would replace the best weights
        ema.read_weights(trainer.bundle.model, ema.exported_weights(checkpoints[0][1]))


def load_selected_weights(trainer: Trainer) -> None:
    """Load the weights that `train.use` selects into the model. Called on all ranks."""
    use = trainer.train.use if trainer.progress.best else "last"
    checkpoints = _best_checkpoints(trainer)
    model = trainer.bundle.model
    stored = [ema.exported_weights(folder) for _, folder in checkpoints]
    if use == "average" and len(stored) > 1:
        ema.read_weights(model, MeanTensors(stored, ema.random_buffers(model)))
    elif use == "greedy" and len(stored) > 1:
        ema.read_weights(model, greedy_soup(trainer, [best for best, _ in checkpoints], stored))
    elif use != "last" and stored:
        ema.read_weights(model, stored[0])
    elif trainer.ema:
        trainer.ema.assign()


def whole_weights(trainer: Trainer, scratch: Path) -> dict[str, torch.Tensor]:
    """Return the weights of an export, whole and on the CPU, on the main process. Sharded ones are assembled in files
    of the folder `scratch`. Called on all ranks."""
    model = trainer.bundle.model
    tensors = ema.trained_tensors(model) | ema.exported_frozen_tensors(trainer.bundle)
    weights = {n: t.detach().cpu() for n, t in tensors.items() if not is_divided(t)} if trainer.main else {}
    if divided := {n: t for n, t in tensors.items() if is_divided(t)}:
        trainer.communicator.on_main(lambda: shutil.rmtree(scratch, ignore_errors=True))
        write_divided(scratch, own_shards(divided), trainer.rank, trainer.world)
        trainer.communicator.barrier()
        weights |= assembled(scratch) if trainer.main else {}
    return weights
