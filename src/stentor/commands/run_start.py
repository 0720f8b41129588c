"""Start of a run: what is in its folder, what has changed since, and the checkpoint that a branch starts from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.config.load import load_text, stage_configs
from stentor.config.schema import Config
from stentor.data.yaml_text import read_yaml
from stentor.engine import checkpoint
from stentor.engine.restore import TRAINING_CONFIG, Origin
from stentor.errors import ConfigError, DataError, without_secrets
from stentor.section.changes import Change, affecting_weights, changes, listed
from stentor.version import CHECKPOINT_FORMAT, RUN_FORMAT, refuse_newer

RESULTS = "results.json"
EXPORT_FILES = "export_files"
"""Entry of results.json: hashes of the export's files, except those that may be changed."""


@dataclass
class Start:
    """State of a run folder at the start of a run."""

    is_new: bool
    """Whether there is nothing of an earlier start that a refusal must leave unchanged."""
    changed: list[list[Change] | None]
    """The changed settings of each stage since the last start; None if there was no such stage."""
    origin: Origin | None
    """Checkpoint of another run to start from."""

    @classmethod
    def of(cls, folder: Path, stages: Sequence[Config], resume_from: Path | None) -> Start:
        """Look at a run folder. Raises ConfigError and DataError for a start that must be refused."""
        check_run_format(folder)
        resolved = folder / "resolved.yaml"
        changed: list[list[Change] | None] = [None] * len(stages)
        if resolved.exists() and len(before := _stages_of(resolved.read_text(encoding="utf-8"))) == len(stages):
            changed = [changes(*pair) for pair in zip(before, stages)]
        for number, differences in enumerate(changed[:-1], 1):
            later = folder / "stages" / str(number + 1) if number + 1 < len(stages) else folder
            effective = affecting_weights(differences or [])
            if effective and checkpoint.existing(later / "checkpoints"):
                raise ConfigError(
                    f"{folder}: settings of stage {number} have changed ({listed(effective)}), but stage {number + 1} "
                    "has already started from its result. Restore them, or choose another `name`."
                )
        origin = None if resume_from is None else find_origin(resume_from, folder, stages)
        return cls(not resolved.exists() and origin is None, changed, origin)

    def is_finished(self, number: int, folder: Path, say: Callable[[str], None]) -> bool:
        """Return whether stage `number` has its results and its export, made with these settings. Raises DataError for
        a damaged one and ConfigError for other settings if there is no checkpoint to continue from."""
        if not (folder / RESULTS).exists():
            return False
        problem, differences = damage(folder), self.changed[number - 1]
        if problem is None and differences == []:
            return True
        if checkpoint.existing(folder / "checkpoints"):
            if problem:
                say(f"The finished run {folder} is damaged ({problem}). Its export is made again from the checkpoints.")
            return False
        if problem:
            raise DataError(
                f"The finished run {folder} is damaged ({problem}), and there is no checkpoint to make its export "
                f"from. Put it back from a copy; or, to train again, delete {folder / RESULTS} or choose another "
                "`name`."
            )
        what = listed(differences) if differences else "its stages"
        raise ConfigError(
            f"The run {folder} is finished, its settings have changed ({what}), and it has no checkpoint to continue "
            f"from. Choose another `name`, with `model.init: {folder / 'export'}` to start from its weights."
        )

    @staticmethod
    def accept(run: Path, folder: Path, texts: Mapping[str, str]) -> None:
        """Write `texts` into the run folder, and make room in the folder of a stage for its results."""
        for name, text in texts.items():
            (run / name).write_text(without_secrets(text), encoding="utf-8")
        if (folder / RESULTS).exists() and damage(folder) and (folder / "export").exists():
            aside = folder / "export-damaged"
            shutil.rmtree(aside, ignore_errors=True)
            (folder / "export").rename(aside)
        (folder / RESULTS).unlink(missing_ok=True)


def damage(folder: Path) -> str | None:
    """Return how the results or the export of a finished stage differ from what was written, or None."""
    try:
        hashes = json.loads((folder / RESULTS).read_bytes()).get(EXPORT_FILES, {})
        return checkpoint.changed_file(folder / "export", hashes)
    except (ValueError, AttributeError):
        return f"{RESULTS} cannot be read"


def check_run_format(folder: Path) -> None:
    """Raise ConfigError when a run, or a stage of it, was finished by a newer Stentor whose results this one cannot
    read."""
    for file in (folder / RESULTS, *folder.glob(f"stages/*/{RESULTS}")):
        refuse_newer(file, _object(file), RUN_FORMAT)


def find_origin(asked: Path, folder: Path, stages: Sequence[Config]) -> Origin | None:
    """Return the checkpoint that `--resume-from` names for the run `folder`; None if this run has already started from
    it. Raises ConfigError for anything but a checkpoint of another run, and DataError for a damaged one."""
    if len(stages) > 1:
        raise ConfigError(
            "--resume-from continues one training, and this run file has `stages`: give the remaining stage a run file "
            "of its own, without `stages`."
        )
    place = asked.expanduser().resolve()
    if place.is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{asked} is in the run folder {folder} itself. To resume this run, leave --resume-from out; to branch "
            "from it, choose another `name`."
        )
    if (folder / RESULTS).exists() or checkpoint.existing(folder / "checkpoints"):
        recorded = recorded_origin(folder)
        if recorded and Path(recorded["checkpoint"]).is_relative_to(place):
            return None
        begun = f"from {recorded['checkpoint']}" if recorded else "without --resume-from"
        raise ConfigError(
            f"The run {folder} exists and was started {begun}. Choose another `name` to start from {asked}; to resume "
            "this run, leave --resume-from out."
        )
    source = find_checkpoint(place)
    before = _object(source / TRAINING_CONFIG)
    if (family := before["model"]["type"]) != stages[0].model.type:
        raise ConfigError(
            f"The checkpoint {source} belongs to another model (model.type: {family} -> {stages[0].model.type}). "
            "Restore the `model:` section, or leave --resume-from out."
        )
    return Origin(source, str(before["name"]))


def recorded_origin(folder: Path) -> dict[str, Any] | None:
    """Return the origin of a run, from its results or its newest checkpoint."""
    states = [path / "resume" / "state.json" for path in checkpoint.existing(folder / "checkpoints")[:1]]
    for file in (folder / RESULTS, *states):
        origins = [part["origin"] for part in _object(file).get("parts", []) if "origin" in part]
        if origins:
            return dict(origins[-1])
    return None


def find_checkpoint(place: Path) -> Path:
    """Return the checkpoint at a path: a checkpoint, or the newest undamaged one of a run folder."""
    if place.is_file() and place.name in ("latest", "best"):
        place = place.parent / place.read_text(encoding="utf-8").strip()
    if not place.exists():
        raise ConfigError(f"--resume-from: {place} does not exist.")
    if place.name in ("export", "resume") and (place.parent / checkpoint.META).is_file():
        raise ConfigError(f"--resume-from: {place} is one part of a checkpoint. Give the checkpoint: {place.parent}")
    inside = place / "checkpoints"
    candidates = [place] if (place / "resume").is_dir() else checkpoint.existing(inside if inside.is_dir() else place)
    for folder in candidates:
        refuse_newer(folder / checkpoint.META, _object(folder / checkpoint.META), CHECKPOINT_FORMAT, "format")
        if problem := checkpoint.damage(folder):
            print(f"The checkpoint {folder} is damaged ({problem}).", flush=True)
        else:
            return folder
    if candidates:
        raise DataError(f"--resume-from: every checkpoint at {place} is damaged. Restore it from a copy.")
    if (place / "config.json").is_file():
        raise ConfigError(
            f"--resume-from: {place} is an export, which has weights but no optimizer and no position in the data. Set "
            f"`model.init: {place}` to start from its weights."
        )
    raise ConfigError(
        f"--resume-from: {place} is neither a checkpoint (RUN/checkpoints/step-000400) nor a run folder with a "
        "complete checkpoint."
    )


def _stages_of(text: str) -> list[dict[str, Any]]:
    """Return the configs of the stages in a resolved.yaml, as plain data."""
    try:
        return [config.plain() for config in stage_configs(load_text(text, "resolved.yaml"))]
    except ConfigError:  # it needs a plug-in that is not loaded now, or is of another version
        return [read_yaml(text) or {}]


def _object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one where it is missing or damaged, which is reported elsewhere."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
