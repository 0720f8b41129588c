"""Name and language of a data set, and what must follow when they change."""

from pathlib import Path
from typing import Any

from stentor.errors import ConfigError
from stentor.studio.dataset.prompts import language_of, prompt_id, stored_phrases
from stentor.studio.files import Record, checked_name, inside, locked, read_json, write_json
from stentor.studio.projects import DataSet, Projects
from stentor.studio.runs import detached
from stentor.studio.texts import say

SPLITTING = "tmp/long-*/long.json"
NAMING = ("runs/*/studio.json", "published/*/publication.json", SPLITTING)
"""Files below the projects folder that name a data set or files of it. Beside each is the lock of what works on it."""


def rename(projects: Projects, name: str, to: str) -> DataSet:
    """Give a data set another name, also where runs and others name it. Raises ConfigError for an invalid name, for
    one that is taken, and while something works on the data set: then nothing has changed."""
    dataset = projects.dataset(name)
    to = checked_name(to.strip(), "data set's name")
    if to == dataset.name:
        return dataset
    folder = inside(projects.folder, "datasets", to)
    changes: dict[Path, dict[str, Any]] = {}
    for path in (path for pattern in NAMING for path in projects.folder.glob(pattern)):
        before = read_json(path)
        if (after := _renamed(before, dataset.folder, folder)) != before:
            _require_rest(path, dataset)
            changes[path] = after
    # Both locks: that of the recordings' page, and that of every change.
    with locked(dataset.folder / "audio"), locked(dataset.folder):
        renamed = projects.rename(dataset, to)
    for path, after in changes.items():
        write_json(path, after)
    return renamed


def _renamed(value: Any, old: Path, new: Path) -> Any:
    """A file's content with the new name of the data set, and the new paths of its files."""
    if isinstance(value, str):
        return f"{new}{value.removeprefix(str(old))}" if value.startswith(f"{old}/") else value
    if not isinstance(value, dict):
        return value
    names = ("dataset", "of") if value.get("what") == "dataset" else ("dataset",)
    after = {key: _renamed(inner, old, new) for key, inner in value.items()}
    return after | {key: new.name for key in names if value.get(key) == old.name}


def _require_rest(path: Path, dataset: DataSet) -> None:
    if detached.alive(path.parent):
        raise ConfigError(say("identity_busy", name=dataset.name))


def change_language(projects: Projects, dataset: DataSet, language: str) -> int:
    """Change the language of a data set and of its recordings in that language; answers how many these are. An own list
    of phrases stays, with its recordings. Raises ConfigError while a long recording is being split."""
    before = dataset.about.get("language")
    if language == before:
        return 0
    for path in projects.folder.glob(SPLITTING):
        if read_json(path).get("dataset") == dataset.name:
            _require_rest(path, dataset)
    own = stored_phrases(dataset, "own")
    keys = {prompt_id(text, language_of(dataset)): prompt_id(text, language) for text in own}
    changed = 0

    def in_language(record: Record) -> Record:
        nonlocal changed
        fields = {"prompt": keys[record["prompt"]]} if record.get("prompt") in keys else {}
        if record.get("language") == before:
            changed += 1
            fields["language"] = language
        return {**record, **fields}

    notes = dataset.folder / "rows.json"
    with locked(dataset.folder / "audio"):
        with locked(dataset.folder):
            dataset.rewrite(in_language)
            write_json(dataset.folder / "dataset.json", {**dataset.about, "language": language})
        rows = read_json(notes)
        for part in ("texts", "heard"):
            if isinstance(rows.get(part), dict):
                rows[part] = {keys.get(key, key): row for key, row in rows[part].items()}
        if rows:
            write_json(notes, rows)
    for path in dataset.folder.glob("phrases-*.txt"):  # sentences of a corpus in the old language
        path.unlink()
    return changed
