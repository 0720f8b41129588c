"""Source: the base of all kinds of data; it lists lhotse cuts from metadata alone, and the loader reads the audio."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, SerializeAsAny

from stentor.data.cut import Cut, UnusableRecord, field_of, set_channel, set_language
from stentor.section import Choice
from stentor.section.contract import violation
from stentor.text.languages import LanguageName, known_code

if TYPE_CHECKING:
    from stentor.data.record_index import RecordIndex


YIELDS = "yield lhotse cuts (`stentor.data.cut.cut_from_record` makes one from a record)"
"""Requirement on `records`, for messages."""


class Source(Choice):
    """One entry of `data.train` or one set of `data.eval`."""

    repeat: float = Field(1.0, gt=0)
    """Number of times that each record is seen in an epoch. 0.5: another random half in each epoch."""
    weight: float | None = Field(None, gt=0)
    """Share of this source in an epoch, relative to the other weights; set it on all or none. Null: by size."""
    language: LanguageName | None = None
    """Language of all records, such as `en`: it replaces the one that a record names. `where` and `exclude` compare
    with the record's own. Null: as the records say."""
    channel: int | None = Field(None, ge=0)
    """Channel (from 0) of records without a key `channel`, such as one side of a call. Null: the mean of all."""
    where: dict[str, Any] = {}
    """Keep only records whose field has this value, or one of these values: `{speaker: [anna, ben]}`. A whole number
    matches the text that writes it, too."""
    exclude: dict[str, Any] = {}
    """Leave out records whose field has this value, or one of these values."""
    skip: int = Field(0, ge=0)
    """Number of records to leave out at the start, such as those that another source takes with `limit`."""
    limit: int | None = Field(None, ge=1)
    """Most records to keep, from the start (after those of `skip`). Null: all."""
    max_hours: float | None = Field(None, gt=0)
    """Hours of a random subset to use, always the same one. Null: all. Only for an entry of `train`, `replay`, `eval`,
    `test` or `unlabelled` itself, or for data that segments and labels are made from. Of streams only `shards` supports
    it, if its list has their seconds: whole shards, in random order, as long as they fit."""

    required: ClassVar[tuple[str, ...]] = ("records",)
    streaming: ClassVar[bool] = False
    """True when the number of records is unknown until they were all read."""

    _replaced: Counter[str] = PrivateAttr(default_factory=Counter)
    """Records by their own language, where `language` is another one; of all that were read since `cuts` began."""
    _unmatched: dict[tuple[str, str], list[Any]] | None = None
    """By (`where` or `exclude`, field), values that no record has had so far. None: records were not all read."""

    def records(self) -> Iterator["Cut"]:
        """All cuts of the source, lazily, in a fixed order. Subclasses implement this.

        Every cut has an id that is unique within the source, a duration in seconds, and one supervision with `text`,
        `speaker`, `language` (where known), `alignment={"word": [...]}` for word times, and the record's other keys in
        `custom`. Diarization cuts have one supervision per segment. Raises `DataError` for a source that cannot be
        read at all; single unusable records are yielded as `UnusableRecord` (see stentor.data.cut) and counted.
        """
        raise NotImplementedError

    @classmethod
    def implied_type(cls, keys: dict[str, Any]) -> str | None:
        """The type of source for its `path`."""
        from stentor.data.layouts.by_path import type_of
        from stentor.data.storage import as_path

        path = keys.get("path")
        return type_of(as_path(path).expanduser()) if isinstance(path, str) and path else None

    def tight(self) -> "Source":
        """The source as it is inside one that puts pauses between clips itself."""
        return self

    def num_shards(self, most: int) -> int:
        """For a stream: number of separate shards, a divisor of `most`, into which it can be cut."""
        return 1

    def lane(self, number: int, num_lanes: int, order: tuple[int, int], cursor: Any = None) -> "Source":
        """For a stream: one of several shards, which together give every record once. It comes in an order that is a
        function of (seed, epoch), from a `cursor` of the same shard and order on. The default is a stream that cannot
        be cut and has one order."""
        return self

    def cursor(self) -> Any:
        """For a `lane` whose `cuts` are read: position of its next record, as plain data for JSON. None: it can only be
        reached by reading from the front."""
        return None

    def index(self) -> "RecordIndex | None":
        """The index of what `cuts` gives (see `stentor prepare index`), where there is one."""
        return None

    @property
    def filtered(self) -> bool:
        """Whether `cuts` leaves out some of the records."""
        return bool(self.where or self.exclude or self.skip or self.limit is not None)

    def expected(self) -> int | None:
        """For a stream: about how many records it has. None: unknown."""
        return None

    def language_seconds(self) -> dict[str | None, float] | None:
        """For a stream: seconds of each language in it. None: unknown."""
        return None

    @property
    def takes_hours(self) -> bool:
        """For a stream: whether it gives the part that `max_hours` asks for by itself."""
        return False

    def contents(self) -> str:
        """For a stream: facts that its order depends on besides its settings, such as the names of its files, so that a
        run does not resume with another order."""
        return ""

    def file_facts(self) -> Iterator[str]:
        """Name, size and time of each local file of `path`, by which a changed stream is recognised."""
        named = self.model_dump().get("path")
        for path in named if isinstance(named, list) else [named]:
            if isinstance(path, (str, Path)) and (place := Path(path).expanduser()).exists():
                for file in sorted(place.iterdir()) if place.is_dir() else [place]:
                    yield f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}"

    def notes(self) -> tuple[str, ...]:
        """Sentences about how its records were read: a layout other than the usual one, guesses, repairs."""
        return ()

    def places(self, ids: Collection[str]) -> dict[str, str]:
        """Where the records of these ids are, "FILE:LINE", as far as the source can tell."""
        return {}

    def set_defaults(self, cut: "Cut") -> None:
        """Give the cut the `language` of the source, and its `channel` where it names none."""
        if self.language:
            self._replaced.update(set_language(cut, self.language))
        if self.channel is not None:
            set_channel(cut, self.channel)

    def cuts(self) -> Iterator["Cut"]:
        """`records()` after `where`, `exclude`, `skip` and `limit`, in the `language` of the source."""
        records: Any = self.records()
        if not isinstance(records, Iterable):
            raise violation(self, "records", YIELDS, records)
        self._unmatched = None
        self._replaced.clear()
        unmatched = {
            (name, key): list(value) if isinstance(value, list) else [value]
            for name, section in (("where", self.where), ("exclude", self.exclude))
            for key, value in section.items()
        }
        wanted = (record for record in records if self.wanted(record, unmatched))
        for record in islice(wanted, self.skip, None if self.limit is None else self.skip + self.limit):
            if not isinstance(record, UnusableRecord):
                self.set_defaults(record)
            yield record
        if self.limit is None:
            self._unmatched = unmatched

    def wanted(self, record: Any, unmatched: dict[tuple[str, str], list[Any]] | None = None) -> bool:
        """Whether `where` and `exclude` leave a record in. Its values are taken out of those that are `unmatched`."""
        from lhotse.cut import Cut

        if isinstance(record, UnusableRecord):
            return True
        if not isinstance(record, Cut):
            raise violation(self, "records", YIELDS, record)
        for (_, key), values in (unmatched or {}).items():
            for value in _spellings(self._field(record, key)) if values else ():
                if value in values:
                    values.remove(value)
        return all(_matches(self._field(record, key), value) for key, value in self.where.items()) and not any(
            _matches(self._field(record, key), value) for key, value in self.exclude.items()
        )

    def _field(self, record: "Cut", key: str) -> Any:
        own = {"language": self.language and known_code(self.language), "channel": self.channel}
        value = field_of(record, key)
        return own.get(key) if value is None else value


def sources_in(section: Any, place: str) -> Iterator[tuple[str, Source]]:
    """All sources within a section, a list or a mapping of them at `place`, each with its place."""
    if isinstance(section, Source):
        yield place, section
    parts = dict(enumerate(section)) if isinstance(section, list) else section
    for key, part in dict(parts).items() if isinstance(parts, dict | BaseModel) else ():
        yield from sources_in(part, f"{place}.{key}")


def source_notes(section: Any, place: str) -> list[str]:
    """Sentences about all sources within `section` that were read: how, where it is not the usual way; each value of
    `where` and `exclude` that no record has; each `language` that replaces those of records."""
    lines = []
    for where, source in sources_in(section, place):
        lines += [f"{where}: {note}" for note in source.notes()]
        for (name, key), values in (source._unmatched or {}).items():
            lines += [f"{where}.{name}: no record has the {key} {value}; is it spelled right?" for value in values]
        if total := source._replaced.total():
            own = ", ".join(f"{code} {count:,}" for code, count in source._replaced.most_common(10))
            records = f"{total:,} record{'s' * (total != 1)}"
            lines.append(f"{where}.language: {source.language} replaces the language of {records} ({own}).")
    return lines


TightSource = Annotated[SerializeAsAny[Source], AfterValidator(lambda source: source.tight())]
"""The source inside one that puts pauses between clips itself."""


def _matches(value: Any, allowed: Any) -> bool:
    allowed = allowed if isinstance(allowed, list) else [allowed]
    return any(spelling in allowed for spelling in _spellings(value))


def _spellings(value: Any) -> tuple[Any, ...]:
    """A value and, of a text that is a whole number, the number as which YAML and the command line read it."""
    if not isinstance(value, str) or not value.isdecimal() or len(value) > DIGITS:
        return (value,)
    number = int(value)
    return (value, number) if str(number) == value else (value,)  # 012 is no 12


DIGITS = 30
"""Most of a number in `where`; Python refuses to read thousands."""
UNEVEN = 10
"""Parts that each shard must have when some have one more than others: a shard with less data comes to its next epoch
earlier, so a tenth is what its records may be ahead."""


def divisible_shards(parts: int, most: int) -> int:
    """Number of shards for a source of so many parts (files, row groups): a divisor of `most`, with equal numbers of
    parts in all of them, or nearly so."""
    fits = (n for n in range(most, 0, -1) if most % n == 0 and (parts % n == 0 or parts >= UNEVEN * n))
    return next(fits, 1)
