"""`stentor train --plan-only`: what a run would do and need, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.config.schema import Config

BYTES = {"adamw": 8, "adam": 8, "adamax": 8, "muon": 6, "adamw8bit": 2, "sgd": 4, "rmsprop": 8, "adagrad": 4}
"""Optimizer state per trained parameter."""


def show_plan(config: Config) -> str:
    """Parameters per module group, batches, steps, fill, memory and time, and what would be dropped, as text."""
    import math
    import os

    from stentor.models.adapt import parameter_table
    from stentor.run import prepare

    lines: list[str] = []
    ready = prepare(config, lines.append)
    table = parameter_table(ready.bundle.model, ready.bundle.parts())
    width = max(len(part) for part, _, _ in table)
    lines.append(f"Run '{config.name}': task {config.task.type}, model {config.model.type}")
    lines.append("\nParameters")
    for part, total, trained in [*table, ("total", sum(t for _, t, _ in table), sum(t for _, _, t in table))]:
        lines.append(f"  {part:<{max(width, 5)}}  {total:>15,}  trained {trained:>15,}")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    per_step = config.train.accumulate * world
    lines.append("\nData")
    steps = config.train.steps
    if ready.feed.streams:
        lines.append("  a stream of unknown length")
    else:
        facts = ready.plan.statistics()
        hours = facts["seconds"] / 3600
        lines.append(f"  {ready.feed.records:,} records, {ready.feed.hours:.2f} h; {hours:.2f} h an epoch")
        lines.append(
            f"  {facts['batches']:,.0f} batches an epoch ({config.data.layout}, up to {config.data.batch_tokens:,} "
            f"positions), {facts['items'] / facts['batches']:.1f} items each, {facts['fill']:.1%} filled"
        )
        per_epoch = math.ceil(facts["batches"] / per_step)
        steps = steps or math.ceil((config.train.epochs or 10) * facts["batches"] / per_step)
        lines.append(f"  {steps:,} steps of {per_step} batches, {per_epoch:,} an epoch: {steps / per_epoch:.1f} epochs")
    for eval_set in [*ready.evals, *ready.tests]:
        facts = eval_set.plan.statistics()
        lines.append(f"  {eval_set.name}: {facts['items']:,.0f} records, {facts['seconds'] / 3600:.2f} h")
    reasons = ready.feed.dropped.reasons
    lines.append("\nDropped" + ("" if reasons else ": nothing"))
    for reason, count in reasons.most_common():
        named = ready.feed.dropped.named[reason]
        lines.append(f"  {count:,} {reason}: {', '.join(named[:3])}{' ...' if count > 3 else ''}")
    total, trained = sum(t for _, t, _ in table), sum(t for _, _, t in table)
    frozen_bytes = sum(p.numel() * p.element_size() for p in ready.bundle.model.parameters() if not p.requires_grad)
    weights = frozen_bytes + trained * 4
    state = trained * (4 + BYTES[config.optim.type]) + (trained * 4 if config.train.ema else 0)
    share = world if config.train.shard else 1
    lines.append("\nMemory per process, without activations (the dry run before step 1 shows the real figure)")
    lines.append(
        f"  weights {weights / share / 2**30:.2f} GiB, gradients and optimizer {state / share / 2**30:.2f} GiB"
        + (f", sharded over {world} processes" if config.train.shard and world > 1 else "")
    )
    lines.append("\nTime")
    seconds = _one_step(config, ready) * config.train.accumulate if total < 300e6 else None
    if seconds is None or steps is None:
        lines.append("  not estimated: " + ("the model is large; see the first log lines" if steps else "a stream"))
    else:
        lines.append(f"  about {seconds * steps / 60:.1f} minutes ({seconds:.2f} s a step, tried on a middling batch)")
    return "\n".join(lines)


def _one_step(config: Config, ready: object) -> float:
    """Seconds of one forward and backward of a middling batch, reading included."""
    import time

    from stentor.data.loader import Reader
    from stentor.data.plan import Planned
    from stentor.engine.device import accelerator

    device = accelerator(config.train)
    model = ready.bundle.model.to(device.device)
    listed = list(ready.plan.epoch(0)) if not ready.feed.streams else [ready.plan.largest()]
    listed.sort(key=lambda items: sum(i.seconds for i in items))
    packed = config.data.layout == "packed"
    reader = Reader(ready.task, ready.bundle.processor, config.data.augment, config.train.seed, packed)
    items = listed[len(listed) // 2]
    best = float("inf")
    for number in range(3):
        began = time.monotonic()
        _, batch = reader[Planned(items, number, 0, 0)]
        if not batch.ids:
            return 0.0
        with device.autocast():
            sums = ready.task.sums(model, batch.to(device.device), ready.losses)
            sum(s.float() for s in sums.values()).backward()
        model.zero_grad()
        best = min(best, time.monotonic() - began)
    return best
