"""Trainings of the rounds: run files with the sources of a round, and the training command on them."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stentor.config.document import Mistake, Mistakes, Place, parse
from stentor.config.improve import MixRatio
from stentor.config.load import load, load_text, run_texts, stage_configs
from stentor.config.merge import stage
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump
from stentor.dataloading.mixing import Pool
from stentor.engine.launch import launch
from stentor.errors import StentorError, Stopped

Plain = dict[str, Any]


@dataclass(frozen=True)
class Material:
    """Data of a round in addition to the sources of the run file."""

    manifests: Mapping[str, Path]
    """By kind: pseudo and synthetic, where there are any."""

    def kinds(self, mix: MixRatio | None) -> dict[str, Path]:
        """The manifests that hold anything which this ratio takes, by kind."""
        taken = {kind: path for kind, path in self.manifests.items() if mix is None or mix.of(kind)}
        return {kind: path for kind, path in taken.items() if path.stat().st_size}


def round_config(config: Config, pools: Sequence[Pool], material: Material | None, mix: MixRatio | None) -> Plain:
    """The run file, as plain data, with the material of a round as further sources in this ratio. `pools` are the
    records of `data.train`, source by source."""
    plain = config.plain()
    plain["improve"], plain["prepare"] = None, []
    if plain["train"]["score_before"] is None:  # the best round is what it is compared with
        plain["train"]["score_before"] = False
    kinds = {} if material is None else material.kinds(mix)
    sources = plain["data"]["train"]
    added: list[Plain] = [{"type": "jsonl", "path": str(path)} for path in kinds.values()]
    if mix is not None and added:
        sources = [source for source, pool in zip(sources, pools) if pool.cuts]  # no weight is 0
        for source, share in zip(sources, _shares([pool for pool in pools if pool.cuts])):
            source["weight"] = mix.human * share
        for kind, source in zip(kinds, added):
            source["weight"] = mix.of(kind)
    plain["data"]["train"] = sources + added
    return plain


def later(plain: Plain, overrides: Plain) -> Plain:
    """The run file of a round with the overrides of `improve.then`, in one stage. Raises `Mistakes`."""
    mistakes: list[Mistake] = []
    try:
        root, then = (parse(dump(part), "improve.then", 0, mistakes) for part in (plain, overrides))
        staged = stage(root, then, Config, mistakes)
        if mistakes:
            raise Mistakes(mistakes)
        return load_text(dump(staged.plain()), "improve.then").config.plain()
    except Mistakes as error:  # their lines are of no file that a person has written
        raise Mistakes([replace(m, place=Place(0, 0, "improve.then")) for m in error.mistakes]) from None


def _shares(pools: Sequence[Pool]) -> list[float]:
    """The share of each source of `data.train` among the human records: by weights, or else by sizes."""
    sizes = [len(p.cuts) * p.repeat if p.weight is None else p.weight for p in pools]
    return [size / sum(sizes) for size in sizes]


def shortened(plain: Plain, share: float) -> Plain:
    """The run file with trainings of this share of their length, in all stages, and without test sets."""
    plain = copy.deepcopy(plain)
    plain["data"]["test"] = {}
    for section in (plain, *(plain["stages"] or [])):
        train = section.get("train", {})
        if train.get("steps"):
            train["steps"] = max(1, round(train["steps"] * share))
        elif train.get("epochs"):
            train["epochs"] = train["epochs"] * share
        elif section is plain:
            train["epochs"] = 10 * share  # what null means
    return plain


def train_run(plain: Plain, folder: Path, processes: int, plugins: Sequence[Path]) -> Plain:
    """Train a run file into a folder, unless that is done; answers its results. Raises what training raises, Stopped
    after a signal. Other processes load the `plugins` again."""
    from stentor.commands.train import train

    file = folder.with_suffix(".yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump({**plain, "name": folder.name, "output": str(folder.parent)}), encoding="utf-8")
    if processes > 1:
        code = launch(processes, ["train", str(file), *(f"--plugin={plugin}" for plugin in plugins)])
        if code == Stopped.exit_code:
            raise Stopped("Stopped by a signal. Trained rounds are saved: run the same command to resume.")
        if code:
            raise StentorError(f"Training {file} ended with exit code {code}; its messages are above.")
    else:
        loaded = load(file)
        train(stage_configs(loaded), folder, run_texts(loaded), ["stentor", "train", str(file)])
    results: Plain = json.loads((folder / "results.json").read_bytes())
    return results


def best_ratio(scores: Sequence[Mapping[str, Any]], metric: str, direction: str) -> int:
    """The ratio with the best score; the first one of equals."""
    values = [entry["eval"][metric]["value"] for entry in scores]
    return values.index(min(values) if direction == "min" else max(values))
