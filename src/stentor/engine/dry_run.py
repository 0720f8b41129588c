"""Dry run: forward and backward pass of the largest batch before step 1, to detect a lack of memory early."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from stentor.data.batch import Batch
from stentor.dataloading.batch_sampler import PlannedBatch
from stentor.engine import memory_estimate
from stentor.errors import BatchTooLarge

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


def dry_run(trainer: Trainer) -> None:
    """Run the largest batch without changing the model, and log its memory and the estimate. On a GPU, also measure the
    FLOPs per position for the metrics. Raises BatchTooLarge if the batch does not fit into memory."""
    dataset, model = trainer.batch_dataset(), trainer.bundle.model
    items = trainer.batch_sampler.largest(rank=trainer.rank)

    def read(count: int) -> Batch:
        return dataset[PlannedBatch(items[:count], 0, 0, 0)][1]

    batch = read(len(items))
    if not batch.ids:
        return
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    trainer.model.train()
    trainer.seed_micro_batch(0)
    # Tensors can be counted if the forward pass is neither collective nor compiled.
    watchable = trainer.model is model and trainer.world == 1
    smaller = [read(count) for count in (1, 2)] if watchable and len(items) > 2 else []
    tries = [(small.num_positions, small) for small in smaller if small.ids]
    optim, world, run = trainer.config.optim, trainer.world, trainer.backend.trial
    expected = memory_estimate.estimate(model, optim, trainer.train, world, run, tries, batch.num_positions)
    began = time.monotonic()
    size = f"{len(items)} items, {batch.num_positions} positions, {batch.seconds:.0f} s"
    try:
        with memory_estimate.Peak(trainer.device, expected.weights, watchable) as peak:
            trainer.backend.trial(batch)
        if trainer.device.type == "cuda" and not trainer.train.compile:
            trainer.meter.flops_per_slot = _flops_per_position(trainer, read(1))
    except torch.OutOfMemoryError:
        raise BatchTooLarge(
            f"The largest batch ({size} of audio) does not fit in memory. Lower `data.batch_tokens` or "
            "`data.max_seconds` (and raise `train.accumulate` for the same batch size), or set "
            "`model.gradient_checkpointing: true`."
        ) from None
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    seconds = time.monotonic() - began
    memory = memory_estimate.compared(peak, expected)
    trainer.say(f"Dry run of the largest batch: {size} of audio, {seconds:.1f} s, {memory}")


def _flops_per_position(trainer: Trainer, batch: Batch) -> float | None:
    """Return the FLOPs of forward and backward per position; None if a kernel cannot be counted."""
    counter = FlopCounterMode(display=False)
    with contextlib.suppress(RuntimeError, NotImplementedError):
        with counter:
            trainer.backend.trial(batch)
        return counter.get_total_flops() / batch.num_positions
    return None
