"""Preparation of a run: the steps of its section `prepare:`, in their order, each by the verb of its name, once.

A step is done when its `marker` holds its settings and what it makes is there; until then the verb resumes where it was
stopped, by its own journal.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from stentor.commands.addresses import staged
from stentor.commands.prepare_options import PREPARE, RunOptions
from stentor.config.load import load
from stentor.config.missing_data import located
from stentor.config.prepare.base import Place, Preparation, options_of
from stentor.inference.declarations import VERBS, refuse_missing
from stentor.pipeline.executor import check_device
from stentor.pipeline.journal import write_json
from stentor.pipeline.options import Cluster

PLACE_ALONE = {"jobs", "device", "ray", "gpus_per_worker"}
"""Keys that change nothing in what is made."""


def pending(steps: Sequence[Preparation]) -> list[Preparation]:
    """The steps that are not done."""
    return [step for step in steps if not _is_done(step)]


def listing(steps: Sequence[Preparation]) -> list[str]:
    """A line for each step, for a person."""
    return [f"{'prepared' if _is_done(step) else 'to be prepared'}: {step.to} ({_text(step)})" for step in steps]


def prepare_for_run(options: RunOptions) -> None:
    """Do the steps of a run file, and list them. Raises as `prepare_run` does."""
    loaded = load(options.config, options.overrides)
    steps = loaded.config.prepare
    with located(loaded.root, "prepare"):
        prepare_run(steps, options.plugin, options.ray)
    for line in listing(steps):
        print(line)


def prepare_run(steps: Sequence[Preparation], plugins: Sequence[Path] = (), ray: str | None = None) -> None:
    """Do what is not done, on the cluster `ray` unless a step names another.

    Raises what the verbs raise: `Stopped` at a signal, DataError, ConfigError.
    """
    for number, step in enumerate(steps, 1):
        if _is_done(step):
            continue
        print(f"Preparing {step.to} ({step.type}, {number} of {len(steps)}).", flush=True)
        (verb,) = (verb for verb in VERBS if (verb.group, verb.name) == (PREPARE, step.type))
        options = verb.options(**step.options())
        if isinstance(options, Cluster):
            options = replace(options, ray=options.ray or ray, plugin=list(plugins))
        refuse_missing(options)
        if isinstance(step, Place):
            check_device(step.device, options.ray if isinstance(options, Cluster) else None)
        # Shards go to an address one by one.
        with nullcontext(step.to) if step.type == "tokens" else staged(step.to) as to:
            verb.call(replace(options, to=to))
            write_json(step.model_copy(update={"to": to}).marker, _settings(step))


def _text(step: Preparation) -> str:
    return ", ".join(option for option in options_of(step) if not option.startswith("to="))


def _settings(step: Preparation) -> dict[str, Any]:
    return step.model_dump(mode="json", by_alias=True, exclude=PLACE_ALONE, serialize_as_any=True)


def _is_done(step: Preparation) -> bool:
    if not step.to.exists():
        return False
    if not step.marker.is_file():  # perhaps made by the verb itself, which writes a codec whole or not at all
        return step.type == "codec" and (step.to / "config.json").is_file()
    try:
        return bool(json.loads(step.marker.read_text(encoding="utf-8")) == _settings(step))
    except ValueError:
        return False
