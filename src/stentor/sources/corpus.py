"""`corpus`: any corpus that lhotse has a recipe for, on disk or downloaded."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from stentor.data.cut import Cut, UnusableRecord
from stentor.data.jsonl import not_found
from stentor.data.storage import StoragePath
from stentor.data.storage_cache import local_folder
from stentor.errors import ConfigError, DataError, MissingData
from stentor.sources.base import Source
from stentor.sources.librispeech import librispeech
from stentor.sources.manifest import split_utterances
from stentor.text.languages import known_code

DIARIZED = ("MSDWild", "AVA-AVD", "Ego4D", "MagicData-RAMC", "DISPLACE", "SIMSAMU", "REPERE")
NO_RECIPE = {"".join(c for c in title.lower() if c.isalnum()): title for title in DIARIZED}
NO_RECIPE |= {"ramc": "MagicData-RAMC", "dihard2": "DIHARD II"}
"""Corpora for diarization that come with RTTM files and for which lhotse has no recipe, by their plain names."""


class Corpus(Source):
    """A public corpus by its name in lhotse, such as `librispeech`, `ljspeech`, `commonvoice`, `ami` or `tedlium`."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["corpus"] = "corpus"
    name: str
    """Name of the lhotse recipe."""
    from_: StoragePath | None = Field(None, alias="from")
    """Folder of the unpacked corpus. Null with `download`: a folder `download` inside `to`."""
    to: Path | None = None
    """Folder that keeps the prepared manifests, so that the next run starts at once. Null: prepare each time."""
    split: str | None = None
    """Part of the corpus, such as `train-clean-100` or `en/train`. Null where there is only one."""
    utterances: bool = True
    """One record for each transcribed utterance. False: one record for each whole recording, with segments, for
    diarization; its id is that of the recording."""
    download: bool = False
    """Download missing files. Read the corpus's licence first."""
    options: dict[str, Any] = {}
    """Other options of the lhotse recipe, such as `{languages: [en]}` or `{mic: sdm}`."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        yield from self.shaped(self._cuts())

    def parts(self) -> dict[str, Callable[[], Iterator[Cut | UnusableRecord]]]:
        """The parts of the corpus by name, prepared now; calling one lists its whole recordings. Raises `ConfigError`
        for an unknown corpus or wrong options and `DataError` when the corpus is not as it should be or the recipe
        fails."""
        prepare = recipe("prepare", self.name)
        folder = self._folder()
        if self.download:
            folder = self._download(folder)
        if not folder.is_dir():
            raise not_found(folder)
        if self.name == "librispeech":
            return librispeech(folder, self.split, **self.options)
        prepared = flatten(self._call(prepare, self._arguments(prepare, folder)))
        return {name: partial(_as_cuts, part) for name, part in prepared.items()}

    def shaped(self, cuts: Iterator[Cut | UnusableRecord]) -> Iterator[Cut | UnusableRecord]:
        """Whole recordings as the section says: cut into utterances, with language codes."""
        for cut in split_utterances(cuts) if self.utterances else _named_after_recordings(cuts):
            if not isinstance(cut, UnusableRecord):
                for supervision in cut.supervisions:
                    supervision.language = supervision.language and known_code(supervision.language)
            yield cut

    def _cuts(self) -> Iterator[Cut | UnusableRecord]:
        """Cuts of whole recordings: from the cache in `to`, or prepared now."""
        if self.to is None:
            yield from self._prepare()
            return
        from lhotse import CutSet

        folder = self.to.expanduser()
        stem = "-".join([self.name, *(self.split.split("/") if self.split else [])])
        manifest, about = folder / f"{stem}.cuts.jsonl.gz", folder / f"{stem}.json"
        settings = {"name": self.name, "split": self.split, "from": str(self._folder()), "options": self.options}
        known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        if manifest.exists() and all(known.get(k) == v for k, v in settings.items()):
            yield from CutSet.from_jsonl_lazy(manifest)
            yield from (UnusableRecord(*entry) for entry in known["unusable"])
            return
        cuts: list[Cut] = []
        unusable: list[UnusableRecord] = []
        for cut in self._prepare():
            (unusable if isinstance(cut, UnusableRecord) else cuts).append(cut)
        folder.mkdir(parents=True, exist_ok=True)
        half_done = folder / f"{stem}.partial-{os.getpid()}.jsonl.gz"
        CutSet.from_cuts(cuts).to_file(half_done)
        half_done.replace(manifest)
        known = {**settings, "unusable": [[u.id, u.reason, u.message] for u in unusable]}
        about.write_text(json.dumps(known, indent=1, ensure_ascii=False), encoding="utf-8")
        yield from cuts
        yield from unusable

    def _folder(self) -> Path:
        if self.from_ is not None:
            return local_folder(self.from_.expanduser().absolute())
        if self.download and self.to is not None:
            return self.to.expanduser().absolute() / "download"
        raise ConfigError(f"The corpus {self.name} needs `from` (its folder on disk), or `download: true` and `to`.")

    def _prepare(self) -> Iterator[Cut | UnusableRecord]:
        parts = self.parts()
        yield from parts[self.pick(list(parts))]()

    def _download(self, folder: Path) -> Path:
        download = recipe("download", self.name)
        if self.split and self._unpacked_elsewhere(folder, self.split):
            return folder
        parameters = inspect.signature(download).parameters
        arguments = {k: v for k, v in self.options.items() if k in parameters}
        if "dataset_parts" in parameters and self.split:
            arguments.setdefault("dataset_parts", [self.split])
        folder.mkdir(parents=True, exist_ok=True)
        first = "target_dir" if "target_dir" in parameters else next(iter(parameters))
        try:
            got = self._call(download, {first: folder, **arguments})
        except DataError as error:
            raise MissingData(f"{error}.", folder) from error
        return Path(got) if isinstance(got, str | Path) and Path(got).is_dir() else folder

    def _unpacked_elsewhere(self, folder: Path, split: str) -> bool:
        """Whether a part is there that lhotse did not unpack: it would remove it and fetch it again."""
        part = folder / "LibriSpeech" / split
        by_lhotse = (part / ".completed").exists() or (folder / f"{split}.tar.gz").exists()
        return self.name == "librispeech" and part.is_dir() and not by_lhotse

    def _arguments(self, prepare: Callable[..., Any], folder: Path) -> dict[str, Any]:
        """Arguments of the recipe: `from` as its corpus folder, `options`, and its other parameters."""
        parameters = inspect.signature(prepare).parameters
        if unknown := sorted(set(self.options) - set(parameters)):
            known = ", ".join(p for p in parameters if p not in ("corpus_dir", "output_dir"))
            wrong = ", ".join(map(repr, unknown))
            raise ConfigError(f"The recipe for {self.name} has no option {wrong}; it has: {known or 'none'}.")
        required = [n for n, p in parameters.items() if p.default is p.empty and n not in self.options]
        arguments = dict(self.options)
        if "output_dir" in required:
            if self.to is None:
                raise ConfigError(f"The recipe for {self.name} writes manifests: say where with `to`.")
            required.remove("output_dir")
            arguments["output_dir"] = self.to.expanduser() / "lhotse"
        folders = [n for n in [*required, *parameters] if n.endswith(("_dir", "_root", "_path")) and n != "output_dir"]
        corpus = "corpus_dir" if "corpus_dir" in parameters else next((n for n in folders if n not in arguments), None)
        if corpus and corpus not in arguments:
            arguments[corpus] = folder
        if missing := [n for n in required if n not in arguments]:
            raise ConfigError(
                f"The recipe for {self.name} also needs {', '.join(missing)}; give them in `options` "
                f"(see the help of lhotse.recipes.prepare_{self.name})."
            )
        if "dataset_parts" in parameters and self.split:
            arguments.setdefault("dataset_parts", [self.split])
        return arguments

    def _call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        # Recipes draw tqdm bars on stderr whether it is a terminal or not.
        quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
        try:
            with quiet:
                return function(**arguments)
        except Exception as error:  # each recipe has its own ways to fail: assertions, missing files, bad lines
            call = ", ".join(f"{k}={str(v)!r}" for k, v in arguments.items())
            detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise DataError(f"lhotse's {function.__name__}({call}) failed: {detail}") from error

    def pick(self, parts: list[str]) -> str:
        """The name of the part that `split` means. Raises `DataError` with the names there are."""
        if self.split is None:
            if len(parts) == 1:
                return parts[0]
            raise DataError(f"The corpus {self.name} has several parts: set `split` to one of {', '.join(parts)}.")
        matches = [p for p in parts if p == self.split] or [p for p in parts if p.split("/")[-1] == self.split]
        if len(matches) == 1:
            return matches[0]
        problem = f"fits {', '.join(matches)}" if matches else "is not there"
        message = f"The part '{self.split}' of the corpus {self.name} {problem}; it has: {', '.join(parts)}."
        raise DataError(message) if matches or self.from_ is None else MissingData(message, self.from_, self.split)


def recipe(verb: str, name: str) -> Callable[..., Any]:
    """lhotse's `prepare_<name>` or `download_<name>`. Raises `ConfigError` with the nearest names."""
    import lhotse.recipes

    if (function := vars(lhotse.recipes).get(f"{verb}_{name}")) is not None:
        return function
    known = names()
    if verb == "download" and name in known:
        raise ConfigError(f"lhotse cannot download {name}: get it from its publishers and give its folder as `from`.")
    if title := NO_RECIPE.get("".join(c for c in name.lower() if c.isalnum())):
        raise ConfigError(
            f"lhotse has no recipe for {title}; load its RTTM files directly: "
            "{type: rttm, path: RTTM, audio: FOLDER}."
        )
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(known)}."
    raise ConfigError(f"There is no lhotse recipe for the corpus '{name}'; {hint}")


def can_download(name: str) -> bool:
    """Whether lhotse downloads a corpus."""
    import lhotse.recipes

    return f"download_{name}" in vars(lhotse.recipes)


def names() -> list[str]:
    """Names of all corpora with a lhotse recipe."""
    import lhotse.recipes

    return sorted(n.removeprefix("prepare_") for n in dir(lhotse.recipes) if n.startswith("prepare_"))


def flatten(result: Any, name: str = "") -> dict[str, dict[str, Any]]:
    """The parts of what a recipe returned, by name: `{"en/train": {"recordings": ..., "supervisions": ...}}`."""
    if not isinstance(result, dict):
        raise DataError(f"The lhotse recipe returned a {type(result).__name__} instead of manifests.")
    if any(key in result for key in ("recordings", "cuts")):
        return {name or "all": result}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in result.items():
        parts |= flatten(value, f"{name}/{key}" if name else str(key))
    return parts


def _as_cuts(part: dict[str, Any]) -> Iterator[Cut]:
    from lhotse import CutSet

    if "cuts" in part:
        yield from part["cuts"]
        return
    scored: dict[str, list[list[float]]] = {}
    for line in part.get("uem") or ():  # DIHARD III
        scored.setdefault(line.recording_id, []).append([line.start, line.end])
    for cut in CutSet.from_manifests(recordings=part["recordings"], supervisions=part.get("supervisions")):
        if spans := scored.get(cut.recording_id):
            cut.custom = {**(cut.custom or {}), "uem": spans}
        yield cut


def _named_after_recordings(cuts: Iterator[Cut | UnusableRecord]) -> Iterator[Cut | UnusableRecord]:
    """Cuts of whole recordings under the recordings' ids, which RTTM and UEM files know, where those are apart."""
    from lhotse.cut.data import DataCut

    seen: set[str] = set()
    for cut in cuts:
        if isinstance(cut, DataCut) and cut.recording is not None and cut.recording.id not in seen:
            seen.add(cut.recording.id)
            cut.id = cut.recording.id
        yield cut
