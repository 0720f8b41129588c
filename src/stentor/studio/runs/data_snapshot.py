"""A run's own copy of its data, so that recording, correcting and removing continue while it trains or waits to resume.

Each manifest of the projects folder that a run file names is copied to `runs/NAME/data/SET/`, and its audio is linked
there (hard links: the same bytes on the disk, which stay when the recording is made again or removed).
"""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stentor.publish.files import link_or_copy
from stentor.studio.files import disk_errors, name_from, read_json, read_records
from stentor.studio.projects import Projects

FOLDER = "data"


def keep(tree: dict[str, Any], staging: Path, folder: Path, projects: Projects) -> dict[str, str]:
    """Copy what `tree` (a run file) names into `staging`, and let it name the copies where they will be: in `folder`.
    Answers the manifest that each copy is of, by the copy's name; of another run's copy, the manifest of that.

    Records without their audio are copied as they are: the run tells what it cannot read. Raises StentorError when the
    disk is full.
    """
    copied: dict[Path, str] = {}
    for source in _sources(tree):
        manifest = (projects.folder / source["path"]).resolve()
        own = any(manifest.is_relative_to(projects.folder / name) for name in ("datasets", "runs"))
        if not (own and manifest.is_file()):  # files elsewhere are not the studio's to change
            continue
        if manifest not in copied:
            stem, used = name_from(manifest.stem, "set"), set(copied.values())
            copied[manifest] = next(
                n for i in range(1, len(copied) + 2) if (n := stem if i == 1 else f"{stem}-{i}") not in used
            )
            _copy(manifest, staging / FOLDER / copied[manifest])
        source["path"] = str(folder / FOLDER / copied[manifest] / manifest.name)
    return {name: _origin(manifest, projects) for manifest, name in copied.items()}


class Changes(NamedTuple):
    """Changes of the recordings since a run took its copy."""

    added: int
    corrected: int
    """Texts that are others."""
    removed: int


def as_now(tree: dict[str, Any], folder: Path, copies: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """A run file whose run has its copies in `folder`, for the manifests that these are of; and those manifests that
    are still there, by the copy's file."""
    tree, found = copy.deepcopy(tree), {}
    for source in _sources(tree):
        path = Path(source["path"])
        manifest = copies.get(path.parent.name, "") if path.is_relative_to(folder / FOLDER) else ""
        if manifest and Path(manifest).is_file():
            found[str(path)] = source["path"] = manifest
    return tree, found


def changes(copies: dict[str, str]) -> Changes:
    """Changes between copies and their manifests."""
    before, now = ({r["id"]: r for path in side for r in read_records(Path(path))} for side in zip(*copies.items()))
    texts = [before[id].get("text") != now[id].get("text") for id in before.keys() & now.keys()]
    return Changes(len(now.keys() - before.keys()), sum(texts), len(before.keys() - now.keys()))


def renew(copies: dict[str, str], staging: Path, folder: Path) -> None:
    """Put what the manifests hold now in the place of a run's copies (as `keep` answered them). Raises StentorError
    when the disk is full."""
    for name, manifest in copies.items():
        if Path(manifest).is_file():
            _copy(Path(manifest), staging / name)
            with disk_errors(folder):
                (folder / FOLDER).mkdir(exist_ok=True)
                if (folder / FOLDER / name).exists():
                    (folder / FOLDER / name).rename(staging / f"{name}-before")
                (staging / name).rename(folder / FOLDER / name)


def _origin(manifest: Path, projects: Projects) -> str:
    if not manifest.is_relative_to(projects.runs):
        return str(manifest)
    run, _, name = manifest.relative_to(projects.runs).parts[:3]
    return str(read_json(projects.runs / run / "studio.json").get("copies", {}).get(name, manifest))


def _sources(value: Any) -> Iterator[dict[str, Any]]:
    """The sources of type jsonl in a section, however deep."""
    if isinstance(value, dict):
        if value.get("type") == "jsonl" and isinstance(value.get("path"), str):
            yield value
        for inner in value.values():
            yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def _copy(manifest: Path, to: Path) -> None:
    home = manifest.parent
    with disk_errors(to):
        to.mkdir(parents=True)
        shutil.copyfile(manifest, to / manifest.name)
        for line in manifest.read_bytes().split(b"\n"):
            try:
                name = json.loads(line)["audio_path"] if line.strip() else None
            except (ValueError, TypeError, KeyError):
                continue
            audio = (home / name).resolve() if isinstance(name, str) else home
            if not (audio.is_file() and audio.is_relative_to(home)):
                continue
            link = to / audio.relative_to(home)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link_or_copy(audio, link)
