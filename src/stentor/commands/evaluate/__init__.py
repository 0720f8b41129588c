"""`stentor evaluate`: a finished model on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.commands.evaluate.speech import Listening
    from stentor.dataloading.batch_sampler import BatchSampler
    from stentor.dataloading.mixing import DropCounter
    from stentor.dataloading.section import Data
    from stentor.inference.load import Model
    from stentor.sources.base import Source
    from stentor.tasks.base import Task


def evaluate(
    model: str, data: str, task: str | None, out: Path | None, batch_tokens: int, listening: Listening | None = None
) -> str:
    """Score a model on one data source; returns the scores as text and writes them to `out` (JSON) when given.

    Beside `out`, `NAME.predictions.jsonl` gets every answer. `listening` is for models that speak.
    """
    import torch

    from stentor.callbacks.console import scores_text
    from stentor.commands.evaluate import speech
    from stentor.config.load import parse_source
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.evaluate import EvalSet, breakdown
    from stentor.engine.evaluate import evaluate as score
    from stentor.engine.section import Train
    from stentor.inference.load import load
    from stentor.metrics.format import MINOR, figure
    from stentor.tasks.base import Task
    from stentor.tasks.speak import Speak

    source = parse_source(data)
    loaded = load(model)
    chosen = loaded.task
    if task is not None and task != chosen.type:
        wanted = Task.choices().get(task)
        # A family serves several tasks; a model has the heads of its own, and of a special or the general case of it.
        akin = wanted is not None and (issubclass(wanted, type(chosen)) or isinstance(chosen, wanted))
        if wanted is None or not akin or task not in type(loaded.bundle.family).tasks:
            raise ConfigError(f"{model} is a model for {chosen.type}; it cannot be scored on task {task}.")
        shared = {k: v for k, v in chosen.model_dump(exclude={"type"}).items() if k in wanted.model_fields}
        chosen = wanted.model_validate(shared)  # such as the normaliser
    speaks = isinstance(chosen, Speak)
    if listening is not None and listening.asked() and not speaks:
        raise ConfigError(f"{listening.asked()[0]} is for models that speak; {model} is one for {chosen.type}.")
    plan, dropped, section = records(loaded, chosen, source, data, batch_tokens)
    precision = loaded.training.get("train", {}).get("precision", "auto")  # a folder of transformers says nothing
    device = accelerator(Train(precision=precision if torch.cuda.is_available() else "auto"))
    loaded.bundle.model.to(device.device)
    how: dict[str, Any] = {}
    if speaks:
        scores, predictions, how = speech.evaluate(
            loaded, data, plan, dropped, device, listening or speech.Listening(), section.max_bad
        )
    else:
        scores, _, predictions = score(
            loaded.bundle,
            chosen,
            {},
            EvalSet("data", plan, dropped),
            device,
            Communicator(device.num_processes),
            workers=0,
            prefetch=1,
            max_bad=section.max_bad,
        )
    parts = breakdown(chosen, predictions, section.by)
    if out is not None and device.is_main_process:
        out.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "model": model,
            "data": data,
            "task": chosen.type,
            **how,
            "eval": {k: s.as_dict() for k, s in scores.items()},
            **({"by": parts} if parts else {}),
            "records": len(predictions),
            "dropped": dict(dropped.reasons),
            "named": dict(dropped.named),
        }
        out.write_text(json.dumps(figures, indent=1, ensure_ascii=False), encoding="utf-8")
        with out.with_suffix(".predictions.jsonl").open("w", encoding="utf-8") as file:
            for p in predictions:
                file.write(json.dumps(vars(p), ensure_ascii=False) + "\n")
    if speaks:
        return f"{speech.text(scores, how, len(predictions))}{_parts_text(parts)}{left_out(dropped)}"
    minor = "".join(f"\n{metric} {figure(metric, s.value)}" for metric, s in scores.items() if metric in MINOR)
    return f"{len(predictions)} records  {scores_text(scores)}{minor}{_parts_text(parts)}{left_out(dropped)}"


def records(
    loaded: Model, task: Task, source: Source, data: str, batch_tokens: int = 2000
) -> tuple[BatchSampler, DropCounter, Data]:
    """The records of a data source, called `data`, that the model can be scored on, what is left out of them, and the
    settings."""
    from stentor.dataloading.dataset import eval_plan
    from stentor.dataloading.section import Data

    bundle = loaded.bundle
    section = Data(train=[source], batch_tokens=batch_tokens, max_seconds=1e9, min_seconds=0.0, workers=0)
    plan, dropped = eval_plan(
        source,
        data,
        section,
        task.drop_reason,
        bundle.processor,
        lambda cut: bundle.family.drop_reason(bundle.processor, cut, False),
    )
    return plan, dropped, section


def left_out(dropped: DropCounter) -> str:
    """Lines that say how many records were not scored, and why; empty when all were."""
    return "".join(
        f"\nNot scored, {count} {reason}: {', '.join(dropped.named[reason][:3])}"
        for reason, count in dropped.reasons.items()
    )


def _parts_text(parts: Mapping[str, Any], most: int = 20) -> str:
    """The main metric by language and the like, one line for each value."""
    from stentor.metrics.format import figure, interval

    lines = []
    for field, values in parts.items():
        for value, scores in list(values.items())[:most]:
            metric, score = next(iter(scores.items()))
            bounds = f" (95 %: {interval(metric, score)})" if interval(metric, score) else ""
            lines.append(
                f"  {field} {value}: {metric} {figure(metric, score['value'])}{bounds}, {score['items']} records"
            )
        if len(values) > most:
            lines.append(f"  and {len(values) - most} more by {field}: see --json")
    return "".join(f"\n{line}" for line in lines)
