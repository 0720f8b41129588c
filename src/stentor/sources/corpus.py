"""`corpus`: a public corpus by its name, on disk or downloaded, read by a lhotse recipe or a reader of this project."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from stentor.data.cut import Cut, UnusableRecord, audio_path, recording_of
from stentor.data.jsonl import not_found
from stentor.data.storage import StoragePath
from stentor.data.storage_cache import local_folder
from stentor.errors import ConfigError, DataError, MissingData, require
from stentor.sources.base import Source
from stentor.sources.known_corpora import KNOWN, KnownCorpus, known_name, known_splits
from stentor.sources.layouts import Parts
from stentor.sources.lhotse_recipe import call, can_download, names, prepare, recipe
from stentor.sources.manifest import split_utterances
from stentor.text.languages import known_code

FOLDERS = ("_dir", "_root", "_path")
"""Ends of the names of a recipe's parameters that are folders."""


class Corpus(Source):
    """A public corpus as it lies on disk, by its name, such as `librispeech`, `ljspeech`, `ami` or `msdwild`."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["corpus"] = "corpus"
    name: str
    """Name of the corpus or of its lhotse recipe. Case, hyphens and underscores make no difference."""
    from_: StoragePath | None = Field(None, alias="from")
    """Folder of the unpacked corpus. Null with `download`: a folder `download` inside `to`."""
    to: Path | None = None
    """Folder that keeps the prepared manifests, so that the next run starts at once. Null: prepare each time."""
    split: str | None = None
    """Part of the corpus, such as `train-clean-100` or `en/train`; `val` and `dev` are the same where there is one of
    them. Null where there is only one part."""
    utterances: bool = True
    """One record for each transcribed utterance. False: one record for each whole recording, with segments, for
    diarization; its id is that of the recording."""
    empty: bool = False
    """Include recordings without annotation, as recordings without speech, for diarization."""
    download: bool = False
    """Download missing files. Read the corpus's licence first."""
    options: dict[str, Any] = {}
    """Other options of the lhotse recipe, such as `{languages: [en]}` or `{mic: sdm}`, or of the reader (see
    docs/diarization_data.md)."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        yield from self.shaped(self._cuts())

    def parts(self) -> Parts:
        """The parts of the corpus by name, prepared now; calling one lists its whole recordings. Raises `ConfigError`
        for an unknown corpus or wrong options and `DataError` when the corpus is not as it should be or the recipe
        fails."""
        row = self._row
        reader = row.reader_for(self.options)
        if row.reader and not reader and self._name not in names():
            known = [p for p in inspect.signature(row.reader).parameters if p not in ("folder", "empty")]
            wrong = ", ".join(repr(option) for option in self.options if option not in known)
            raise ConfigError(f"The corpus {self.name} has no option {wrong}; it has: {', '.join(known)}.")
        function = None if reader else recipe("prepare", self._name, tuple(KNOWN))
        folder = self._folder()
        if self.download:
            folder = self._download(folder)
        if not folder.is_dir():
            error = not_found(folder)
            raise MissingData(f"{self._place(folder)}: {error} {self._advice()}", error.path)
        try:
            if reader:
                settings = {"split": self.split, "empty": self.empty}
                taken = inspect.signature(reader).parameters
                return reader(folder, **{k: v for k, v in settings.items() if k in taken} | self.options)
            assert function is not None
            if row.extra:
                require(row.extra, f"The corpus {self.name}")
            parts = prepare(function, self._arguments(function, folder), row.constants(folder))
            if not parts:
                raise DataError("there are no recordings with an annotation")
        except DataError as error:
            if "\n" in str(error):
                raise
            # Some recipes take no output folder and yet need one.
            writes = function is not None and "output_dir" in inspect.signature(function).parameters
            if writes and self.to is None and isinstance(error.__cause__, TypeError):
                raise self._needs_output() from error
            raise DataError(f"{self._place(folder)}: {str(error).rstrip('.')}. {self._advice()}") from error
        return {name: partial(part.cuts, self.empty) for name, part in parts.items()}

    def _place(self, folder: Path) -> str:
        return f"The corpus {self.name} (`from: {folder}`)"

    def _advice(self) -> str:
        """Advice: the files that the folder should hold, and whether they can be downloaded."""
        lies = self._row.lies
        holds = f"The folder should hold {lies}." if lies else "Give the folder of the unpacked corpus as `from`."
        offered = not self.download and can_download(self._name)
        return holds + (" `download: true` fetches what is missing." if offered else "")

    @property
    def _name(self) -> str:
        return known_name(self.name, names())

    @property
    def _row(self) -> KnownCorpus:
        return KNOWN.get(self._name) or KnownCorpus("")

    def shaped(self, cuts: Iterator[Cut | UnusableRecord]) -> Iterator[Cut | UnusableRecord]:
        """Whole recordings as the section says: cut into utterances, with language codes."""
        for cut in split_utterances(cuts) if self.utterances else cuts:
            if not isinstance(cut, UnusableRecord):
                for supervision in cut.supervisions:
                    supervision.language = supervision.language and known_code(supervision.language)
            yield _in_one_file(cut)

    def _cuts(self) -> Iterator[Cut | UnusableRecord]:
        """Cuts of whole recordings: from the cache in `to`, or prepared now."""
        if self.to is None:
            yield from self._prepare()
            return
        from lhotse import CutSet

        folder = self.to.expanduser()
        stem = "-".join([self.name, *(self.split.split("/") if self.split else [])])
        manifest, about = folder / f"{stem}.cuts.jsonl.gz", folder / f"{stem}.json"
        keys = {"name", "split", "options", "empty"} | ({"utterances"} if self._row.options else set())
        settings = self.model_dump(mode="json", include=keys) | {"from": str(self._folder())}
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
        download = recipe("download", self._name, tuple(KNOWN))
        if self.split and self._unpacked_elsewhere(folder, self.split):
            return folder
        parameters = inspect.signature(download).parameters
        arguments = {k: v for k, v in self.options.items() if k in parameters}
        if "dataset_parts" in parameters and self.split:
            arguments.setdefault("dataset_parts", [self.split])
        folder.mkdir(parents=True, exist_ok=True)
        first = "target_dir" if "target_dir" in parameters else next(iter(parameters))
        try:
            got = call(download, {first: folder, **arguments})
        except DataError as error:
            raise MissingData(f"{error}.", folder) from error
        return Path(got) if isinstance(got, str | Path) and Path(got).is_dir() else folder

    def _unpacked_elsewhere(self, folder: Path, split: str) -> bool:
        """Whether a part is there that lhotse did not unpack: it would remove it and fetch it again."""
        part = folder / "LibriSpeech" / split
        by_lhotse = (part / ".completed").exists() or (folder / f"{split}.tar.gz").exists()
        return self.name == "librispeech" and part.is_dir() and not by_lhotse

    def _arguments(self, prepare: Callable[..., Any], folder: Path) -> dict[str, Any]:
        """Arguments of the recipe: `from` as its corpus folder, what the table of known corpora has, `options`, and an
        output folder if there is one to give."""
        parameters = inspect.signature(prepare).parameters
        if unknown := sorted(set(self.options) - set(parameters)):
            known = ", ".join(p for p in parameters if p not in ("corpus_dir", "output_dir"))
            wrong = ", ".join(map(repr, unknown))
            raise ConfigError(f"The recipe for {self.name} has no option {wrong}; it has: {known or 'none'}.")
        options = self._row.options
        arguments = dict(options(folder, not self.utterances)) if options else {}
        arguments |= {k: Path(v) if k.endswith(FOLDERS) and isinstance(v, str) else v for k, v in self.options.items()}
        if "output_dir" in parameters and "output_dir" not in arguments and self.to is not None:
            arguments["output_dir"] = self._output_folder()
        required = [n for n, p in parameters.items() if p.default is p.empty and n not in arguments]
        if "output_dir" in required:
            raise self._needs_output()
        folders = [n for n in [*required, *parameters] if n.endswith(FOLDERS) and n != "output_dir"]
        corpus = "corpus_dir" if "corpus_dir" in parameters else next((n for n in folders if n not in arguments), None)
        if corpus and corpus not in arguments and folder not in arguments.values():
            arguments[corpus] = folder
        if missing := [n for n in required if n not in arguments]:
            raise ConfigError(
                f"The recipe for {self.name} also needs {', '.join(missing)}; give them in `options` "
                f"(see the help of lhotse.recipes.prepare_{self._name})."
            )
        if "dataset_parts" in parameters and self.split and "dataset_parts" not in self.options:
            there = known_splits(self._name, self.split, arguments.get("dataset_parts", []))
            arguments["dataset_parts"] = there or [self.split]
        return arguments

    def _needs_output(self) -> ConfigError:
        return ConfigError(f"The recipe for {self.name} writes manifests: say where with `to`.")

    def _output_folder(self) -> Path:
        """The folder for what the recipe writes, without manifests of another run, which recipes take for their own."""
        assert self.to is not None
        folder = self.to.expanduser() / "lhotse" / "-".join((self.split or "all").split("/"))
        for old in folder.glob("**/*.jsonl*"):
            old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def pick(self, parts: list[str]) -> str:
        """The name of the part that `split` means. Raises `DataError` with the names there are."""
        if self.split is None:
            if len(parts) == 1:
                return parts[0]
            raise DataError(f"The corpus {self.name} has several parts: set `split` to one of {', '.join(parts)}.")
        matches = known_splits(self._name, self.split, parts)
        if len(matches) == 1:
            return matches[0]
        problem = f"fits {', '.join(matches)}" if matches else "is not there"
        message = f"The part '{self.split}' of the corpus {self.name} {problem}; it has: {', '.join(parts)}."
        raise DataError(message) if matches or self.from_ is None else MissingData(message, self.from_, self.split)


def _in_one_file(cut: Cut | UnusableRecord) -> Cut | UnusableRecord:
    """A cut of channels that lie in one file of several, as the cut of that file: a manifest can name it."""
    from lhotse import AudioSource, MonoCut
    from lhotse.cut.data import DataCut

    if not isinstance(cut, DataCut) or cut.recording is None or cut.recording.transforms or audio_path(cut):
        return cut
    channels = {cut.channel} if isinstance(cut.channel, int) else set(cut.channel)
    source = next((s for s in cut.recording.sources if channels <= set(s.channels)), None)
    if source is None or source.type != "file" or (len(channels) > 1 and channels != set(source.channels)):
        return cut
    custom = dict(cut.custom or {})
    if len(channels) < len(source.channels):
        custom["channel"] = source.channels.index(min(channels))
    recording = recording_of(cut.recording.id, cut.recording.duration, [AudioSource("file", [0], source.source)])
    fields = {"supervisions": cut.supervisions, "recording": recording, "custom": custom or None}
    return MonoCut(cut.id, cut.start, cut.duration, channel=0, **fields)
