"""`stentor evaluate` and `stentor export`: a finished model on other data, and as a copy for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.errors import ConfigError, StentorError

if TYPE_CHECKING:
    from stentor.inference.load import Model
    from stentor.models.base import Example


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
    """Copy a model's export into `to`, with adapters folded in when `merge` is set; or write ONNX graphs.

    `format`: `hf`, `onnx`, or `hf,onnx`, which puts the graphs into `to/onnx`. The graphs are run by onnxruntime and
    compared with the model before anything appears in `to`; raises `StentorError` when they differ.
    """
    import shutil

    from stentor.inference.load import find_export, load

    formats = [f.strip() for f in format.split(",")]
    if unknown := [f for f in formats if f not in ("hf", "onnx")]:
        raise ConfigError(f"--format {unknown[0]} is not known; known are hf and onnx, or both with a comma.")
    source = find_export(model)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: choose another folder, so that nothing is overwritten.")
    if (source / "onnx_config.json").is_file() and (merge or "onnx" in formats):
        raise ConfigError(f"{model} is an ONNX export already: copy it, or export the model that it was made from.")
    if "onnx" in formats:
        graphs = to / "onnx" if "hf" in formats else to
        checked = _export_onnx(model, source, graphs)
        if "hf" not in formats:
            return f"Exported to {to}, as ONNX. Checked with onnxruntime on {checked}."
    if not merge:
        shutil.copytree(source, to, dirs_exist_ok=True)
        done = f"Exported to {to}."
    else:
        to.mkdir(parents=True, exist_ok=True)
        bundle = load(model).bundle
        bundle.family.save_merged(bundle, to)
        _copy_facts(source, to)
        done = f"Exported to {to}, whole: it needs no base model."
    return done if "onnx" not in formats else f"{done} ONNX graphs are in {graphs}, checked on {checked}."


def _copy_facts(source: Path, to: Path) -> None:
    """What an export says of its training."""
    import shutil

    for name in ("training_config.json", "train_results.json", "eval_results.json", "README.md"):
        if (source / name).exists():
            shutil.copy(source / name, to / name)


def _export_onnx(model: str, source: Path, to: Path) -> str:
    """Write and check the graphs beside `to`, then move them there; returns what was compared."""
    import os
    import shutil

    from stentor.inference.load import load
    from stentor.inference.onnx_check import compare
    from stentor.publish.onnx import add_usage

    loaded = load(model, "cpu")
    loaded.for_transcription()
    # In the folder that will hold it: the same disk, so that moving is renaming.
    parent = to if to.is_dir() else to.parent
    while not parent.is_dir():
        parent = parent.parent
    place = parent / f".stentor-export-{os.getpid()}"
    try:
        place.mkdir()
        loaded.bundle.family.save_onnx(loaded.bundle, place)
        _copy_facts(source, place)
        agreement = compare(loaded, load(place, "cpu"), _clips(loaded))
        add_usage(place, str(agreement))
        to.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.rename(to / file.name)
    except OSError as error:
        raise ConfigError(f"{error.filename or to} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return str(agreement)


def _clips(model: Model) -> list[Example]:
    """A handful of clips to compare exports on: the built-in voice at several lengths, and records of the run's own
    evaluation data, where it is still there."""
    from itertools import islice

    from stentor.audio.synth import say
    from stentor.data.cut import load
    from stentor.inference.load import TRAINING_CONFIG
    from stentor.models.base import Example
    from stentor.sources.base import Source

    longest = model.bundle.processor.max_seconds or 30.0
    long = "when the sun comes out after the rain we walk along the river and count the boats that come by"
    clips = []
    for text in ("one", "three seven nine", "turn the light in the kitchen off please", long):
        speech = say(text)
        if speech.seconds <= longest:
            clips.append(Example(f"the built-in voice's {text!r}", speech.audio, text))
    path = model.folder / TRAINING_CONFIG
    trained = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    sections = trained.get("data", {}).get("eval", {}).values()
    for section in islice((s for s in sections if s["type"] != "hub"), 2):  # nothing is downloaded for a check
        try:
            for cut in islice(Source.model_validate(section).cuts(), 3):
                if cut.duration <= longest and model.task.refuse(cut) is None:
                    clips.append(model.task.example(cut, load(cut), None))
        except (StentorError, ValueError):  # moved, deleted or of a plug-in: the built-in voice is enough
            continue
    return clips
