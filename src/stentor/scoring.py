"""`stentor evaluate` and `stentor export`: a finished model on other data, and as a copy for others."""

from __future__ import annotations

import json
from pathlib import Path

from stentor.errors import ConfigError


def evaluate(model: str, data: str, task: str | None, out: Path | None, batch_tokens: int) -> str:
    """Score a model on one data source; returns the scores as text and writes them to `out` (JSON) when given.

    Beside `out`, `NAME.predictions.jsonl` gets every answer.
    """
    import torch

    from stentor.callbacks.console import scores_text
    from stentor.config.load import parse_source
    from stentor.data.feed import eval_plan
    from stentor.data.section import Data
    from stentor.engine.device import Control, accelerator
    from stentor.engine.evaluate import EvalSet
    from stentor.engine.evaluate import evaluate as score
    from stentor.engine.section import Train
    from stentor.inference.load import find_export, load
    from stentor.metrics.show import MINOR, figure
    from stentor.tasks.base import Task

    source = parse_source(data)
    loaded = load(model)
    chosen = loaded.task
    if task is not None and task != chosen.type:
        if task not in type(loaded.bundle.family).tasks:
            raise ConfigError(f"{model} is a model for {chosen.type}; it cannot be scored on task {task}.")
        wanted = Task.choices()[task]
        shared = {k: v for k, v in chosen.model_dump(exclude={"type"}).items() if k in wanted.model_fields}
        chosen = wanted.model_validate(shared)  # such as the normaliser
    section = Data(train=[source], batch_tokens=batch_tokens, max_seconds=1e9, min_seconds=0.0, workers=0)
    plan, dropped = eval_plan(source, data, section, chosen.refuse, loaded.bundle.processor)
    trained = json.loads((find_export(model) / "training_config.json").read_text(encoding="utf-8"))["train"]
    device = accelerator(Train(precision=trained["precision"] if torch.cuda.is_available() else "auto"))
    loaded.bundle.model.to(device.device)
    scores, _, predictions = score(
        loaded.bundle, chosen, {}, EvalSet("data", plan, dropped), device,
        Control(device.num_processes), workers=0, prefetch=1, max_bad=section.max_bad,
    )  # fmt: skip
    if out is not None and device.is_main_process:
        out.parent.mkdir(parents=True, exist_ok=True)
        figures = {"model": model, "data": data, "task": chosen.type,
                   "eval": {k: s.as_dict() for k, s in scores.items()}, "records": len(predictions),
                   "dropped": dict(dropped.reasons), "named": dict(dropped.named)}  # fmt: skip
        out.write_text(json.dumps(figures, indent=1, ensure_ascii=False), encoding="utf-8")
        with out.with_suffix(".predictions.jsonl").open("w", encoding="utf-8") as file:
            for p in predictions:
                file.write(json.dumps(vars(p), ensure_ascii=False) + "\n")
    lost = "".join(f"\nNot scored, {count} {reason}: {', '.join(dropped.named[reason][:3])}"
                   for reason, count in dropped.reasons.items())  # fmt: skip
    minor = "".join(f"\n{metric} {figure(metric, s.value)}" for metric, s in scores.items() if metric in MINOR)
    return f"{len(predictions)} records  {scores_text(scores)}{minor}{lost}"


def export(model: str, to: Path, merge: bool, format: str) -> str:
    """Copy a model's export into `to`, with adapters folded in when `merge` is set."""
    import shutil

    from stentor.inference.load import find_export, load

    if format != "hf":
        raise ConfigError(f"--format {format} is not known; this version writes hf.")
    source = find_export(model)
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is not empty: choose another folder, so that nothing is overwritten.")
    if not merge:
        shutil.copytree(source, to, dirs_exist_ok=True)
        return f"Exported to {to}."
    to.mkdir(parents=True, exist_ok=True)
    bundle = load(model).bundle
    bundle.family.save_merged(bundle, to)
    for name in ("training_config.json", "train_results.json", "eval_results.json", "README.md"):
        if (source / name).exists():
            shutil.copy(source / name, to / name)
    return f"Exported to {to}, whole: it needs no base model."
