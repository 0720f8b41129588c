"""`stentor train --plan-only`: what a run would do and need, and what it could start from, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from stentor.commands.train import Prepared
    from stentor.config.schema import Config

LARGE = 300e6
"""Parameters above which nothing is tried on a CPU: it would take minutes."""


def show(stages: list[Config], processes: int = 1, json: Path | None = None) -> str:
    """The plans of all stages as text, and as a JSON list in the file `json`."""
    from json import dumps

    from stentor.commands.plan.text import text

    plans = [plan(stage, processes) for stage in stages]
    if json is not None:
        json.write_text(dumps(plans, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return "\n\n".join(map(text, plans))


def plan(config: Config, processes: int = 1) -> dict[str, Any]:
    """Parameters per module group, batches, steps, fill, suggested settings, memory and time, and what would be
    dropped, as plain data that is fit for JSON. Reads the audio of a few records; writes nothing."""
    import os

    from stentor.commands.train import prepare

    said: list[str] = []
    world = max(processes, int(os.environ.get("WORLD_SIZE", "1")))
    ready = prepare(config, said.append)
    found: dict[str, Any] = {
        "name": config.name,
        "task": config.task.type,
        "model": config.model.type,
        "said": said,
        "parameters": parameters(ready),
        "data": data(config, ready, world),
    }
    found["suggestion"] = suggestion(config, ready, found)
    found["memory"], found["time"] = needs(config, ready, found["data"]["steps"], world)
    return found


def parameters(ready: Prepared) -> list[dict[str, Any]]:
    """{part, total, trained, adapters} for each part of the model."""
    from stentor.models.parameters import adapters_in, parameter_table

    model, parts = ready.bundle.model, ready.bundle.parts()
    adapters = adapters_in(model, parts)
    return [
        {"part": part, "total": total, "trained": trained, "adapters": adapters[part]}
        for part, total, trained in parameter_table(model, parts)
    ]


def data(config: Config, ready: Prepared, world: int) -> dict[str, Any]:
    """Records, hours, batches, steps and epochs (None for a stream), held-out sets, and what would be dropped."""
    import math

    per_step = config.train.accumulate * world
    steps, epochs = config.train.steps, config.train.epochs
    found: dict[str, Any] = {"batches_per_step": per_step, "layout": config.data.layout}
    if not ready.feed.streams:
        facts = ready.plan.statistics()
        per_epoch = math.ceil(facts["batches"] / per_step)
        steps = steps or math.ceil((epochs or 10) * facts["batches"] / per_step)
        found |= {
            "records": ready.feed.records,
            "hours": ready.feed.hours,
            "hours_per_epoch": facts["seconds"] / 3600,
            "batches": facts["batches"],
            "items_per_batch": facts["items"] / facts["batches"],
            "fill": facts["fill"],
            "steps_per_epoch": per_epoch,
            "budget": config.data.batch_tokens,
        }
        epochs = steps / per_epoch
    dropped = ready.feed.dropped
    held_out = [(s.name, s.plan.statistics()) for s in [*ready.evals, *ready.tests]]
    return found | {
        "steps": steps,
        "epochs": epochs,
        "held_out": {name: {"records": f["items"], "hours": f["seconds"] / 3600} for name, f in held_out},
        "dropped": {r: {"count": n, "named": dropped.named[r][:3]} for r, n in dropped.reasons.most_common()},
    }


def suggestion(config: Config, ready: Prepared, found: dict[str, Any]) -> dict[str, Any] | None:
    """Learning rate and epochs to start from beside the config's own; None where the hours of data are unknown, and for
    tasks that the figures were not made for."""
    from stentor.commands.plan.suggest import method_of, notes, suggest

    hours = found["data"].get("hours")
    if hours is None or config.task.type not in ("transcribe", "diarize"):
        return None
    section = config.model.model_dump(mode="json", by_alias=True)
    head = True
    if config.model.type == "ctc":
        named = ready.bundle.model.recogniser.config.architectures or []  # type: ignore[union-attr]
        head = any(name.endswith("ForCTC") for name in named)
    total = sum(row["total"] for row in found["parameters"])
    good = suggest(config.model.type, method_of(section, head), hours, total)
    return {
        **good.as_dict(),
        "config": {"lr": config.optim.lr, "epochs": found["data"]["epochs"]},
        "notes": notes(good, config.optim.lr, found["data"]["epochs"]),
    }


def needs(config: Config, ready: Prepared, steps: int | None, world: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(memory, time) of the run: estimates, and what trying the largest and a middling batch showed."""
    import contextlib

    from stentor.commands.plan.memory import methods
    from stentor.dataloading.batch_sampler import PlannedBatch
    from stentor.dataloading.loader import BatchDataset
    from stentor.engine import memory_estimate
    from stentor.engine.device import accelerator
    from stentor.models.parameters import size

    device = accelerator(config.train)
    model = ready.bundle.model
    reader = BatchDataset(
        ready.task, ready.bundle.processor, config.data.augment, config.train.seed, config.data.layout == "packed"
    )
    largest = sorted(ready.plan.largest(), key=lambda i: -ready.plan.cost(i.cut, i.seconds))

    def read(items: list[Any]) -> Any:
        return reader[PlannedBatch(items, 0, 0, 0)][1]

    def run(batch: Any) -> None:
        model.to(device.device)  # of a large model only the layers that are tried
        with device.autocast():
            sums = ready.task.loss_sums(model, batch.to(device.device), ready.losses)
            loss = sum(s.float() / max(batch.counts[t], 1) for t, s in sums.items())
        loss.backward()  # type: ignore[union-attr]

    whole = read(largest)
    tries = [(b.num_positions, b) for b in (read(largest[:n]) for n in (1, 2) if n <= len(largest)) if b.ids]
    memory: dict[str, Any] = {
        "device": device.device.type,
        "precision": device.mixed_precision.replace("no", "fp32"),
        "processes": world,
        "sharded": bool(config.train.shard or config.train.deepspeed),
        "items": len(largest),
        "slots": whole.num_positions,
        "seconds": whole.seconds,
        "why_no_activations": None,
    }
    kept = {n: b.clone() for n, b in model.named_buffers()}
    model.train()
    rows = None
    # Some kernels cannot be watched (flex_attention), and a plug-in's model may not bear being cut down: a plan without
    # this figure is better than none.
    with contextlib.suppress(Exception):
        rows = methods(config, model, run, tries, whole.num_positions, world, casts=memory["precision"] != "fp32")
    if rows is None:
        memory["why_no_activations"] = "this model cannot be watched in parts"
        rows = methods(config, model, None, [], whole.num_positions, world)
    memory["methods"] = [
        {"name": m.name, "chosen": m.chosen, **vars(m.footprint), "total": m.footprint.total} for m in rows
    ]
    ours = next((m.footprint for m in rows if m.chosen), rows[0].footprint)
    count = sum(size(p) for p in model.parameters())
    memory["free"] = memory_estimate.free(device.device)
    why = None
    if ours.batch > 0.9 * memory["free"] + (0 if device.device.type == "cuda" else ours.weights):
        why = "it would not fit"
    elif device.device.type == "cpu" and count > LARGE:
        why = "the model is large for a CPU"
    memory["not_tried"] = why
    time: dict[str, Any] = {"seconds_per_step": None}
    if why is None and whole.ids:
        peak = _measure(model, device.device, run, whole, ours)
        memory |= {"measured": peak.bytes, "grown": peak.grown}
        time["seconds_per_step"] = _one_step(config, ready, read, run) * config.train.accumulate
    with contextlib.suppress(RuntimeError):
        for name, buffer in model.named_buffers():
            buffer.data.copy_(kept[name])
    time["seconds"] = time["seconds_per_step"] * steps if time["seconds_per_step"] and steps else None
    return memory, time


def _measure(model: Any, device: Any, run: Any, batch: Any, expected: Any) -> Any:
    """The memory that forward and backward of the largest batch really took."""
    import gc

    from stentor.engine.device import give_back_memory
    from stentor.engine.memory_estimate import Peak

    model.to(device)
    gc.collect()
    give_back_memory()
    with Peak(device, expected.weights) as peak:
        run(batch)
    for parameter in model.parameters():
        parameter.grad = None
    return peak


def _one_step(config: Config, ready: Prepared, read: Any, run: Any) -> float:
    """Seconds of one forward and backward of a middling batch, reading included."""
    import time

    listed = list(ready.plan.epoch(0)) if not ready.feed.streams else [ready.plan.largest()]
    listed.sort(key=lambda items: sum(i.seconds for i in items))
    best = float("inf")
    for _ in range(2):  # the first one warms up
        began = time.monotonic()
        batch = read(listed[len(listed) // 2])
        if not batch.ids:
            return 0.0
        run(batch)
        ready.bundle.model.zero_grad()
        best = min(best, time.monotonic() - began)
    return best
