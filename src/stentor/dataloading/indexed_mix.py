"""Indexed mix: an epoch of several sources, record by record, without a list: each position of it is computed.

Each language of a source is a group. In every epoch a group takes the next records of a ring, its records in an order
that never changes, as many as its repeats, weight and language ask for; so fractions are exact over the epochs. The
positions of an epoch are a permutation of what the groups take.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stentor.data.cut import Cut, UnusableRecord, language_of
from stentor.data.record_index import Part
from stentor.data.seeding import Permutation
from stentor.dataloading.mixing import Language, language_gains, source_factors
from stentor.sources.base import Source
from stentor.text.languages import known_code

AT_A_TIME = 100
"""Records of a sample whose lines are asked for together."""


class Records(Protocol):
    """Records that are read by their numbers, those of each language together."""

    parts: dict[str, Part]

    @property
    def seconds(self) -> np.ndarray:
        """Length of each, [N]."""

    def cuts(self, numbers: np.ndarray) -> Iterator[Cut | UnusableRecord]: ...


class ListedRecords:
    """Records in memory, of a source without an index."""

    def __init__(self, cuts: Sequence[Cut]):
        self.listed = sorted(cuts, key=lambda cut: language_of(cut) or "")
        self.seconds = np.array([cut.duration for cut in self.listed])
        self.parts: dict[str, Part] = {}
        for number, cut in enumerate(self.listed):
            language = language_of(cut) or ""
            part = self.parts.get(language, Part(number, 0, 0.0))
            self.parts[language] = Part(part.first, part.count + 1, part.seconds + cut.duration)

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
    language: Language
    order: Permutation
    factor: float = 1.0
    """Number of times that each record comes in an epoch."""

    def start(self, epoch: int) -> int:
        """Number of its items before an epoch."""
        return int(self.count * self.factor * epoch)


@dataclass(frozen=True)
class ReadRecord:
    """A record that was read for an epoch."""

    record: Cut | UnusableRecord
    copy: int
    """Number of its repeat in the epoch."""
    is_new: bool
    """Whether it may never have come before."""


class IndexedMix:
    """The records of an epoch as a function of (seed, epoch, position).

    Args:
        sources: each with its records.
        language_temperature: see the key of `data:`.
        seed: fixes the order together with the epoch.
        seconds_beside: of each language in the other training data.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Source, Records]],
        language_temperature: float | None,
        seed: int,
        seconds_beside: Mapping[Language, float],
    ):
        self.sources, self.seed = list(sources), seed
        groups = [list(_groups(*source)) for source in self.sources]
        self.groups = [group for of_source in groups for group in of_source]
        seconds = Counter(seconds_beside)
        for group in self.groups:
            seconds[group.language] += group.seconds  # type: ignore[assignment]
        self.gains = language_gains(seconds, language_temperature)
        sizes = [(sum(g.count for g in its), s.repeat, s.weight) for its, (s, _) in zip(groups, self.sources)]
        for of_source, factor in zip(groups, source_factors(sizes)):
            for group in of_source:
                group.factor = factor * self.gains.get(group.language, 1.0)
        self._epoch: tuple[int, np.ndarray, Permutation] | None = None

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

    def items(self, epoch: int, positions: np.ndarray) -> list[ReadRecord]:
        """The items at positions, int64 [N], of an epoch."""
        ends, order = self._order(epoch)
        places = order(positions)
        groups = np.searchsorted(ends, places, side="right")
        items: dict[int, ReadRecord] = {}
        for number in np.unique(groups).tolist():
            group, chosen = self.groups[number], np.flatnonzero(groups == number)
            in_epoch = places[chosen] - (ends[number - 1] if number else 0)
            on_ring = group.start(epoch) + in_epoch
            numbers = group.first + group.order(on_ring % group.count)
            for place, record, copy, is_new in zip(
                chosen.tolist(),
                _read(group.source, group.records, numbers),
                (in_epoch // group.count).tolist(),
                (on_ring < group.count).tolist(),
            ):
                items[place] = ReadRecord(record, copy, is_new)
        return [items[place] for place in range(len(positions))]

    def read(self, epoch: int, positions: range, window: int) -> Iterator[ReadRecord]:
        """The items at positions of an epoch, read `window` at a time."""
        for at in range(0, len(positions), window):
            yield from self.items(epoch, np.array(positions[at : at + window]))

    def sample(self, number: int) -> Iterator[Cut | UnusableRecord]:
        """The records of a source in random order."""
        source, records = self.sources[number]
        size = len(records.seconds)
        order = Permutation(size, self.seed, "sample", number)
        for start in range(0, size, AT_A_TIME):
            yield from _read(source, records, order(np.arange(start, min(start + AT_A_TIME, size))))


def _groups(source: Source, records: Records) -> Iterator[Group]:
    """The records of each language, and of them the part that makes up `max_hours`."""
    total = sum(part.seconds for part in records.parts.values())
    default = known_code(source.language) if source.language else None
    for language, part in records.parts.items():
        order, count, seconds = Permutation(part.count, "records", language), part.count, part.seconds
        if source.max_hours is not None and source.max_hours * 3600 < total:
            lengths = records.seconds[part.first : part.first + part.count]
            count, seconds = order.within(lengths, part.seconds * source.max_hours * 3600 / total)
        yield Group(source, records, part.first, count, seconds, default or language, order)


def _read(source: Source, records: Records, numbers: np.ndarray) -> Iterator[Cut | UnusableRecord]:
    for record in records.cuts(numbers):
        if not isinstance(record, UnusableRecord):
            source.set_defaults(record)
        yield record
