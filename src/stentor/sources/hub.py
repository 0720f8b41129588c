"""`hub`: data sets on the Hugging Face Hub, and folders in the Hub's layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from stentor.data.cut import RATE, Cut, UnusableRecord, cut_from_record
from stentor.data.embedded_audio import encoded_duration
from stentor.data.jsonl import FileIndex, not_found
from stentor.data.storage import StoragePath
from stentor.errors import AudioError, ConfigError, DataError
from stentor.sources.base import Source, divisible_shards
from stentor.sources.held_out import draw, group_of, groups_of, held_groups
from stentor.sources.hub_columns import COMPUTED, RESERVED, SEGMENTS, USUAL, Columns, segment_keys
from stentor.sources.hub_open import HubLocation, column_value, first_hours, local_splits, open_dataset, texts
from stentor.sources.hub_presets import PRESETS, Preset

if TYPE_CHECKING:
    from stentor.sources.hub_open import HubRow, OpenDataset


class Hub(Source):
    """A speech data set on the Hugging Face Hub, or a local folder in one of the Hub's layouts (parquet, audio folder,
    WebDataset, or as `save_to_disk` writes it). Needs `stentor[hub]`."""

    type: Literal["hub"] = "hub"
    path_keys = ("name",)
    preset: str | None = None
    """Name of a known data set: `granary`, `common_voice`, `fleurs`, `voxpopuli`, `librispeech`, `mls`, `emilia`,
    `peoples_speech`, `yodas`, or a board of the Open ASR Leaderboard (`open_asr_english`, `open_asr_multilingual`,
    `open_asr_long_form`), whose sets are subsets. Other keys override its name, config, split and columns."""
    subset: str | None = None
    """Part of a preset that has several, such as `clean` or `other` of LibriSpeech. Null: the first."""
    name: str | None = None
    """Id on the Hub, such as `openslr/librispeech_asr`, or a local folder."""
    path: StoragePath | None = None
    """Local folder, or a single parquet or Arrow file, in place of `name`; its only split is that which is read."""
    config: str | None = None
    """Configuration of the data set, such as a language. Null: the preset's, or its only one."""
    split: str | None = None
    """Split of the data set. Null: the preset's, or `train`."""
    revision: str | None = None
    """Commit, tag or branch on the Hub. A commit keeps a long run on the same data."""
    data_files: str | None = None
    """Pattern of the files to read, relative to the data set, such as `fr/*.parquet`. Null: as the data set says."""
    columns: Columns = Columns()
    """Names of the columns, where they are not the usual ones. A dot selects a field inside a column: `json.text`."""
    audio_folder: StoragePath | None = None
    """Folder that relative paths in a column of paths start from, for data sets with only transcripts."""
    stream: bool | None = None
    """Stream from front to back without downloading first, for data sets too large to list. Items are then only
    shuffled within a window, and a resumed run reads up to its place again. Null: the preset's value, else false."""
    first_hours: float | None = Field(None, gt=0)
    """Hours of usable recordings to read from the beginning: nothing more is downloaded. They are kept in the cache and
    are listed from there, so that they can be shuffled and seen again. Null: all."""
    cache: Path | None = None
    """Folder for downloads. Null: the Hugging Face cache."""
    part: Literal["train", "validation"] | None = None
    """For a data set without a validation split: `validation` is a share of the split with its own speakers, `train`
    is all the rest. Give both sources the same `held_out`, `seed` and `stream`. Null: the whole split."""
    held_out: float = Field(0.05, gt=0, lt=1)
    """Share of the records that `part: validation` takes, by whole speakers where there are several; of a stream, the
    share of the speakers."""
    seed: int = 0
    """Random seed for drawing the speakers of `part: validation`."""
    quality: dict[str, tuple[float | None, float | None]] = {}
    """Quality filter by column: keep only records whose number in this column is within [least, most]; null is no
    bound. Also `characters_per_second`, and `repeats`: the most times that a word is repeated in a row. Where no bounds
    are given here, those of the preset hold."""

    @property
    def streaming(self) -> bool:  # type: ignore[override]
        stream = self.stream if self.stream is not None else self.preset is not None and self._preset().stream
        return stream and self.first_hours is None

    _open: OpenDataset | None = None
    _build: CutBuilder | None = None
    _local: Preset | None = None
    _shard: tuple[int, int] = (0, 1)

    def num_shards(self, most: int) -> int:
        if not self.streaming or self.limit is not None or self.skip:  # they count from the front of the whole stream
            return 1
        return divisible_shards(self._data().parts, most)

    def lane(self, number: int, num_lanes: int, order: tuple[int, int], cursor: Any = None) -> Hub:
        copy = self.model_copy()
        copy._shard = (number, num_lanes)
        return copy

    def _data(self) -> OpenDataset:
        """The data set, opened once. Raises as `open_dataset`, and `ConfigError` for transcripts without audio."""
        preset = self._preset()
        location = self._location(preset)
        if not preset.audio and self.audio_folder is None:
            raise ConfigError(
                f"{location.name} ({location.config}) holds only transcripts: get the recordings from their publishers "
                "(see the data set's page) and give their folder as `audio_folder`, or choose a subset with audio."
            )
        if self._open is None:
            audio, hours = self._columns(preset).get("audio"), self.first_hours
            self._open = (
                open_dataset(location, self.streaming, audio)
                if hours is None
                else first_hours(location, audio, hours, lambda stream: self._builder(stream).seconds)
            )
        return self._open

    def _builder(self, data: OpenDataset) -> CutBuilder:
        preset = self._preset()
        name = self.name or preset.name
        columns = {**self._column_names(data.columns, preset, name), "audio": data.audio}
        self._build = CutBuilder(self, preset, columns, name)
        return self._build

    def records(self) -> Iterator[Cut | UnusableRecord]:
        data = self._data()
        build = self._builder(data)
        records, name = (build(row) for row in data.rows(*self._shard)), build.name
        if self.part is None:
            yield from records
        elif self.streaming:
            yield from self._part_of_stream(records, name)
        else:
            yield from self._part_of_list(list(records), name)

    def texts(self) -> Iterator[str]:
        """The transcripts alone, streamed: no audio is read where columns lie apart (parquet). Raises as `cuts`."""
        preset = self._preset()
        column = self._columns(preset).get("text")
        return texts(self._location(preset), (column,) if column else USUAL["text"])

    def _part_of_list(self, records: list[Cut | UnusableRecord], name: str) -> Iterator[Cut | UnusableRecord]:
        """The records of `part`, by the rule of `held_groups`."""
        groups = groups_of(records)
        sizes = Counter(g for g, r in zip(groups, records) if not isinstance(r, UnusableRecord))
        try:
            held = held_groups(sizes, self.held_out * sum(sizes.values()), self.seed)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        for group, record in zip(groups, records):
            out = draw(self.seed, group) < self.held_out if isinstance(record, UnusableRecord) else group in held
            if out == (self.part == "validation"):
                yield record

    def _part_of_stream(self, records: Iterator[Cut | UnusableRecord], name: str) -> Iterator[Cut | UnusableRecord]:
        """The records of `part`, each speaker held out or not by the own draw alone: nothing else is known."""
        empty, nearest = True, 1.0
        for record in records:
            bad = isinstance(record, UnusableRecord)
            drawn = draw(self.seed, group_of(record))
            nearest = nearest if bad else min(nearest, drawn)
            if (drawn < self.held_out) == (self.part == "validation"):
                empty = empty and bad
                yield record
        if empty and nearest < 1:
            if self.part == "train":
                raise DataError(
                    f"{name}: `held_out: {self.held_out:g}` leaves no speaker to train on; make it smaller."
                )
            raise DataError(
                f"{name}: no speaker is in the validation part; `held_out` above {nearest:.3f} takes one "
                f"(it is {self.held_out:g}), or try another `seed`. Change both parts in the same way."
            )

    def _preset(self) -> Preset:
        """The preset's entry for the subset; an empty one where there is no preset. Raises `ConfigError` with the names
        there are."""
        if self.preset is None:
            if self.name is None and self.path is not None:
                return self._local or self._preset_of_path(self.path.expanduser().absolute())
            if self.name is None:
                raise ConfigError("A hub source needs `name` (an id on the Hub or a folder), `path` or `preset`.")
            return Preset(self.name, {}, config=None)
        if self.preset not in PRESETS:
            raise ConfigError(f"There is no preset '{self.preset}' of Hub data sets; known are: {', '.join(PRESETS)}.")
        subsets = PRESETS[self.preset]
        if self.subset is None:  # the first in this language
            speaking = (preset for preset in subsets.values() if self.language and preset.spelling(self.language))
            return next(speaking, next(iter(subsets.values())))
        if self.subset not in subsets:
            there = ", ".join(filter(None, subsets)) or "none, so leave `subset` out"
            raise ConfigError(f"The preset {self.preset} has no subset '{self.subset}'; it has: {there}.")
        return subsets[self.subset]

    def _preset_of_path(self, path: Path) -> Preset:
        """The entry for a local data set. Raises `DataError` where it has several splits and none is named."""
        if not path.exists():
            raise not_found(path)
        folder, files = (path, None) if path.is_dir() else (path.parent, path.name)
        splits = [self.split or ""] if self.split or files or self.data_files else local_splits(folder)
        if len(splits) > 1:
            keys = f"type=hub,path={self.path},split={splits[0]}"
            raise DataError(
                f"{path} has the splits {', '.join(splits)}: set `split` to one (on the command line: {keys})."
            )
        self._local = Preset(str(folder), {}, config=None, split=splits[0] or "train", data_files=files)
        return self._local

    def notes(self) -> tuple[str, ...]:
        if self.first_hours is not None and (build := self._build):
            taken = f"{build.usable:,} recordings, {build.total / 3600:.2f} hours"
            return (f"{build.name}, split {build.split}: {taken}, were read from the beginning (`first_hours`).",)
        if self._local is None or self._open is None or self.path is None:
            return ()
        layout = f"Hugging Face data set, split {self._local.split}, audio in the column '{self._open.audio}'"
        return (f"{self.path.name} was read as: {layout}.",)

    def _location(self, preset: Preset) -> HubLocation:
        split, language = self.split or preset.split, self._spelled(preset)

        def fill(pattern: str | None) -> str | None:
            return pattern and pattern.format(language=language, split=split)

        return HubLocation(
            self.name or preset.name,
            split,
            self.config or fill(preset.config),
            self.revision or preset.revision,
            self.data_files or fill(preset.data_files),
            self.cache,
        )

    def _spelled(self, preset: Preset) -> str | None:
        """The language as the data set spells it. Raises `ConfigError` with the languages there are."""
        patterns = (self.config or preset.config or "") + (self.data_files or preset.data_files or "")
        if "{language}" not in patterns:
            return None
        known = preset.languages
        if self.language is None or preset.spelling(self.language) is None:
            problem = "needs a language" if self.language is None else f"has no language '{self.language}'"
            offer = f"one of {', '.join(known)}" if known else "a code such as `sv`"
            raise ConfigError(f"The preset {self.preset} {problem}: set `language` to {offer}.")
        return preset.spelling(self.language)

    def _columns(self, preset: Preset) -> dict[str, str]:
        """The named columns: the preset's and then the source's own."""
        return {**preset.columns, **self.columns.model_dump(exclude_none=True)}

    def _column_names(self, available: list[str], preset: Preset, name: str) -> dict[str, str]:
        """The column of each key. Raises `DataError` with the columns there are."""
        columns_there = ", ".join(available)
        bounded = {k for k, bounds in self.quality.items() if bounds != (None, None)}
        for section, named, known in (
            ("columns", set(self.columns.model_dump(exclude_none=True).values()), available),
            ("quality", bounded, [*available, *COMPUTED]),
        ):
            if unknown := ", ".join(map(repr, sorted(named - set(known)))):
                raise DataError(f"{name} has no column {unknown} (named in `{section}`); it has: {', '.join(known)}.")
        if wrong := sorted(set(preset.quality) - {*available, *COMPUTED, *self.quality}):
            raise DataError(
                f"{name} has no column {', '.join(map(repr, wrong))} any more, whose bounds the preset {self.preset} "
                f"sets; it has: {columns_there}. Set bounds for another column under `quality`, and "
                f"`{wrong[0]}: [null, null]` to do without."
            )
        columns = {k: c for k, c in self._columns(preset).items() if c in available}
        for key, names in USUAL.items():
            if key not in columns and (usual := next((n for n in names if n in available), None)):
                columns[key] = usual
        if not columns.keys() >= {*SEGMENTS}:
            columns = {k: c for k, c in columns.items() if k not in SEGMENTS}
        if "text" not in columns and "starts" not in columns:
            moved = f" The preset {self.preset} looks for '{preset.columns['text']}'." if self.preset else ""
            why = f"which column is the transcript? It has: {columns_there}.{moved} Set `columns: {{text: ...}}`."
            raise DataError(f"{name}: {why}")
        return columns


class CutBuilder:
    """Builds cuts from rows."""

    def __init__(self, source: Hub, preset: Preset, columns: dict[str, str], name: str):
        self.columns, self.name, self.streaming = columns, name, source.streaming
        self.split = source.split or preset.split
        self.quality = {**preset.quality, **source.quality}
        self.languages: dict[str | None, str] = {v: k for k, v in (preset.languages or {}).items()}
        spelled = source.language or (next(iter(self.languages)) if len(self.languages) == 1 else None)
        self.language = (self.languages.get(spelled) or spelled) if self.languages else None
        folder = Path(name).expanduser()
        self.folder = source.audio_folder.expanduser() if source.audio_folder else folder if folder.is_dir() else Path()
        self.files = FileIndex()
        self.names: set[str] = set()
        self.checked = False
        self.usable, self.total = 0, 0.0

    def seconds(self, row: HubRow) -> float:
        """The length of a row's recording; 0 for one that is unusable."""
        before = self.total
        self(row)
        return self.total - before

    def __call__(self, row: HubRow) -> Cut | UnusableRecord:
        record = self._record(row)
        if not isinstance(record, UnusableRecord):
            self.usable, self.total = self.usable + 1, self.total + record.duration
        return record

    def _record(self, row: HubRow) -> Cut | UnusableRecord:
        where = f"{self.name} [{self.split}], {row.where}"
        values = {k: column_value(row.fields, c) for k, c in self.columns.items() if k != "audio"}
        plain = {k: v for k, v in values.items() if k not in ("duration", *SEGMENTS)}
        record: dict[str, Any] = {k: None if v is None else str(v) for k, v in plain.items()}
        if not isinstance(values.get("text"), str | None):
            problem = f"the column '{self.columns['text']}' must hold text, got {values['text']!r}"
            fix = "Name the column of the transcripts in `columns: {text: ...}`."
            raise DataError(f"{where}: {problem}. {fix}")
        record["language"] = self._code(record.get("language"))
        record["id"] = self._unique(record.get("id") or f"{self.split}-{row.key}")
        name = record["id"]
        path = None
        if row.data is None:
            if not row.path:
                return UnusableRecord(name, "empty", f"{where}: the row has no audio.")
            path = str(self.folder / row.path)
            if not self.files.exist(path):
                return UnusableRecord(name, "missing", f"{where}: the audio file {path} does not exist.")
        try:
            length = self._seconds(values.get("duration"), row, path, where)
        except AudioError as error:
            message = str(error)
            message = message if message.startswith(where) else f"{where}: {message}"
            return UnusableRecord(name, error.reason, message)
        if not length > 0:
            return UnusableRecord(name, "empty", f"{where}: the recording's duration is {length:g}.")
        if "starts" in values:
            labels = segment_keys(name, values, self.columns, length, where)
            if isinstance(labels, UnusableRecord):
                return labels
            record |= labels
        if reason := self._quality_problem(row.fields, record.get("text") or "", length):
            return UnusableRecord(name, "quality", f"{where}: {reason}")
        left_out = {*(column.partition(".")[0] for column in self.columns.values()), *RESERVED}
        extra = {k: v for k, v in row.fields.items() if k not in left_out and isinstance(v, str | int | float | bool)}
        cut = cut_from_record({**extra, **record, "duration": length, "audio_path": path or name}, Path(), where)
        if path is None and not isinstance(cut, UnusableRecord):
            from lhotse import AudioSource

            cut.recording.id, cut.recording.sources = where, []
            cut.custom = {**(cut.custom or {}), "hub": row.place or {}}
            if row.place is None:
                cut.recording.sources = [AudioSource("memory", [0], bytes(row.data))]
            cut.recording.num_samples = round(length * RATE)
        return cut

    def _code(self, language: str | None) -> str | None:
        """The code of a row's language. A preset's row that names it in words ("French") has the source's."""
        code = self.languages.get(language, language)
        return code if not self.languages or code in self.languages.values() else self.language

    def _unique(self, name: str) -> str:
        """The id, numbered when an earlier row of a listed data set had it."""
        if self.streaming:
            return name  # a set of all ids would grow with the stream
        unique, number = name, 2
        while unique in self.names:
            unique, number = f"{name}#{number}", number + 1
        self.names.add(unique)
        return unique

    def _seconds(self, stated: Any, row: HubRow, path: str | None, where: str) -> float:
        """The recording's length: as the data set says (checked for the first row), or from its header."""
        from stentor.audio.io import probe

        column = self.columns.get("duration")
        if isinstance(stated, int | float) and column and self.checked:
            return stated / 1000 if column.endswith("_ms") else float(stated)
        length = encoded_duration(row.data, where) if path is None else probe(path).duration
        if isinstance(stated, int | float) and column:
            stated = stated / 1000 if column.endswith("_ms") else stated
            if abs(stated - length) > max(0.2, 0.05 * length):
                raise DataError(
                    f"{where}: the column '{column}' says {stated:g} where the recording has {length:.2f} s: it does "
                    "not hold seconds. Name another column in `columns: {duration: ...}`."
                )
            self.checked = True
        return length

    def _quality_problem(self, fields: dict[str, Any], text: str, length: float) -> str | None:
        """Say what is outside the bounds of `quality`."""
        for key, (least, most) in self.quality.items():
            if key == "characters_per_second":
                value: Any = len(text) / length
            elif key == "repeats":
                value = max((len(list(run)) for _, run in groupby(text.lower().split())), default=0)
            else:
                value = column_value(fields, key)
            if not isinstance(value, int | float):
                continue
            if (least is not None and value < least) or (most is not None and value > most):
                return f"`{key}` is {value:g}, outside of {least} to {most}."
        return None
