"""Train state: the content of a checkpoint besides tensors, and saving it. `engine/restore.py` restores it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from stentor.dataloading.stream_shards import ShardedStream
from stentor.engine import checkpoint, ema
from stentor.engine.checkpoint_writer import PendingCheckpoint, assembled, write_divided
from stentor.engine.interpolate import greedy_soup
from stentor.engine.sharding import TensorShard, is_divided, own_shards
from stentor.engine.tensor_files import MeanTensors
from stentor.errors import without_secrets
from stentor.section.contract import violation
from stentor.section.full_paths import with_full_paths
from stentor.version import EXPORT_FORMAT, PAUSE_KEY, format_keys

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
    good: int | None = -1
    """Step of the newest checkpoint that was judged good, -1 if there is none; None: unknown, in older checkpoints."""
    first_loss: float | None = None  # mean loss of the run's first finite step
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Later parts of a training with other settings or data, or of another run: `from` (its first step), and `changed`
    ({key: [before, now]}), `records` and `origin` where there are any. Older checkpoints have none."""


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
    texts: str = ""
    """Hash of the training texts (`TrainDataset.texts_digest`); older checkpoints have none."""

    def as_dict(self) -> dict[str, Any]:
        """Return the content of state.json."""
        progress = {k: v for k, v in vars(self.progress).items() if k != "watched" or v}
        return progress | {k: v for k, v in vars(self).items() if k != "progress"}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainState:
        """Create it from the content of state.json. Raises KeyError with the name of a missing key."""
        later: dict[str, Any] = {"parts": [], "watched": {}, "audio": {}, "texts": "", "good": None, "first_loss": None}
        content = {**later, **content}
        progress = TrainProgress(**{f.name: content[f.name] for f in fields(TrainProgress)})
        progress.bad = {name: (reason, message) for name, (reason, message) in progress.bad.items()}
        return cls(progress, **{f.name: content[f.name] for f in fields(cls) if f.name != "progress"})


def save(trainer: Trainer) -> None:
    """Start writing a checkpoint, after the one being written; called on all ranks. It is complete, and errors are
    raised, when `wait_for_checkpoint` returns. Raises StentorError for errors of the disk."""
    wait_for_checkpoint(trainer)
    trainer.unjudged = trainer.saved = trainer.step
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
    if trainer.progress.parts and (origin := trainer.progress.parts[-1].get("origin")):
        earlier = [name for name in best if checkpoint.step_of(parent / name) <= origin["step"]]
        checkpoint.link(Path(origin["checkpoint"]).parent, parent, earlier)
    if best and (parent / best[0]).exists():
        checkpoint.point(parent, "best", parent / best[0])
    # What the run may go back to is kept until this checkpoint is judged.
    also = {checkpoint.name_of(step) for step in trainer.judged} if trainer.step < trainer.total_steps else set()
    checkpoint.prune(parent, trainer.train.keep, also | set(best[: trainer.train.keep_best]))
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
        texts=trainer.setup.train_data.texts_digest,
    )


def _callback_state(callback: Callback) -> dict[str, Any]:
    state = callback.state_dict()
    try:
        json.dumps(state)
    except (TypeError, ValueError):
        raise violation(callback, "state_dict", "return JSON-serialisable data", state) from None
    return state


def export(trainer: Trainer, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write an export folder from whole weights: the files of the family and the training config. For checkpoints, this
    runs in the background."""
    trainer.bundle.family.save(trainer.bundle, weights, folder)
    trained = trainer.bundle.traits.trained_speech
    pause = {} if trained is None or trained.pause is None else {PAUSE_KEY: round(trained.pause, 3)}
    content = format_keys(EXPORT_FORMAT) | pause | with_full_paths(cast(Any, trainer.config)).plain()
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
