"""Data sets of the Hub, opened with the package `datasets`; its errors say what to do.

`datasets` lists, downloads and caches; it never decodes audio for us (its decoder is torchcodec).
"""

import hashlib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stentor.data.embedded_audio import arrow_table, path_and_data
from stentor.data.jsonl import not_found
from stentor.errors import ConfigError, DataError, require, without_secrets
from stentor.sources.hub_presets import EXPORT, PRESETS
from stentor.text.field_names import fields_of

log = logging.getLogger("stentor")
PARTS = 64
"""A stream of fewer files is read by groups of rows, where its format has such; of more, that would open too many."""
LIBRARIES = ("datasets", "huggingface_hub", "fsspec", "aiohttp", "httpx", "httpx2", "pyarrow")
"""Packages whose own exceptions mean that the data set cannot be loaded."""
AWAY = {"OfflineModeIsEnabled", "ConnectionError", "ConnectTimeout", "ConnectError", "TransportError"}
AWAY |= {"LocalEntryNotFoundError"}
"""Exceptions that mean that the Hub was not reached."""
FORMATS = "arrow audiofolder cache csv eval generator hdf5 imagefolder json lance pandas parquet text webdataset xml"
"""Names that `datasets` takes for the format of files around."""


@dataclass
class HubRow:
    """One row of a data set, its audio apart."""

    where: str
    """Its place in the data set, for people."""
    key: str
    """Its place in the data set, for the id of a record that has none."""
    fields: dict[str, Any]
    path: str | None = None
    """The audio file, for rows that only name it."""
    data: Any = None
    """Encoded audio, as a buffer."""
    place: dict[str, Any] | None = None
    """Where `data` can be read again (see stentor.data.embedded_audio)."""


@dataclass(frozen=True)
class HubLocation:
    """The rows of a data set: its id on the Hub or its folder, and a part of it."""

    name: str
    split: str
    config: str | None = None
    revision: str | None = None
    data_files: str | None = None
    cache: Path | None = None

    def address(self) -> str:
        """Return what `datasets` is to load: the id, or the absolute path of a folder, because it takes the name of a
        folder such as `csv` for the format of the files around it. Raises DataError for a missing folder."""
        folder = Path(self.name).expanduser()
        if folder.is_dir():
            return str(folder.absolute())
        if self.name.startswith((".", "/", "~")) or self.name.count("/") > 1:
            raise not_found(folder)
        if self.name in FORMATS.split() and not self.data_files:
            raise ConfigError(f"There is no folder `{self.name}` here, and `{self.name}` is a format, not a data set.")
        return self.name

    def load_options(self) -> dict[str, Any]:
        """Arguments of `datasets.load_dataset`."""
        return {
            "split": self.split,
            "revision": self.revision,
            "data_files": {self.split: self.data_files} if self.data_files else None,
            "cache_dir": str(self.cache) if self.cache else None,
        }


@dataclass
class OpenDataset:
    """A data set of which `rows()` can be read, and read again."""

    data: Any
    columns: list[str]
    """Names of all columns; those inside of a column of records with a dot."""
    audio: str
    name: str
    stream: bool

    @classmethod
    def of(cls, data: Any, name: str, stream: bool, audio: str | None) -> "OpenDataset":
        """A data set as `datasets` gives it. `audio` names the column, where that is known."""
        features = dict(data.features or {})
        columns = list(_spread(features))
        if audio is None or audio not in features:
            audio = _audio_column(name, features, columns, audio)
        return cls(_undecoded(data, import_datasets()) if stream else data, columns, audio, name, stream)

    @property
    def parts(self) -> int:
        """Files or groups of rows that a stream can be read in, each without the others."""
        return self.data.num_shards

    def rows(self, shard: int = 0, num_shards: int = 1) -> Iterator[HubRow]:
        """All rows in order; of a stream those of one of several shards, whose parts are every `num_shards`-th."""
        with explained(self.name):
            yield from self._streamed(shard, num_shards) if self.stream else self._listed()

    def _streamed(self, shard: int, num_shards: int) -> Iterator[HubRow]:
        # Part by part, so that a row is called the same in whatever shard it is read.
        for part in range(shard, self.parts, num_shards):
            for number, fields in enumerate(self.data.shard(self.parts, part)):
                fields = dict(fields)
                where = f"part {part + 1} of {self.parts}, row {number}"
                path, data = _cell(fields.pop(self.audio, None), f"{self.name}, {where}, column '{self.audio}'")
                if data is None and path and "://" in path:
                    from datasets.utils.file_utils import xopen

                    with xopen(path, "rb") as remote:
                        data = remote.read()
                yield HubRow(where, f"{part:05d}-{number:06d}", fields, path, data)

    def _listed(self) -> Iterator[HubRow]:
        """Straight from the Arrow files that `datasets` keeps, without touching more of the audio than its header."""
        labels = {k: f for k, f in (self.data.features or {}).items() if type(f).__name__ == "ClassLabel"}
        number = 0
        for file in (entry["filename"] for entry in self.data.cache_files):
            table = arrow_table(file)
            plain = [c for c in table.column_names if c != self.audio and not _is_media(table.schema.field(c).type)]
            at = 0
            for batch in table.to_batches(max_chunksize=1000):
                audio = batch.column(self.audio)
                for i, fields in enumerate(batch.select(plain).to_pylist()):
                    for key, label in labels.items():
                        if isinstance(fields.get(key), int):
                            fields[key] = label.int2str(fields[key]) if fields[key] >= 0 else None
                    path, data = path_and_data(audio[i], f"{self.name}, row {number}, column '{self.audio}'")
                    place = {"arrow": file, "column": self.audio, "row": at + i} if data is not None else None
                    yield HubRow(f"row {number}", f"{number:07d}", fields, path, data, place)
                    number += 1
                at += len(batch)


def open_dataset(location: HubLocation, stream: bool, audio: str | None) -> OpenDataset:
    """The data set, downloaded (or found in the cache) unless it is streamed. `audio` names its column of audio. Raises
    `ConfigError` without the package `datasets` and `DataError`, saying what to do, for a data set, config, split or
    audio column that is not there or not to be had."""
    split = location.split
    if "[" in split:
        raise ConfigError(f"`split: {split}`: slices are not supported; use `limit`, or `part` and `held_out`.")
    datasets = import_datasets()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    label, address = location.name, location.address()
    folder = Path(address)
    local = address != label or folder.is_absolute()
    with explained(label, location.config, location.revision):
        if local and ((folder / "state.json").exists() or (folder / "dataset_dict.json").exists()):
            data = datasets.load_from_disk(str(folder))
            if isinstance(data, dict):
                if split not in data:
                    raise _no_split(label, split, list(data))
                data = data[split]
            data = data.to_iterable_dataset(num_shards=min(PARTS, max(len(data), 1))) if stream else data
        else:
            data = datasets.load_dataset(address, location.config, streaming=stream, **location.load_options())
        if stream and data.features is None:
            data = data._resolve_features()
        if stream and data.num_shards < PARTS:
            data = data.reshard()  # Parquet files into their groups of rows
    return OpenDataset.of(data, label, stream, audio)


def local_splits(folder: Path) -> list[str]:
    """The splits of a data set in a folder."""
    if (folder / "dataset_dict.json").exists():
        return [str(split) for split in json.loads((folder / "dataset_dict.json").read_text("utf-8"))["splits"]]
    if (folder / "state.json").exists():
        return ["train"]
    with explained(str(folder)):
        return [str(split) for split in import_datasets().get_dataset_split_names(str(folder))]


def _audio_column(label: str, features: dict[str, Any], columns: list[str], audio: str | None) -> str:
    """The column of audio by its kind or by its usual name. Raises `DataError` with the columns there are."""
    kinds = [column for column, feature in features.items() if type(feature).__name__ == "Audio"]
    usual = [*fields_of(features, ["audio_path"]).values()]
    if audio is not None and not kinds:
        raise DataError(f"{label} has no column '{audio}' (the audio); it has: {', '.join(columns)}.")
    if not kinds and not usual:
        known = ", ".join(columns)
        raise DataError(f"{label}: which column is the audio? It has: {known}. Set `columns: {{audio: ...}}`.")
    return (kinds or usual)[0]


def texts(location: HubLocation, columns: tuple[str, ...]) -> Iterator[str]:
    """The texts of the first of these columns that is there, streamed. Where a format keeps columns apart (parquet)
    the audio is not read. Raises as `open_dataset`."""
    datasets, name, config = import_datasets(), location.address(), location.config
    options = {**location.load_options(), "streaming": True}
    with explained(name, config, location.revision):
        data = None
        with suppress(ValueError, KeyError):  # a format that is read row by row takes no columns
            data = datasets.load_dataset(name, config, **options, columns=[columns[0]])
            data = data if data.features else data._resolve_features()
        if data is None or columns[0] not in (data.features or {}):
            data = datasets.load_dataset(name, config, **options)
            data = data if data.features else data._resolve_features()
        available = list(_spread(dict(data.features or {})))
        column = next((c for c in columns if c in available), None)
        if column is None:
            raise DataError(f"{name} has no column {' or '.join(columns)}; it has: {', '.join(available)}.")
        for row in _undecoded(data, datasets):
            value = column_value(row, column)
            if isinstance(value, str):
                yield value


def column_value(fields: dict[str, Any], column: str) -> Any:
    """The value of a column; a dot goes into a column of records."""
    if column in fields:
        return fields[column]
    value: Any = fields
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _undecoded(data: Any, datasets: Any) -> Any:
    """The data set with encoded audio in its rows."""
    for column in [c for c, feature in (data.features or {}).items() if type(feature).__name__ == "Audio"]:
        data = data.cast_column(column, datasets.Audio(decode=False))
    return data


def import_datasets() -> Any:
    """The package `datasets`, which stores audio as it is given. Raises `ConfigError` without it."""
    require("hub", "A data set of the Hub")
    import datasets

    _store_as_given()
    logging.getLogger("datasets").setLevel(logging.ERROR)
    return datasets


@cache
def _store_as_given() -> None:
    """Let `datasets` build audio folders and WebDatasets without torchcodec, which it imports before it looks at what
    it was given: paths and encoded bytes are stored as they are (as it does itself), anything else is left to it."""
    from datasets import Audio

    theirs = Audio.encode_example

    def encode_example(self: Any, value: Any) -> dict[str, Any]:
        if isinstance(value, str | Path):
            return {"bytes": None, "path": str(value)}
        if isinstance(value, bytes | bytearray):
            return {"bytes": bytes(value), "path": None}
        if isinstance(value, dict) and set(value) <= {"bytes", "path"}:
            return {"bytes": value.get("bytes"), "path": value.get("path")}
        return theirs(self, value)

    Audio.encode_example = encode_example


@contextmanager
def explained(name: str, config: str | None = None, revision: str | None = None) -> Iterator[None]:
    """Turn errors of `datasets` into a `DataError` with one sentence that says what to do, without any token."""
    try:
        yield
    except Exception as error:
        expected = isinstance(error, (ImportError, OSError, RuntimeError, ValueError, LookupError))
        if not expected and type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        raise DataError(without_secrets(_explanation(error, name, config, revision))) from None


def _explanation(error: Exception, name: str, config: str | None, revision: str | None) -> str:
    while type(error).__name__ == "DatasetGenerationError" and isinstance(error.__cause__, Exception):
        error = error.__cause__  # it says nothing itself
    message = " ".join(str(error).split())
    kind = type(error).__name__
    page = f"https://huggingface.co/datasets/{name}"
    low = message.lower()
    refused = kind == "HfHubHTTPError" and re.search(r"\b(401|403)\b", message)
    if re.search(r"gated (?:data ?set|repo)", low) or kind == "GatedRepoError" or refused:
        return (
            f"The data set {name} is gated: accept its licence on {page}, then log in with `hf auth login` "
            "(or set HF_TOKEN), and run the same command again."
        )
    if "scripts are no longer supported" in low:
        key = next((key for key in PRESETS for preset in PRESETS[key].values() if preset.name == name), None)
        copy = f"the Hub's parquet copy of it: `revision: {EXPORT}` and `data_files: CONFIG/SPLIT/*.parquet`."
        use = f"`preset: {key}` in place of `name`, and a `language`." if key else copy
        return f"The data set {name} is a loading script, which is never run. Use {use}"
    if re.search(r"unknown split|bad split", low):
        split = re.search(r"split:? \"?([^\".\s]+)", message)
        splits = _bracketed(message[low.index("split") :])
        return str(_no_split(name, split.group(1) if split else "", splits))
    if "builderconfig" in low or "config name is missing" in low:
        problem = f"has no config '{config}'" if config else "has several configs"
        return f"The data set {name} {problem}: set `config` to one of {', '.join(_bracketed(message))}."
    raised = {base.__name__ for base in type(error).__mro__}
    if raised & AWAY or any(f"{name}: " in message for name in AWAY):  # some errors only quote them
        return (
            f"The data set {name} could not be reached on the Hub and is not in the cache: check the network "
            "(and that HF_HUB_OFFLINE is not set), or give a local folder as `name`."
        )
    if kind in ("DatasetNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"):
        at = f" at revision '{revision}'" if revision else ""
        return (
            f"There is no data set {name} on the Hub{at}, or it is private: check the spelling on {page}, and log in "
            "with `hf auth login` if it is yours."
        )
    if kind in ("DataFilesNotFoundError", "EmptyDatasetError", "FileNotFoundError"):
        return f"{name} holds no files of a data set where they are looked for ({message})."
    return f"The data set {name} cannot be read: {kind}: {message}"


def _bracketed(message: str) -> list[str]:
    """The names in the first brackets of a message."""
    brackets = re.search(r"\[(.*?)\]", message)
    return re.findall(r"[\w.\-]+", brackets.group(1)) if brackets else []


def _no_split(name: str, split: str, splits: list[str]) -> DataError:
    hint = ""
    if split in ("validation", "dev", "test", "valid"):
        hint = " To hold out a part of `train`, use `part: validation` here and `part: train` in training."
    return DataError(f"The data set {name} has no split '{split}'; it has: {', '.join(splits)}.{hint}")


def _spread(features: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, feature in features.items():
        yield before + name
        if isinstance(feature, dict):
            yield from _spread(feature, f"{before}{name}.")


def _is_media(kind: Any) -> bool:
    import pyarrow

    return pyarrow.types.is_binary(kind) or (
        pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {kind.field(i).name for i in range(kind.num_fields)}
    )


def _cell(cell: Any, where: str) -> tuple[str | None, Any]:
    """Path and encoded bytes of a row's audio."""
    if isinstance(cell, dict) and ("bytes" in cell or "path" in cell):
        return cell.get("path"), cell.get("bytes")
    if isinstance(cell, bytes):
        return None, cell
    if cell is None or isinstance(cell, str):
        return cell, None
    raise DataError(f"{where}: audio must be encoded bytes or a path, got {type(cell).__name__}.")


def first_hours(
    location: HubLocation, audio: str | None, hours: float, lengths: Callable[[OpenDataset], Callable[[HubRow], float]]
) -> OpenDataset:
    """The rows of a data set up to so many hours. `lengths` gives, for the opened stream, the seconds of a row that
    count. Raises as `open_dataset`."""
    datasets = import_datasets()
    from datasets.arrow_writer import ArrowWriter
    from filelock import FileLock

    folder = location.cache or Path(datasets.config.HF_DATASETS_CACHE)
    digest = hashlib.blake2b(f"{location} {audio} {hours}".encode(), digest_size=8).hexdigest()
    file = folder / "first_hours" / f"{re.sub('[^0-9A-Za-z.-]', '_', location.name)[-60:]}-{digest}.arrow"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            stream, seconds, part = open_dataset(location, True, audio), 0.0, file.with_suffix(".part")
            length = lengths(stream)
            features = datasets.Features({**stream.data.features, stream.audio: datasets.Audio(decode=False)})
            log.info("Reading the first %g hours of %s (%s) ...", hours, location.name, location.split)
            with explained(location.name), ArrowWriter(path=str(part), features=features) as writer:
                for row in stream.rows():
                    writer.write({**row.fields, stream.audio: {"bytes": row.data, "path": row.path}})
                    before, seconds = seconds, seconds + length(row)
                    if seconds >= 3600 * hours:
                        break
                    if before // 3600 < seconds // 3600:
                        log.info("%d hours of %s are read ...", seconds // 3600, location.name)
                writer.finalize()
            part.replace(file)
        with explained(location.name):
            data = datasets.Dataset.from_file(str(file))
    return OpenDataset.of(data, location.name, False, audio)
