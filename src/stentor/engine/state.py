"""Saving and restoring a trainer: everything that the next step depends on, as safetensors and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stentor.dataloading.stream_shards import ShardedStream
from stentor.engine import checkpoint, ema
from stentor.engine.optim import load_optimizer_state, optimizer_state
from stentor.errors import ConfigError, StentorError

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


def save(trainer: Trainer) -> None:
    """Write a checkpoint; all ranks call, the main one writes. Raises StentorError when the disk refuses."""
    model = trainer.bundle.model
    keep = trainer.main  # the others only take part: a copy on each rank could fill the machine's memory
    weights = ema.whole(ema.trained(model), keep)
    averaged = ema.whole(trainer.average.shadow, keep) if trainer.average else None
    fixed = ema.whole(ema.untrained(trainer.bundle), keep)
    if trainer.zero:
        tensors, plain = trainer.zero.optimizer_state(keep)
    else:
        tensors, plain = optimizer_state([o.optimizer for o in trainer.optimizers], model, keep)
    meter = trainer.meter.state_dict()
    lanes = trainer.plan.starts(trainer.next_index) if isinstance(trainer.plan, ShardedStream) else []
    lanes = [lane for part in trainer.control.gather(lanes) for lane in part]

    def fill(folder: Path) -> None:
        (folder / "resume").mkdir()
        checkpoint.save_tensors(folder / "resume" / "weights.safetensors", dict(weights))
        if averaged is not None:
            checkpoint.save_tensors(folder / "resume" / "ema.safetensors", dict(averaged))
        checkpoint.save_tensors(folder / "resume" / "optimizer.safetensors", tensors)
        (folder / "resume" / "state.json").write_text(
            json.dumps(_state(trainer) | {"optimizer": plain, "meter": meter, "lanes": lanes})
        )
        (folder / "export").mkdir()
        export(trainer, folder / "export", fixed | (averaged if averaged is not None else weights))

    failure = None
    if trainer.main:
        try:
            written = checkpoint.write(trainer.checkpoints, trainer.step, fill)
            trainer.event("saved", step=trainer.step, folder=written.name)
            if trainer.best and folder_of(trainer, trainer.best[0]["step"]).exists():
                checkpoint.point(trainer.checkpoints, "best", folder_of(trainer, trainer.best[0]["step"]))
            best = {checkpoint.name_of(b["step"]) for b in trainer.best[: trainer.train.keep_best]}
            checkpoint.prune(trainer.checkpoints, trainer.train.keep, best)
        except (StentorError, OSError) as error:
            failure = str(error)
    failure = trainer.control.gather(failure)[0]
    if failure:
        raise StentorError(failure)


def _state(trainer: Trainer) -> dict[str, Any]:
    scaler = trainer.accelerator.scaler
    return {
        "step": trainer.step,
        "position": trainer.position,
        "next_index": trainer.next_index,
        "batches_per_step": trainer.batches_per_step,
        "epoch": trainer.epoch,
        "skipped": trainer.skipped,
        "seconds": trainer.seconds,
        "best": trainer.best,
        "fingerprint": trainer.fingerprint,
        "optim": trainer.config.optim.type,
        "plateau": [trainer.plateau.best, trainer.plateau.bad, trainer.plateau.factor],
        "bad": trainer.bad,
        "seen": trainer.seen,
        "evaluated": trainer.evaluated,
        "scaler": scaler.state_dict() if scaler else None,
        "callbacks": {f"{i}-{c.type}": c.state_dict() for i, c in enumerate(trainer.callbacks)},
    }


def load(trainer: Trainer, folder: Path) -> None:
    """Put a checkpoint's state into the trainer. Raises ConfigError when it belongs to another model or other data."""
    state = json.loads((folder / "resume" / "state.json").read_text())
    model = trainer.bundle.model
    if state["fingerprint"] != trainer.fingerprint:
        raise ConfigError(
            f"The training data or its batching is not what {folder} was trained on, so its place in the data "
            "means nothing here. Put the data settings back, or start a new run under another `name` (and "
            "`model.init` set "
            f"to {folder / 'export'} to go on from these weights)."
        )
    weights = checkpoint.load_tensors(folder / "resume" / "weights.safetensors")
    try:
        if missing := set(ema.trained(model)) - set(weights):
            raise KeyError(min(missing))
        ema.put(model, weights)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            f"The checkpoint {folder} belongs to another model ({error}). Put the `model:` section back, or start a "
            "new run under another `name`."
        ) from None
    if state["optim"] != trainer.config.optim.type:
        raise ConfigError(
            f"The checkpoint {folder} holds the state of optim.type {state['optim']}, not {trainer.config.optim.type}. "
            "Put it back, or start a new run under another `name`."
        )
    moments = checkpoint.load_tensors(folder / "resume" / "optimizer.safetensors")
    if trainer.zero:
        trainer.zero.load_optimizer_state(moments, state["optimizer"])
    else:
        load_optimizer_state([o.optimizer for o in trainer.optimizers], model, moments, state["optimizer"])
    kept = folder / "resume" / "ema.safetensors"
    if trainer.average is not None:  # an average that was not kept so far begins with the weights as they are
        trainer.average.load(checkpoint.load_tensors(kept) if kept.exists() else weights)
    trainer.step, trainer.epoch, trainer.skipped = state["step"], state["epoch"], state["skipped"]
    trainer.position, trainer.next_index = state["position"], state["next_index"]
    if isinstance(trainer.plan, ShardedStream):
        trainer.plan.go_on(state["lanes"])
    trainer.seconds, trainer.best = state["seconds"], state["best"]
    trainer.seen, trainer.evaluated = state["seen"], state["evaluated"]
    for name, (reason, message) in state["bad"].items():
        trainer.bad[name] = (reason, message)
        trainer.dropped.add(reason, message)
    trainer.meter.load_state_dict(state["meter"], trainer.main)
    trainer.plateau.best, trainer.plateau.bad, trainer.plateau.factor = state["plateau"]
    if state["scaler"] and trainer.accelerator.scaler:
        trainer.accelerator.scaler.load_state_dict(state["scaler"])
    for number, callback in enumerate(trainer.callbacks):
        if (own := state["callbacks"].get(f"{number}-{callback.type}")) is not None:
            callback.load_state_dict(own)
    _keep_step_size(trainer, state["batches_per_step"])
    trainer.journal.forget_after(trainer.step)
    trainer.say(f"Going on from step {trainer.step} of {trainer.total_steps} ({folder.name}).")


def _keep_step_size(trainer: Trainer, before: int) -> None:
    """After a change of processes, accumulate so that a step takes as many batches as it did."""
    if before == trainer.batches_per_step:
        return
    if before % trainer.world == 0:
        trainer.accumulate = before // trainer.world
        trainer.say(f"A step goes on taking {before} batches: accumulating {trainer.accumulate} on each process.")
    else:
        trainer.say(
            f"A step took {before} batches; with {trainer.world} processes it takes {trainer.batches_per_step} from "
            "here on."
        )


def latest_checkpoint(trainer: Trainer) -> Path | None:
    """The newest undamaged checkpoint, the same on all ranks."""
    found = checkpoint.newest_good(trainer.checkpoints, trainer.say) if trainer.main else None
    name = trainer.control.gather(found.name if found else None)[0]
    return trainer.checkpoints / name if name else None


def folder_of(trainer: Trainer, step: int) -> Path:
    return trainer.checkpoints / checkpoint.name_of(step)


def export(trainer: Trainer, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """An export folder from whole weights: the family's files and the config they were trained with."""
    trainer.bundle.family.save(trainer.bundle, weights, folder)
    text = json.dumps(trainer.config.plain(), indent=1, ensure_ascii=False)
    (folder / "training_config.json").write_text(text, encoding="utf-8")


def _best(trainer: Trainer) -> list[Path]:
    """The best checkpoints that are there and whole, best first; the same on all ranks."""
    names = []
    for best in trainer.best if trainer.main else []:
        folder = folder_of(trainer, best["step"])
        wrong = checkpoint.damage(folder)
        if wrong is None:
            names.append(folder.name)
        else:
            trainer.say(f"The checkpoint {folder.name}, one of the best, is passed over: {wrong}.")
    return [trainer.checkpoints / name for name in trainer.control.gather(names)[0]]


def restore_best(trainer: Trainer) -> None:
    """Put the weights of the best checkpoint into the model."""
    if found := _best(trainer):
        trainer.average = None  # it has gone on past the best, and would take its place
        ema.put(trainer.bundle.model, checkpoint.load_tensors(ema.exported_weights(found[0])))


def load_selected_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The weights that `train.use` names, put into the model; whole and on the CPU for the main one. All ranks call."""
    use = trainer.train.use if trainer.best else "last"
    found = _best(trainer)
    model = trainer.bundle.model
    if use == "average" and len(found) > 1:
        ema.put(model, ema.mean(found, ema.drawn(model)))
    elif use in ("best", "average") and found:
        ema.put(model, checkpoint.load_tensors(ema.exported_weights(found[0])))
    elif trainer.average:
        ema.put(model, ema.whole(trainer.average.shadow))
    return ema.whole(ema.trained(model) | ema.untrained(trainer.bundle), keep=trainer.main)
