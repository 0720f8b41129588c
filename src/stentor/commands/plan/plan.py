"""`stentor train --plan-only`: what a run would do and need, and what it could start from, without doing it."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stentor.commands.plan.memory import methods
from stentor.commands.plan.suggest import method_of, notes, suggest
from stentor.commands.plan.text import text
from stentor.commands.train import prepare
from stentor.config.schema import Config
from stentor.data.batch import Batch
from stentor.dataloading.batch_sampler import Item, PlannedBatch
from stentor.dataloading.loader import BatchDataset
from stentor.dataloading.mixing import DropCounter
from stentor.engine import memory_estimate
from stentor.engine.device import accelerator, give_back_memory
from stentor.engine.setup import TrainingSetup
from stentor.engine.standing_memory import MemoryEstimate
from stentor.models.parameters import adapters_in, parameter_table

if TYPE_CHECKING:
    from accelerate import Accelerator

LARGE = 300e6
"""Parameters above which nothing is tried on a CPU: it would take minutes."""


def show(stages: list[Config], processes: int = 1, json_path: Path | None = None) -> str:
    """The plans of all stages as text, and as a JSON list in the file `json_path`."""
    plans = [plan(stage, processes) for stage in stages]
    if json_path is not None:
        json_path.write_text(json.dumps(plans, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return "\n\n".join(map(text, plans))


def plan(config: Config, processes: int = 1) -> dict[str, Any]:
    """Parameters per module group, batches, steps, fill, suggested settings, memory and time, and what would be
    dropped, as plain data that is fit for JSON. Reads the audio of a few records; writes nothing."""
    messages: list[str] = []
    world = max(processes, int(os.environ.get("WORLD_SIZE", "1")))
    setup = prepare(config, messages.append)
    parts, data = parameters(setup), data_facts(config, setup, world)
    memory, seconds_per_step = memory_and_time(config, setup, world)
    steps = data["steps"]
    return {
        "name": config.name,
        "task": config.task.type,
        "model": config.model.type,
        "said": messages,
        "parameters": parts,
        "data": data,
        "suggestion": suggestion(config, setup, data, sum(row["total"] for row in parts)),
        "memory": memory,
        "time": {
            "seconds_per_step": seconds_per_step,
            "seconds": seconds_per_step * steps if seconds_per_step and steps else None,
        },
    }


def parameters(setup: TrainingSetup) -> list[dict[str, Any]]:
    """{part, total, trained, adapters} for each part of the model."""
    model, parts = setup.bundle.model, setup.bundle.parts()
    adapters = adapters_in(model, parts)
    return [
        {"part": part, "total": total, "trained": trained, "adapters": adapters[part]}
        for part, total, trained in parameter_table(model, parts)
    ]


def data_facts(config: Config, setup: TrainingSetup, world: int) -> dict[str, Any]:
    """Records, hours, batches, steps and epochs (None for a stream), held-out sets, and what would be dropped."""
    per_step = config.train.accumulate * world
    steps, epochs = config.train.steps, config.train.epochs
    listed: dict[str, Any] = {}
    if (facts := setup.train_data.statistics(setup.batch_sampler)) is not None:
        per_epoch = math.ceil(facts["batches"] / per_step)
        steps = steps or math.ceil((epochs or 10) * facts["batches"] / per_step)
        listed = {
            "records": setup.train_data.records,
            "hours": setup.train_data.hours,
            "hours_per_epoch": facts["seconds"] / 3600,
            "batches": facts["batches"],
            "items_per_batch": facts["items"] / facts["batches"],
            "fill": facts["fill"],
            "steps_per_epoch": per_epoch,
            "budget": setup.train_data.limits.budget,
        }
        epochs = steps * per_step / facts["batches"]

    def drops(dropped: DropCounter) -> dict[str, Any]:
        return {r: {"count": n, "named": dropped.named[r][:3]} for r, n in dropped.reasons.most_common()}

    held_out = [(s, s.plan.statistics()) for s in setup.eval_sets]
    return {
        "batches_per_step": per_step,
        "layout": config.data.layout,
        **listed,
        "steps": steps,
        "epochs": epochs,
        "held_out": {
            s.name: {"records": f["items"], "hours": f["seconds"] / 3600, "dropped": drops(s.dropped)}
            for s, f in held_out
        },
        "dropped": drops(setup.train_data.dropped),
    }


def suggestion(
    config: Config, setup: TrainingSetup, data: dict[str, Any], num_parameters: int
) -> dict[str, Any] | None:
    """Learning rate and epochs to start from beside the config's own; None where the hours of data are unknown, and for
    tasks that the figures were not made for."""
    hours = data.get("hours")
    if hours is None or config.task.type not in ("transcribe", "diarize"):
        return None
    section = config.model.model_dump(mode="json", by_alias=True)
    has_head = True
    if config.model.type == "ctc":
        architectures: list[str] = setup.bundle.model.recogniser.config.architectures or []  # type: ignore[union-attr, assignment]
        has_head = any(name.endswith("ForCTC") for name in architectures)
    suggested = suggest(setup.bundle.family.recipe_name(), method_of(section, has_head), hours, num_parameters)
    return {
        **vars(suggested),
        "config": {"lr": config.optim.lr, "epochs": data["epochs"]},
        "notes": notes(suggested, config.optim.lr, data["epochs"]),
    }


class BatchTrial:
    """Forward and backward of a few batches of a run, on this machine's device."""

    def __init__(self, config: Config, setup: TrainingSetup, device: Accelerator):
        self.config, self.setup, self.device, self.model = config, setup, device, setup.bundle.model
        self.dataset = BatchDataset(
            setup.task, setup.bundle.processor, config.data.augment, config.train.seed, config.data.layout == "packed"
        )

    def read(self, items: list[Item]) -> Batch:
        return self.dataset[PlannedBatch(items, 0, 0, 0)][1]

    def run(self, batch: Batch) -> None:
        """Forward and backward of the mean loss; the gradients stay."""
        self.model.to(self.device.device)  # of a large model only the layers that are tried
        batch, task, losses = batch.to(self.device.device), self.setup.task, self.setup.losses
        with self.device.autocast():
            task.add_hypotheses(self.setup.bundle, batch, losses)
        with self.device.autocast():
            sums = task.loss_sums(self.model, batch, losses)
            loss = sum(s.float() / max(batch.counts[t], 1) for t, s in sums.items())
        loss.backward()  # type: ignore[union-attr]

    def peak(self, batch: Batch, expected: MemoryEstimate) -> memory_estimate.Peak:
        """The memory that forward and backward of the largest batch really took."""
        self.model.to(self.device.device)
        gc.collect()
        give_back_memory()
        with memory_estimate.Peak(self.device.device, expected.weights) as peak:
            self.run(batch)
        for parameter in self.model.parameters():
            parameter.grad = None
        return peak

    def seconds_of_median_batch(self) -> float:
        """Seconds of one forward and backward of a middling batch, reading included; 0 when it cannot be read."""
        batch_sampler = self.setup.batch_sampler
        batches = [batch_sampler.largest()] if self.setup.train_data.streams else list(batch_sampler.epoch(0))
        batches.sort(key=lambda items: sum(i.seconds for i in items))
        best = float("inf")
        for _ in range(2):  # the first one warms up
            started = time.monotonic()
            batch = self.read(batches[len(batches) // 2])
            if not batch.ids:
                return 0.0
            self.run(batch)
            self.model.zero_grad()
            best = min(best, time.monotonic() - started)
        return best


def memory_and_time(config: Config, setup: TrainingSetup, world: int) -> tuple[dict[str, Any], float | None]:
    """(memory, seconds per step) of the run: estimates, and what trying the largest and a middling batch showed."""
    # The trial is one process, also where the plan is for several that shard the model.
    trial = BatchTrial(config, setup, accelerator(config.train.model_copy(update={"shard": False})))
    device, model, batch_sampler = trial.device, setup.bundle.model, setup.batch_sampler
    items = sorted(batch_sampler.largest(), key=lambda i: -batch_sampler.cost(i.cut, i.seconds))
    largest = trial.read(items)
    smaller = [trial.read(items[:n]) for n in (1, 2) if n <= len(items)]
    tries = [(b.num_positions, b) for b in smaller if b.ids]
    memory: dict[str, Any] = {
        "device": device.device.type,
        "precision": device.mixed_precision.replace("no", "fp32"),
        "processes": world,
        "sharded": config.train.shard,
        "items": len(items),
        "slots": largest.num_positions,
        "seconds": largest.seconds,
        "why_no_activations": None,
    }
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    model.train()
    rows = None
    # Some kernels cannot be watched (flex_attention), and a plug-in's model may not bear being cut down: a plan without
    # this figure is better than none.
    with contextlib.suppress(Exception):
        casts = memory["precision"] != "fp32"
        rows = methods(config, setup.bundle, trial.run, tries, largest.num_positions, world, casts)
    if rows is None:
        memory["why_no_activations"] = "this model cannot be watched in parts"
        rows = methods(config, setup.bundle, None, [], largest.num_positions, world)
    memory["methods"] = [
        {"name": m.name, "chosen": m.chosen, **vars(m.estimate), "total": m.estimate.total} for m in rows
    ]
    estimate = next((m.estimate for m in rows if m.chosen), rows[0].estimate)
    memory["free"] = memory_estimate.free(device.device)
    memory["not_tried"] = _why_not_tried(estimate, model, device, memory["free"])
    seconds_per_step = None
    if memory["not_tried"] is None and largest.ids:
        peak = trial.peak(largest, estimate)
        memory |= {"measured": peak.bytes, "grown": peak.grown}
        seconds_per_step = trial.seconds_of_median_batch() * config.train.accumulate
    with contextlib.suppress(RuntimeError):
        for name, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name])
    return memory, seconds_per_step


def _why_not_tried(
    estimate: MemoryEstimate, model: torch.nn.Module, device: Accelerator, free_bytes: float
) -> str | None:
    on_gpu = device.device.type == "cuda"
    if estimate.batch > 0.9 * free_bytes + (0 if on_gpu else estimate.weights):
        return "it would not fit"
    if device.device.type == "cpu" and sum(p.numel() for p in model.parameters()) > LARGE:
        return "the model is large for a CPU"
    return None
