"""Indexed mix: an epoch of several sources, record by record, without a list: each position of it is computed.

Each language of a source is a group. In every epoch a group takes the next records of a ring, its records in an order
that never changes, as many as its repeats, weight and language ask for; so fractions are exact over the epochs. The
positions of an epoch are a permutation of what the groups take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stentor.data.cut import UnusableRecord, language_of
from stentor.data.record_index import Part, RecordIndex
from stentor.dataloading.mixing import part_of_hours
from stentor.dataloading.permutation import Permutation
from stentor.sources.base import Source
from stentor.text.languages import known_code

if TYPE_CHECKING:
    from lhotse.cut import Cut


AT_A_TIME = 100
"""Records whose lines are asked for together where no window is planned."""


class Records(Protocol):
    """Records that are read by their numbers, those of each language together."""

    parts: dict[str, Part]

    def __len__(self) -> int: ...

    def cuts(self, numbers: np.ndarray) -> Iterator[Cut | UnusableRecord]: ...


class ListedRecords:
    """Records in memory, of a source without an index."""

    def __init__(self, cuts: Sequence[Cut]):
        by_language: dict[str, list[Cut]] = {}
        for cut in cuts:
            by_language.setdefault(language_of(cut) or "", []).append(cut)
        self.parts: dict[str, Part] = {}
        self.listed: list[Cut] = []
        for language, its_cuts in sorted(by_language.items()):
            seconds = math.fsum(cut.duration for cut in its_cuts)
            self.parts[language] = Part(len(self.listed), len(its_cuts), seconds)
            self.listed += its_cuts

    def __len__(self) -> int:
        return len(self.listed)

    def cuts(self, numbers: np.ndarray) -> Iterator[Cut]:
        return (self.listed[number] for number in numbers.tolist())


@dataclass
class Group:
    """The records of one language of a source."""

    source: Source
    records: Records
    first: int
    """Number of its first record."""
    count: int
    """Records that are trained on, the first of `order`."""
    seconds: float
    language: str | None
    order: Permutation
    factor: float
    """How often each record comes in an epoch."""

    def start(self, epoch: int) -> int:
        """How many items of it came before an epoch."""
        return int(self.count * self.factor * epoch)


@dataclass(frozen=True)
class IndexedItem:
    """A record at a position of an epoch."""

    record: Cut | UnusableRecord
    copy: int
    """Tells its repeats in the epoch apart."""
    is_new: bool
    """Whether it never came before."""


class IndexedMix:
    """The records of an epoch as a function of (seed, epoch, position).

    Args:
        sources: each with its records.
        language_temperature: see the key of `data:`.
        seed: fixes the order together with the epoch.
    """

    def __init__(self, sources: Sequence[tuple[Source, Records]], language_temperature: float | None, seed: int):
        self.sources, self.seed = list(sources), seed
        self.groups = [group for number in range(len(self.sources)) for group in self._groups(number)]
        self._set_factors(language_temperature)
        self._epoch: tuple[int, np.ndarray, Permutation] | None = None

    def _groups(self, number: int) -> Iterator[Group]:
        source, records = self.sources[number]
        hours = sum(part.seconds for part in records.parts.values()) / 3600
        for language, part in records.parts.items():
            count = part_of_hours(part.count, hours, source.max_hours)
            default = known_code(source.language) if source.language else None
            order = Permutation(part.count, "records", language)
            seconds = part.seconds * count / part.count
            yield Group(source, records, part.first, count, seconds, language or default, order, source.repeat)

    def _set_factors(self, temperature: float | None) -> None:
        """As in `Mix`."""
        sizes = [sum(g.count for g in self.groups if g.source is source) for source, _ in self.sources]
        weights = [source.weight for source, _ in self.sources if source.weight is not None]
        if weights:
            total = sum(size * s.repeat for size, (s, _) in zip(sizes, self.sources)) / sum(weights)
            for (source, _), size, weight in zip(self.sources, sizes, weights):
                for group in self.groups:
                    if group.source is source:
                        group.factor = weight * total / max(size, 1)
        if temperature is not None:
            seconds: Counter[str | None] = Counter()
            for group in self.groups:
                seconds[group.language] += group.seconds  # type: ignore[assignment]
            most = max(seconds.values())
            for group in self.groups:
                if group.seconds:
                    group.factor *= (most / seconds[group.language]) ** (1 - temperature)

    @property
    def num_records(self) -> int:
        """Records that are trained on."""
        return sum(group.count for group in self.groups)

    @property
    def hours(self) -> float:
        return sum(group.seconds for group in self.groups) / 3600

    def length(self, epoch: int) -> int:
        """Positions of an epoch."""
        return int(self._order(epoch)[0][-1])

    def _order(self, epoch: int) -> tuple[np.ndarray, Permutation]:
        """Where the items of each group end, and the order of all."""
        if self._epoch is None or self._epoch[0] != epoch:
            ends = np.cumsum([group.start(epoch + 1) - group.start(epoch) for group in self.groups])
            self._epoch = (epoch, ends, Permutation(int(ends[-1]), self.seed, "epoch", epoch))
        return self._epoch[1:]

    def items(self, epoch: int, positions: np.ndarray) -> list[IndexedItem]:
        """What is at positions, int64 [N], of an epoch."""
        ends, order = self._order(epoch)
        places = order(positions)
        groups = np.searchsorted(ends, places, side="right")
        items: dict[int, IndexedItem] = {}
        for number in np.unique(groups).tolist():
            group, chosen = self.groups[number], np.flatnonzero(groups == number)
            in_epoch = places[chosen] - (ends[number - 1] if number else 0)
            on_ring = group.start(epoch) + in_epoch
            numbers = group.first + group.order(on_ring % group.count)
            for place, record, copy, is_new in zip(
                chosen.tolist(),
                group.records.cuts(numbers),
                (in_epoch // group.count).tolist(),
                (on_ring < group.count).tolist(),
            ):
                if not isinstance(record, UnusableRecord):
                    group.source.set_defaults(record)
                items[place] = IndexedItem(record, copy, is_new)
        return [items[place] for place in range(len(positions))]

    def sample(self, number: int, most: int) -> Iterator[Cut | UnusableRecord]:
        """Random records of a source, one after the other, no more than so many."""
        source, records = self.sources[number]
        order = Permutation(len(records), self.seed, "sample", number)
        for start in range(0, min(most, len(records)), AT_A_TIME):
            for record in records.cuts(order(np.arange(start, min(start + AT_A_TIME, most, len(records))))):
                if not isinstance(record, UnusableRecord):
                    source.set_defaults(record)
                yield record


class ShuffledRecords(Iterator["Cut | UnusableRecord"]):
    """Of an index that is mixed with streams: every `num_shards`-th record from `shard` on (`positions`), in an order
    that is a function of `key`. `start` is the `cursor` of another one, to go on from."""

    def __init__(
        self,
        source: Source,
        index: RecordIndex,
        positions: tuple[int, int],
        key: Sequence[int | str],
        start: int | None = None,
    ):
        shard, num_shards = positions
        count = part_of_hours(len(index), index.seconds / 3600, source.max_hours)
        self.source, self.index, self.num_read = source, index, start or 0
        self.positions = range(shard, count, num_shards)
        self.chosen, self.order = Permutation(len(index), "records"), Permutation(count, *key)
        self.records = self._records()

    def __next__(self) -> Cut | UnusableRecord:
        return next(self.records)

    def cursor(self) -> int:
        return self.num_read

    def _records(self) -> Iterator[Cut | UnusableRecord]:
        while block := self.positions[self.num_read : self.num_read + AT_A_TIME]:
            for record in self.index.cuts(self.chosen(self.order(np.array(block)))):
                self.num_read += 1
                if not isinstance(record, UnusableRecord):
                    self.source.set_defaults(record)
                yield record
