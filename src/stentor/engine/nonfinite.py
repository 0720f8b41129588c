"""Losses and gradients that are not finite: skipped updates, which checkpoints are good, and the way back.

While updates are skipped, nothing is scored or saved. A checkpoint is good once the first step after it had a finite
loss that is not exploded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Never

from stentor.engine import checkpoint, state
from stentor.engine.totals import MicroBatchLoss
from stentor.errors import StentorError

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer

EXPLODED = 10.0
"""Weights are exploded when their loss is this many times that of the run's first step (of 1, if that was less)."""


def report_skipped_step(trainer: Trainer, losses: Sequence[MicroBatchLoss]) -> None:
    """Count and report a skipped update, on all ranks. Raises StentorError after `train.max_skipped` in a row."""
    gather = trainer.communicator.gather
    any_nonfinite = trainer.communicator.sum([float(any(not loss.is_finite for loss in losses))])[0]
    if not any_nonfinite and trainer.accelerator.scaler is not None:
        return  # fp16: the losses are fine, only the loss scale was too large
    trainer.progress.skipped += 1
    guilty = [loss for loss in losses if not loss.is_finite or not any_nonfinite]  # or a gradient of any of them
    ids = sorted({name for part in gather([name for loss in guilty for name in loss.ids]) for name in part})
    trainer.event("skipped_step", step=trainer.step, ids=ids)
    named = f"{', '.join(ids[:8])}{' ...' if len(ids) > 8 else ''}"  # empty in a loop of the user's own
    trainer.say(
        f"Step {trainer.step}: the loss or a gradient was not finite; the update was skipped."
        + (f" Records: {named}." if named else "")
    )
    skipped = trainer.progress.skipped
    if skipped > trainer.train.max_skipped:
        last = f"the last at step {trainer.step}" + (f", records {named}" if named else "")
        reason = f"{skipped} steps in a row had a loss or gradient that was not finite ({last})."
        give_up(trainer, trainer.step - skipped + 1, reason)


def is_due(trainer: Trainer, every: int, since: int) -> bool:
    """Return whether something is due that is done every so many steps and at the last one. `since`: the last step that
    was not skipped, because what is due at skipped steps waits."""
    return trainer.step // every != since // every or trainer.step >= trainer.total_steps


def save_due(trainer: Trainer, since: int) -> bool:
    """Return whether a checkpoint is due: every `save_every` steps, and if this step is one of the best."""
    is_best = trainer.train.keep_best > 0 and any(b["step"] == trainer.step for b in trainer.progress.best)
    return is_due(trainer, trainer.save_every, since) or (trainer.progress.evaluated == trainer.step and is_best)


def stop_message(trainer: Trainer) -> str:
    kept, skipped = f"everything is saved in {trainer.checkpoints}", trainer.progress.skipped
    if skipped:
        kept = f"the last {skipped} updates were skipped, and nothing was saved since step {trainer.saved}"
    at = f"Stopped by a signal at step {trainer.step} of {trainer.total_steps}"
    return f"{at}; {kept}. Run the same command to resume."


def judge(trainer: Trainer, losses: Sequence[MicroBatchLoss], targets: Mapping[str, float]) -> None:
    """Judge the newest checkpoint by the losses of a finite step from its weights. Called on all ranks."""
    progress = trainer.progress
    if trainer.unjudged is None and progress.first_loss is not None:
        return
    sums = trainer.communicator.sum([float(sum(loss.sums[t] for loss in losses)) for t in trainer.losses])
    means = [term.weight * s / max(targets.get(t, 0.0), 1.0) for (t, term), s in zip(trainer.losses.items(), sums)]
    if progress.first_loss is None:
        progress.first_loss = sum(means)
    if trainer.unjudged is not None and sum(means) <= EXPLODED * max(abs(progress.first_loss), 1.0):
        progress.good = trainer.unjudged
        trainer.judged = {progress.good, *(b["step"] for b in progress.best[: trainer.train.keep_best])}
    trainer.unjudged = None


def check_end(trainer: Trainer) -> None:
    """Give up at the end of training if the weights to export made losses that are not finite, and warn if the loss is
    exploded. Called on all ranks."""
    if skipped := trainer.progress.skipped:
        give_up(trainer, trainer.step - skipped, f"Training ended with {skipped} skipped steps.")
    names = [name for name in trainer.steering.sets if not math.isfinite(trainer.metrics.get(f"eval/{name}/loss", 0.0))]
    is_last = trainer.train.use == "last" or not trainer.progress.best
    if names and is_last and trainer.progress.evaluated == trainer.step:
        give_up(trainer, trainer.step, f"The loss of {', '.join(names)} after step {trainer.step} is not finite.")
    first, last = trainer.progress.first_loss, trainer.logger.newest("train/loss") if trainer.main else None
    if first is not None and last is not None and last > EXPLODED * max(abs(first), 1.0):
        trainer.event("exploded", step=trainer.step, first=first, last=last)
        trainer.say(
            f"Warning: the loss is {last:.4g} at the end and was {first:.4g} at the first step: the weights have "
            f"exploded. {_advice(trainer)}, and train under another `name`."
        )


def give_up(trainer: Trainer, before: int, reason: str) -> Never:
    """Set aside the checkpoints of step `before` and later, and those that were not judged good, and raise StentorError
    with the `reason`, the checkpoint that the run goes back to, and what to do. Called on all ranks."""
    state.wait_for_checkpoint(trainer)
    good: Path | None = trainer.communicator.on_main(lambda: _go_back(trainer, before))
    origins = [part["origin"] for part in trainer.progress.parts if "origin" in part]
    start = origins[-1] if origins else {"checkpoint": "the beginning", "step": 0}
    back = f"The run goes back to {good and good.name}, the last good checkpoint"
    if good is None:
        back = f"There is no good checkpoint: the run starts again from {start['checkpoint']}"
    advice = f"{_advice(trainer)}; then run the same command again."
    if before == start["step"]:  # no update has changed the weights
        advice = "It was so before the first update: check these records and `train.precision`, or use other weights."
    elif good:
        advice += f" If records are at fault, leave them out, with another `name` and `--resume-from {good}`."
    raise StentorError(f"{reason} {back}. {advice}")


def _advice(trainer: Trainer) -> str:
    clip = trainer.train.clip
    lower = "set `train.clip`, such as 1.0" if clip is None else f"lower `train.clip` (now {clip:g})"
    return f"Lower `optim.lr` (now {trainer.config.optim.lr:g}) and {lower}"


def _go_back(trainer: Trainer, before: int) -> Path | None:
    """Return the checkpoint to go back to, and set aside the others; on the main process."""
    parent, last = trainer.checkpoints, trainer.progress.good
    candidates = [folder for folder in checkpoint.existing(parent) if checkpoint.step_of(folder) < before]
    good = [f for f in candidates if (last is None or checkpoint.step_of(f) <= last) and not checkpoint.damage(f)]
    checkpoint.set_aside_after(parent, checkpoint.step_of(good[0]) if good else -1, "exploded")
    best = json.loads((good[0] / "resume" / "state.json").read_text(encoding="utf-8"))["best"] if good else []
    folders = (parent / checkpoint.name_of(b["step"]) for b in best)
    checkpoint.point(parent, "best", next((folder for folder in folders if folder.exists()), None))
    return good[0] if good else None
