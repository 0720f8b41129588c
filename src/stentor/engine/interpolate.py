"""Interpolation between initial and final weights, and greedy soups.

WiSE-FT (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", arXiv 2109.01903): with
theta = (1 - ratio) start + ratio tuned, a ratio below 1 often keeps the gain of fine-tuning and forgets less. Greedy
soup (Wortsman et al. 2022, "Model soups", arXiv 2203.05482): the mean of the checkpoints that do not make it worse.

The weights before the first step are in `checkpoints/start`, each process with its rows. The results of a search are
saved one by one (`checkpoints/search.json`), so that a run killed during the search resumes it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stentor.data.atomic_write import atomic_path
from stentor.engine import checkpoint, ema
from stentor.engine.checkpoint_writer import write_divided
from stentor.engine.evaluate import metrics_row
from stentor.engine.section import Interpolate
from stentor.engine.sharding import own_shards
from stentor.engine.tensor_files import MeanTensors, StoredTensors
from stentor.errors import ConfigError, StentorError
from stentor.metrics.format import figure

if TYPE_CHECKING:
    from stentor.engine.setup import RunConfig, TrainingSetup
    from stentor.engine.trainer import Trainer

START = "start"
SEARCH = "search.json"


def starts_pretrained(config: RunConfig) -> bool:
    """Return whether the whole model starts from pretrained weights or from those of an earlier run or stage."""
    model = config.plain()["model"]
    return bool(model["init"] or model.get("from"))


def check_section(config: RunConfig) -> None:
    """Raise ConfigError if the config does not fit `train.interpolate`."""
    section = config.train.interpolate
    if section is None:
        return
    if not starts_pretrained(config):
        raise ConfigError(
            "train.interpolate: this model starts from random weights, and an average with those is useless. Set "
            "`model.from` or `model.init`, or leave `train.interpolate` out."
        )
    if isinstance(section, Interpolate):
        _check_sets(section, list(config.data.eval), list(config.data.test))


def check(config: RunConfig, setup: TrainingSetup) -> None:
    """Raise ConfigError if `train.interpolate` cannot be done."""
    if config.train.interpolate is None:
        return
    if any(".lora_B." in n and bool(p.any()) for n, p in setup.bundle.model.named_parameters()):
        raise ConfigError(
            "train.interpolate: these adapters continue those of `model.init`, and the average of two adapters has "
            "another rank. Change `model.lora` (another rank merges the earlier ones into the model), or leave "
            "`train.interpolate` out."
        )


def _check_sets(section: Interpolate, evals: Sequence[str], tests: Sequence[str]) -> None:
    if not evals:
        raise ConfigError(
            "train.interpolate selects the ratio on a set of `data.eval`, and there is none: add one, such as "
            "`data.eval: {dev: held_out}`, or give one ratio (`train.interpolate: 0.5`)."
        )
    for key, names in (("set", section.sets), ("keep", list(section.keep))):
        for name in names:
            if name in tests:
                raise ConfigError(
                    f"train.interpolate.{key}: `{name}` is a set of `data.test`, which must not be used for selection: "
                    f"give one of `data.eval` ({', '.join(evals)})."
                )
            if name not in evals:
                raise ConfigError(
                    f"train.interpolate.{key}: there is no set `{name}` in `data.eval` ({', '.join(evals)})."
                )


def initial_weights(trainer: Trainer) -> dict[str, Tensor] | None:
    """Return a copy of the initial weights if `train.interpolate` needs them and they are not stored yet. Called on all
    ranks before a checkpoint is loaded."""
    if trainer.train.interpolate is None:
        return None
    folder = trainer.checkpoints / START
    # Those of an earlier attempt are only valid if training resumes from one of its checkpoints.
    resumes = trainer.communicator.on_main(lambda: folder.is_dir() and any(trainer.checkpoints.glob("step-*")))
    return None if resumes else {n: t.clone() for n, t in ema.trained_tensors(trainer.bundle.model).items()}


def write_weights(trainer: Trainer, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write trained tensors of the model. Called on all ranks. Raises StentorError for errors of the disk."""
    model = trainer.bundle.model
    temporary, error = folder.with_name(f".{folder.name}.tmp"), None
    trainer.communicator.on_main(lambda: shutil.rmtree(temporary, ignore_errors=True))
    try:
        shards = own_shards(weights, {name for name, _ in model.named_buffers()})
        write_divided(temporary, shards, trainer.rank, trainer.communicator.world)
    except Exception as caught:
        if not checkpoint.is_of_disk(caught):
            raise
        error = str(caught)
    if failed := next(filter(None, trainer.communicator.gather(error)), None):
        raise StentorError(
            f"The weights for `train.interpolate` could not be written to {folder} ({failed}). Free disk space "
            "(`df -h`) and run the same command again."
        )

    def appear() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)

    trainer.communicator.on_main(appear)


def between(trainer: Trainer, start: StoredTensors, tuned: StoredTensors, ratio: float) -> StoredTensors:
    """Return the weights (1 - ratio) start + ratio tuned. The product of an adapter starts at zero because its second
    factor is zero: scaling only that factor scales the adapter, so the first factor is the tuned one."""
    if ratio in (0, 1):
        return tuned if ratio else start
    unaveraged = ema.random_buffers(trainer.bundle.model) | {n for n in tuned if ".lora_A." in n}
    return MeanTensors([tuned, start], unaveraged, [ratio, 1 - ratio])


def interpolate(trainer: Trainer) -> dict[str, Any] | None:
    """Replace the tuned weights of the model by interpolated ones. Called on all ranks. Returns the entry of
    results.json, with all ratios and the selected one; None without `train.interpolate`."""
    section = trainer.train.interpolate
    if section is None:
        return None
    model, folder = trainer.bundle.model, trainer.checkpoints / "tuned"
    write_weights(trainer, folder, ema.trained_tensors(model))
    start, tuned = (StoredTensors.of(f, "divided") for f in (trainer.checkpoints / START, folder))

    def assign(ratio: float) -> None:
        ema.read_weights(model, between(trainer, start, tuned, ratio))

    if isinstance(section, Interpolate):
        entry = _search(trainer, section, assign)
    else:
        entry = {"ratio": float(section)}
    assign(entry["ratio"])
    trainer.event("interpolated", ratio=entry["ratio"])
    trainer.communicator.barrier()
    trainer.communicator.on_main(lambda: shutil.rmtree(folder, ignore_errors=True))
    return entry


def _search(trainer: Trainer, section: Interpolate, assign: Callable[[float], None]) -> dict[str, Any]:
    """Return the best ratio on the sets `set` among those within the limits of `keep`; among equals the smallest one,
    which is nearest to the initial weights."""
    metric, mode = trainer.task.main_metric()
    sign = 1 if mode == "min" else -1
    choose = section.sets or [trainer.evals[0].name]
    names = list(dict.fromkeys([*choose, *section.keep]))
    rows: list[dict[str, Any]] = []
    for ratio in sorted({0.0, *section.ratios}):
        values = scored(trainer, f"ratio {ratio:g}", partial(assign, ratio), names)
        before = rows[0]["values"] if rows else values
        lost = {n: _relative(sign * (values[n] - before[n]), before[n]) for n in section.keep}
        kept = all(lost[n] <= section.keep[n] for n in lost)
        rows.append({"ratio": ratio, "values": values, "kept": kept})
        trainer.event("interpolation", metric=metric, **rows[-1])
    candidates = [row for row in rows if row["kept"]]
    totals = [sign * sum(row["values"][n] for n in choose) for row in candidates]
    best = candidates[min(range(len(candidates)), key=lambda i: (math.isnan(totals[i]), totals[i]))]
    figures = ", ".join(f"{name} {figure(metric, value)}" for name, value in best["values"].items())
    trainer.say(f"Interpolation: selected ratio {best['ratio']:g} of {len(rows)} ({metric}: {figures}).")
    if not best["ratio"]:
        trainer.say("Warning: no ratio is better than the initial weights; the export has the initial weights.")
    return {"ratio": best["ratio"], "metric": metric, "sets": choose, "keep": dict(section.keep), "ratios": rows}


def _relative(loss: float, before: float) -> float:
    """Return a loss relative to the value before: infinite for any loss from 0, and 0 if nothing was measured."""
    if loss <= 0 or not math.isfinite(before):
        return 0.0
    return loss / abs(before) if before else math.inf


def scored(
    trainer: Trainer, name: str, assign: Callable[[], None], sets: Sequence[str], metric: str | None = None
) -> dict[str, float]:
    """Return a metric (None: the main one) on sets of `data.eval` with the weights of `assign`, or the saved value of a
    run that was killed. Called on all ranks."""
    path, metric = trainer.checkpoints / SEARCH, metric or trainer.task.main_metric()[0]
    items = {s.name: s for s in trainer.evals}
    train = trainer.train
    about = json.loads(json.dumps([trainer.step, trainer.progress.best, train.use, train.ema, trainer.fingerprint]))

    def read() -> dict[str, dict[str, float]]:
        try:
            content = json.loads(path.read_text())
            return dict(content["scores"]) if content["about"] == about else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    known: dict[str, dict[str, float]] = trainer.communicator.on_main(read)
    values = {s: v for s, v in known.get(name, {}).items() if s in sets}
    if missing := [s for s in sets if s not in values]:
        assign()
        for one in missing:
            scores, means, _ = trainer.score(items[one])
            values[one] = metrics_row(trainer.losses, one, scores, means)[f"eval/{one}/{metric}"]
            known[name] = known.get(name, {}) | {one: values[one]}
            trainer.communicator.on_main(partial(_replace, path, {"about": about, "scores": known}))
    return {s: values[s] for s in sets}


def _replace(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as part:
        part.write_text(json.dumps(content))


def greedy_soup(trainer: Trainer, best: Sequence[dict[str, Any]], stored: Sequence[StoredTensors]) -> StoredTensors:
    """Return the mean of those best checkpoints, best first, that do not make the metric that ranks them worse.
    `best`: their entries in `progress.best`. Called on all ranks; the model keeps the weights that were tried last."""
    model, watched = trainer.bundle.model, trainer.steering.best
    assert watched is not None
    random, first = ema.random_buffers(model), watched.set
    steps = [entry["step"] for entry in best]
    chosen, value = [0], best[0]["value"]
    for number in range(1, len(stored)):
        tried = MeanTensors([stored[i] for i in (*chosen, number)], random)
        name = "soup " + " ".join(str(steps[i]) for i in (*chosen, number))
        new = scored(trainer, name, partial(ema.read_weights, model, tried), [first], watched.metric)[first]
        is_better = new == value or watched.improves(new, value)
        trainer.event("soup", steps=[steps[i] for i in (*chosen, number)], value=new, taken=is_better)
        if is_better:
            chosen, value = [*chosen, number], new
    listed = ", ".join(str(steps[i]) for i in chosen)
    trainer.say(f"Greedy soup of the steps {listed}: {watched.metric} of {first} {figure(watched.metric, value)}.")
    return MeanTensors([stored[i] for i in chosen], random)
