"""Sources of a data set of the Hub that a person names: `google/fleurs de_de`, `granary German`, an address.

Data sets with a preset are read through it (see stentor.sources.hub_presets). Of any other the Hub is asked for its
configurations and splits, with one request.
"""

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from stentor.errors import ConfigError
from stentor.sources.hub_presets import PRESETS, Preset
from stentor.sources.hub_repository import HubRepository, hub_repository
from stentor.text.languages import among, label, language_code, table

HOURS = 10.0
"""Hours that are taken of a data set unless a person says otherwise: a GPU trains on them within the hour."""
HELD_OUT_HOURS = 1.0
"""Most hours of a validation split that are taken."""
ADDRESS = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/|hf://", re.I)
ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class HubChoice:
    """A data set of the Hub as a person asks for it."""

    text: str
    """Its name or address, or the name of a preset, and after it a language or configuration."""
    language: str = ""
    """Where the text has none."""
    split: str = ""
    """The split to train on. Empty: the usual one."""
    hours: float | None = HOURS
    """Hours to take of it, from its beginning. None: all."""


@dataclass(frozen=True)
class HubData:
    """Sources as plain data, for `data.train` and `data.eval`."""

    train: dict[str, Any]
    held_out: dict[str, Any]
    notes: tuple[str, ...] = ()
    """Sentences about what is read in place of what was asked for."""

    @property
    def name(self) -> str:
        """The preset or repository and its part, for people."""
        keys = ("preset", "name", "subset", "config", "language", "split")
        return " ".join(str(self.train[key]) for key in keys if key in self.train)


@dataclass(frozen=True)
class NamedPreset:
    """A preset as a text names it."""

    key: str
    subsets: dict[str, Preset]
    """Those that are meant."""
    language: str = ""
    """As it is written; empty where it is not."""
    split: str = ""
    notes: tuple[str, ...] = ()


def offered() -> list[tuple[str, str]]:
    """(label, key) of the presets to choose from."""
    firsts = {key: next(iter(PRESETS[key].values())) for key in PRESETS}
    return [(f"{preset.title} ({preset.name})", key) for key, preset in firsts.items() if preset.title]


def languages_of(key: str) -> list[tuple[str, str]]:
    """(label, code) of the languages of a preset; empty where it takes any."""
    codes = dict.fromkeys(code for preset in PRESETS[key].values() if preset.audio for code in preset.languages or ())
    return sorted((label(code) if code in table() else f"{label(code)}, {code}", code) for code in codes)


def splits_of(key: str) -> list[str]:
    """The splits of a preset, the usual one first."""
    return [*dict.fromkeys(split for preset in PRESETS[key].values() if preset.audio for split in preset.splits)]


def preset_of(text: str) -> NamedPreset | None:
    """The preset that a text names by its key, title or repository, if any."""
    words = _words(text)
    names = {_plain(name): key for title, key in offered() for name in (key, title.partition(" (")[0])}
    for count in (3, 2, 1):
        if key := names.get(_plain("".join(words[:count]))):
            return _named(key, PRESETS[key], words[count:])
    for _, key in offered():
        known = {subset: p for subset, p in PRESETS[key].items() if words[0].casefold() == p.name.casefold()}
        if known:
            return _named(key, known, words[1:])
        moved = next((p for p in PRESETS[key].values() if p.also and re.fullmatch(p.also, words[0], re.I)), None)
        if moved:
            note = f"{words[0]} cannot be read any more: {moved.name}, which has the same recordings, takes its place."
            return _named(key, PRESETS[key], words[1:], note)
    return None


def hub_data(choice: HubChoice) -> HubData:
    """The sources of a choice. Raises `ConfigError` with one sentence that says what does not fit and what does."""
    if choice.hours is not None and not 0 < choice.hours < 1e6:
        raise ConfigError("The limit of a data set of the Hub is a number of hours above 0, or empty for all of it.")
    if named := preset_of(choice.text):
        return _of_preset(named, choice)
    name, *words = _words(choice.text)
    if not ID.fullmatch(name):
        raise ConfigError(
            f"{name[:80]} is no data set of the Hub: choose one of the list, paste the address of its page, or write "
            "USER/NAME, such as google/fleurs de_de."
        )
    return _of_repository(name, words, choice)


def _words(text: str) -> list[str]:
    """The name of the repository and the words after it. Raises `ConfigError` for the address of something else."""
    text = re.sub(r"^.*load_dataset\(|[\"'`,]|\)$", " ", text.strip())
    text = re.sub(r"\s*/\s*", "/", text.strip())
    address = ADDRESS.match(text)
    if address or text.startswith("datasets/"):
        place, _, rest = text[address.end() if address else 0 :].partition(" ")
        kind, *path = place.partition("?")[0].strip("/").split("/")
        if kind != "datasets" or len(path) < 2:
            raise ConfigError("This address leads to no data set of the Hub: theirs have /datasets/ in them.")
        more = path[3:5] if path[2:3] == ["viewer"] else []
        text = " ".join(["/".join(path[:2]), *more, rest])
    return text.split() or [""]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _named(key: str, subsets: dict[str, Preset], words: list[str], *notes: str) -> NamedPreset:
    """The preset with what the words after its name say: subset, split and language in any order."""
    subsets = {subset: preset for subset, preset in subsets.items() if subset in words} or subsets
    split = next((word for word in words for preset in subsets.values() if word in preset.splits), "")
    language = " ".join(word for word in words if word != split and word not in subsets)
    if not language and all(len(preset.languages or ()) == 1 for preset in subsets.values()):
        language = next(iter(next(iter(subsets.values())).languages or ()))
    return NamedPreset(key, subsets, language, split, notes)


def _of_preset(named: NamedPreset, choice: HubChoice) -> HubData:
    key, first, notes = named.key, next(iter(named.subsets.values())), named.notes
    language, split = named.language or choice.language, named.split or choice.split
    if not language:
        raise ConfigError(f"{first.title} needs a language: choose it, or write it after the name.")
    spoken = {s: p for s, p in {**named.subsets, **PRESETS[key]}.items() if p.audio and p.spelling(language)}
    if not spoken:
        texts = first.spelling(language) or any(p.spelling(language) for p in PRESETS[key].values())
        problem = "has only transcripts in this language, no recordings" if texts else f"has no language '{language}'"
        raise ConfigError(f"{first.title} {problem}. {_there(key, '' if texts else language)}")
    subset, preset = next(iter(spoken.items()))
    if subset not in named.subsets:
        notes += (f"{first.name} has no recordings in this language: {preset.name} takes its place.",)
    if split and split not in preset.splits:
        raise ConfigError(f"{first.title} has no split '{split}'; it has: {', '.join(preset.splits)}.")
    if preset.stream and choice.hours is None:
        raise ConfigError(f"{first.title} is too large to be taken whole: give a limit in hours.")
    spelled = str(preset.spelling(language))
    codes = [code for code, own in (preset.languages or {spelled: spelled}).items() if own == spelled]
    code = language_code(language) if language_code(language) in codes else codes[0]
    source = {"type": "hub", "preset": key, **({"subset": subset} if subset else {}), "language": code}
    train = split if split != preset.split else ""
    held_out = preset.held_out if preset.held_out != split else None
    return HubData(*_parts(source, train, held_out or "", choice.hours), notes)


def _there(key: str, language: str) -> str:
    """A sentence with the languages of a preset, those closest to one that it has not first."""
    codes = {code: text for text, code in languages_of(key)}
    if not codes:
        return "Give a code such as sv."
    names = {word.casefold(): code for code, text in codes.items() for word in (code, *re.findall(r"[^(),]+", text))}
    near = dict.fromkeys(names[n] for n in difflib.get_close_matches(language.casefold(), names, 5, 0.6))
    offer = f"Did you mean {' or '.join(f'{codes[c]}, {c}' for c in list(near)[:3])}? " if near else ""
    return f"{offer}It has: {', '.join([*near, *(c for c in codes if c not in near)])}."


def _parts(
    source: dict[str, Any], split: str, held_out: str, hours: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A source's part to train on and the one to evaluate on: of another split, or of the same recordings."""
    train = {**source, **({"split": split} if split else {}), **({"first_hours": hours} if hours else {})}
    if not held_out:
        return {**train, "part": "train"}, {**train, "part": "validation"}
    fewer = {"first_hours": min(hours, HELD_OUT_HOURS)} if hours else {}
    return train, {**source, "split": held_out, **fewer}


def _of_repository(name: str, words: list[str], choice: HubChoice) -> HubData:
    """The sources of a data set without preset."""
    known = [preset.name for _, key in offered() for preset in PRESETS[key].values()]
    near = "".join(f" Did you mean {other}?" for other in difflib.get_close_matches(name, known, 1, 0.8))
    asked, notes = " ".join(words), tuple[str, ...]()
    try:
        there = hub_repository(name)
    except ConfigError as error:
        raise ConfigError(f"{error}{near}") from None
    if there is None:
        there, config, splits = HubRepository({}), asked, tuple[str, ...]()
        notes = (f"The Hub does not answer, so {name} is taken as written and looked for at the start.{near}",)
    else:
        if words and asked not in there.configs and any(words[-1] in s for s in there.configs.values()):
            choice, asked = replace(choice, split=words[-1]), " ".join(words[:-1])
        found = among(asked, tuple(there.configs)) if asked else there.default
        if found is None:
            near_it = difflib.get_close_matches(asked, there.configs, 5, 0.5)
            offer = ", ".join([*near_it, *(c for c in there.configs if c not in near_it)])
            problem = f"has no configuration '{asked}'" if asked else "has several configurations"
            raise ConfigError(f"{name} {problem}: write one of these after its name: {offer}.")
        config, splits = found, there.configs[found]
    if choice.split and splits and choice.split not in splits:
        raise ConfigError(f"{name} has no split '{choice.split}'; it has: {', '.join(splits)}.")
    train = choice.split or next((s for s in splits if s.startswith("train")), splits[0] if splits else "train")
    held_out = next((s for s in splits if s in ("validation", "valid", "dev") and s != train), "")
    source = {"type": "hub", "name": name, **({"config": config} if config not in ("", "default") else {})}
    both = _parts(source, train if train != "train" else "", held_out, choice.hours)
    if there.revision:
        notes += (f"{name} is a program, which is never run: the Hub's own copy of its data is read.",)
        for part, split in zip(both, (train, held_out or train)):
            part.pop("config", None)
            part |= {"revision": there.revision, "data_files": f"{config}/*{split}/*.parquet"}
    return HubData(*both, notes)
