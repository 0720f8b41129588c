"""Path policy, what the run of a remote person may name: their own projects folder and the folders of `--models`.

A run file can name folders, files and models in many places. On the person's own machine that is free; where a password
is set, the studio's machine holds more than belongs to who asks. Everything is refused that is not known to be
harmless: a key that is new in the schema is held to be a path until it is listed in `FREE`.
"""

import inspect
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from stentor.config.document import Mistake, Mistakes, parse
from stentor.config.load import Loaded, load_text
from stentor.data.storage import is_remote
from stentor.errors import ConfigError
from stentor.section import Section, alternatives
from stentor.section.schema_walk import Key, dotted
from stentor.sources.base import Source
from stentor.studio.projects import Projects

FREE = frozenset(
    {
        "Transcribe.context",
        "Transcribe.hotwords",
        "PromptSection.instruction",
        "Text.texts",
        "Synth.texts",
        "Source.where",
        "Source.exclude",
    }
)
"""Keys (class and field) of free text that is never looked for on a disk or on the Hub."""
REFUSED = {
    "Config.prepare": "what is prepared is fetched and written on the studio's machine",
    "Config.improve": "its steps read and write where they like on the studio's machine",
    "Tracking.wandb": "a tracker would use the login of the studio's owner",
    "Tracking.trackio": "a tracker would use the login of the studio's owner",
}
"""Keys that stay at their default, and why."""
OWN = frozenset({"jsonl", "text", "synth", "held_out", "join", "split", "conversation", "hub"})
"""Kinds of sources that may read from the projects folder. The manifests of the others can name any file, and even
commands: they are the owner's to write, so they may only lie in a folder of `--models`."""
_NAME = re.compile(r"\w[\w. -]{0,99}")
_WORD = re.compile(r"[\w.+-]{0,200}")
MOST_YAML = 200_000
"""Characters of the longest config."""
_MOST_LINKS = 20_000
"""Files of a folder that are looked at for links."""


def checked(text: str, projects: Projects) -> Loaded:
    """The config of a run that a person asks for.

    Raises `Mistakes`: all that is wrong with it, each with its line, and, of a person who has signed in, each key that
    leaves their projects.
    """
    check_length(text)
    loaded = load_text(text)
    if projects.guarded:
        policy, root = _PathPolicy(projects.folder, projects.models), parse(text, "run.yaml", 0, [])
        parts: list[tuple[tuple[Key, ...], Section]] = [((), loaded.config)]
        parts += [(("stages", number), stage) for number, stage in enumerate(loaded.stages)]
        mistakes = [
            Mistake(root.at((*before, *path)), f"'{dotted(path)}' {why}", dotted(path))
            for before, part in parts
            for path, why in policy.section(part, ())
        ]
        if mistakes:
            raise Mistakes(mistakes)
    return loaded


def check_length(text: str) -> None:
    """Raises ConfigError for a config that is too long to be read, before anything reads it."""
    if len(text) > MOST_YAML:
        raise ConfigError(f"A config of {len(text)} characters is too long: at most {MOST_YAML}.")


class _PathPolicy:
    """Parts that reach beyond `folder` and `models`, or are for the studio's owner alone. Relative paths start from
    `folder`, where runs are started."""

    def __init__(self, folder: Path, models: Sequence[Path]):
        self.folder = folder.resolve()
        self.models = [m.expanduser().resolve() for m in models]

    def section(self, section: Section, path: tuple[Key, ...], strict: bool = False) -> Iterator[tuple[Any, str]]:
        """(path, why) of what is refused. `strict`: paths must lie in the folders of the owner."""
        kind = type(section)
        if not kind.__module__.startswith("stentor."):
            yield path, "is a plug-in: the studio's owner has to run it"
            return
        if isinstance(section, Source):
            strict = section.type not in OWN
            if why := _source(section):
                yield path, why
        for name, field in kind.model_fields.items():
            owner = f"{_owner(kind, name)}.{name}"
            value, here = getattr(section, name), (*path, field.alias or name)
            if owner == "Config.stages" or (owner in FREE and not _is_path(value)):
                continue
            if owner in REFUSED:
                if value != field.get_default(call_default_factory=True):
                    yield here, f"is for the studio's owner alone: {REFUSED[owner]}"
                continue
            literals = {a for k in alternatives(field.annotation) if get_origin(k) is Literal for a in get_args(k)}
            if not (isinstance(value, str) and value in literals):
                yield from self.value(value, here, strict, isinstance(section, Source) and section.type == "jsonl")

    def value(self, value: Any, path: tuple[Key, ...], strict: bool, listing: bool) -> Iterator[tuple[Any, str]]:
        if isinstance(value, Section):
            yield from self.section(value, path, strict)
        elif isinstance(value, str) or _is_path(value):
            why = self.path(str(value), strict and isinstance(value, Path))
            if why := why or (self.manifest(value) if listing and isinstance(value, Path) else None):
                yield path, why
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                yield from self.value(item, (*path, number), strict, listing)
        elif isinstance(value, dict):
            for name, item in value.items():
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    yield (*path, str(name)), "is no plain name: use letters, digits, dots, - and _"
                elif isinstance(item, Section):
                    yield from self.section(item, (*path, name), strict)
                elif not _plain(name, item):
                    yield (*path, name), "may hold numbers and plain words only"

    def path(self, text: str, strict: bool) -> str | None:
        """Reason why a text cannot be the path, Hub id or name that it is taken for. None: it can."""
        outside = "leads out of your projects: give a name on the Hub, one of your runs, or a folder that the studio's "
        outside += "owner shares (--models)"
        if "\0" in text or "\\" in text or "$" in text or ":/" in text or text.startswith(("~", "file:")):
            return outside
        if ".." in re.split(r"[/:@]", text):
            return outside
        place = (self.folder / text).resolve()
        roots = self.models if strict else [self.folder, *self.models]
        if not any(place.is_relative_to(root) for root in roots):
            return "may only lie in a folder that the studio's owner shares (--models)" if strict else outside
        if place.is_relative_to(self.folder) and place != self.folder and place.is_dir() and not self.closed(place):
            return "holds a link that leads out of your projects"
        return None

    def closed(self, place: Path) -> bool:
        """Whether no link in a folder leads out."""
        seen = 0
        for folder, folders, files in os.walk(place):
            for name in (*folders, *files):
                seen += 1
                path = Path(folder, name)
                if seen > _MOST_LINKS or (path.is_symlink() and not path.resolve().is_relative_to(self.folder)):
                    return False
        return True

    def manifest(self, path: Path) -> str | None:
        """Reason why a manifest in the projects folder cannot be read: it names audio that lies elsewhere."""
        place = (self.folder / path).resolve()
        if not place.is_relative_to(self.folder) or not place.is_file():
            return None
        for number, line in enumerate(place.read_bytes().split(b"\n"), 1):
            try:
                record = json.loads(line) if line.strip() else {}
            except ValueError:
                return f"is no manifest (line {number} of {place.name} is not JSON)"
            audio = record.get("audio_path", "") if isinstance(record, dict) else None
            if (
                not isinstance(audio, str)
                or is_remote(audio)
                or not (place.parent / audio).resolve().is_relative_to(place.parent)
            ):
                return f"names audio outside of its own folder (line {number} of {place.name})"
        return None


def _is_path(value: Any) -> bool:
    """Whether a value is a path of this machine or an address, and no text."""
    return isinstance(value, Path) or (not isinstance(value, str) and is_remote(value))


def _source(source: Source) -> str | None:
    """Reason why a whole source is refused, whatever its paths are."""
    if source.type == "hub" and source.preset is None:  # type: ignore[attr-defined]
        return "is a data set of the Hub whose rows could name files of the studio's machine: choose a `preset`"
    if source.type == "corpus" and (source.from_ is None or source.download):  # type: ignore[attr-defined]
        return "would download a corpus: the studio's owner has to"
    return None


def _owner(kind: type[Section], name: str) -> str:
    """The class that declares a field."""
    return next(c.__name__ for c in kind.__mro__ if name in inspect.get_annotations(c))


def _plain(name: str, value: Any) -> bool:
    """Whether an entry of an open mapping, such as a transformers config, is harmless. A word with a slash could be a
    model or a kernel on the Hub, `auto_map` is the code of a model."""
    if name == "auto_map" or name.startswith("_name_or_path"):
        return False
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(k, v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_plain("", item) for item in value)
    return not isinstance(value, str) or (_WORD.fullmatch(value) is not None and ".." not in value)
