"""Training data set of sources of unknown length, read as training goes on."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.data.cut import UnusableRecord
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.indexed_mix import ShuffledRecords
from stentor.dataloading.item_stream import ItemStream, MixedItems, ReplayedItems, SourceItems
from stentor.dataloading.mixing import DropCounter, DropReason, filter_cuts
from stentor.dataloading.stream_shards import ShardedStream, common_num_shards, records_of_shard, shard_window, share_of
from stentor.dataloading.train_dataset import Sampler, TrainDataset
from stentor.errors import ConfigError
from stentor.sources.base import Source
from stentor.sources.held_out import HeldOut, StreamHoldOut

if TYPE_CHECKING:
    from lhotse.cut import Cut


STREAM_TEXTS = 10_000
"""Transcripts of a stream that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


@dataclass
class LaneCounts:
    """What was counted of a lane, each record where it was read for the first time."""

    num_read: Counter[int] = field(default_factory=Counter)
    """Most records that were read of a pass of a source, by its number, or of an epoch of an index."""
    dropped: DropCounter = field(default_factory=DropCounter)
    too_long: set[str] = field(default_factory=set)
    """Ids of what no batch can hold."""

    def as_plain(self) -> list[Any]:
        """For JSON."""
        dropped = self.dropped
        return [list(self.num_read.items()), {**dropped.facts(), "seconds": dropped.seconds}, sorted(self.too_long)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> LaneCounts:
        num_read, facts, too_long = plain
        counts = cls(Counter(dict(num_read)), DropCounter(Counter(facts["dropped"]), facts["seconds"]), set(too_long))
        counts.dropped.named.update(facts["named"])
        return counts


class StreamedDataset(TrainDataset):
    """Sources of unknown length, read as training goes on: shuffled and batched in windows, in one or more shards."""

    streams = True

    def _start_counting(self, num_shards: int) -> None:
        self.num_shards = num_shards
        self._lane_counts: dict[int, LaneCounts] = {}
        self._restored: dict[int, LaneCounts] = {}  # of lanes that this process has not come to
        self._finished_shards: set[int] = set()
        self._model_drop_reasons: list[DropReason] = []
        self._held_out: StreamHoldOut | None = None

    def _open(self, held_out: dict[str, HeldOut]) -> None:
        data = self.data
        self._start_counting(common_num_shards(data.train, data.lanes))
        self._indexes = [source.index() for source in data.train]
        # By id(source): of sources that are no streams.
        self._records_beside: dict[int, list[Cut | UnusableRecord]] = {}
        if data.language_temperature is not None:
            raise ConfigError(
                "`data.language_temperature` needs sources of known length; one of `data.train` is a stream. Use "
                "`weight` or `repeat`."
            )
        for number, source in enumerate(data.train):
            if source.max_hours is not None and source.index() is None:
                raise ConfigError(
                    f"data.train.{number}.max_hours: one of `data.train` is a stream, and beside it a part can only be "
                    "taken of a manifest with an index (`stentor prepare index`). Use `limit`, `weight` or `repeat`."
                )
        self.say(
            "The training data is a stream of unknown length: items are shuffled and batched in windows of "
            f"{data.window}; a resumed run goes on where the source can begin in the middle (`shards`), and reads the "
            "metadata of others again up to its place, which needs the same order as before."
        )
        if held_out:
            self._held_out = StreamHoldOut(held_out)
            self._held_out.fill([filter_cuts(s.cuts(), data, DropCounter(), self.drop_reason) for s in data.train])
        self._say_lanes("stream")

    def _say_lanes(self, name: str) -> None:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            share = share_of(self.num_shards, world)
            self.say(
                f"The {name} is read in {self.num_shards} lanes: each of the {world} processes reads "
                + (f"1/{round(1 / share)} of it." if share < 1 else "all of it (see `data.lanes`).")
            )

    def leave_out(self, drop_reason: DropReason) -> None:
        self._model_drop_reasons = [drop_reason]
        super().leave_out(drop_reason)

    def cuts(self) -> Iterator[Cut]:
        for source in self.data.train:
            yield from islice(filter_cuts(source.cuts(), self.data, DropCounter(), self.drop_reason), STREAM_TEXTS)
        yield from super().cuts()

    def batch_sampler(self, cost: Callable[[Cut, float], int]) -> ShardedStream:
        window = shard_window(self.data.window, self.num_shards)
        return ShardedStream(self._samplers(cost, window), self)

    def statistics(self, sampler: Sampler) -> dict[str, float] | None:
        return None

    def _epoch(self, shard: int, epoch: int) -> ItemStream:
        return self.items(shard, epoch)

    def items(self, shard: int, epoch: int, place: Any = None) -> ItemStream:
        if self.replay is None:
            return self._mixed(shard, epoch, place)
        key = (self.seed, "replay", epoch * self.num_shards + shard)
        return ReplayedItems(partial(self._mixed, shard, epoch), self.replay, key, place)

    def _mixed(self, shard: int, epoch: int, place: Any) -> ItemStream:
        """(cut, copy) of all sources."""
        self._counted(shard)
        streams = [partial(self._items_of, number, shard, epoch) for number in range(len(self.data.train))]
        key = (self.seed, "stream", epoch * self.num_shards + shard)
        return MixedItems(streams, self._sampling_weights(), key, partial(self._finish, shard), place)

    def _finish(self, shard: int) -> None:
        """At the end of a lane's epoch: see whether too much of what was read is broken."""
        self._finished_shards.add(shard)
        if len(self._finished_shards) == len(self._lane_counts):
            # Where other processes read the other shards, this one's records are too few to judge by.
            least = 0 if len(self._finished_shards) == self.num_shards else STREAM_TRUST
            self.dropped.check(max(self._num_read(), least), self.data.max_bad, "data.train")

    def _num_read(self) -> int:
        return sum(counts.num_read.total() for counts in self._lane_counts.values())

    def _counted(self, shard: int) -> LaneCounts:
        """What this process counted of a lane, and before it those from whose checkpoint it goes on."""
        if shard not in self._lane_counts:
            self._lane_counts[shard] = self._restored.pop(shard, LaneCounts())
            self.dropped.merge(self._lane_counts[shard].dropped)
        return self._lane_counts[shard]

    def counts(self, shard: int) -> Any:
        return (self._lane_counts.get(shard) or self._restored.get(shard) or LaneCounts()).as_plain()

    def restore_counts(self, shard: int, counts: Any) -> None:
        self._restored[shard] = LaneCounts.from_plain(counts)

    def _sampling_weights(self) -> list[float]:
        """How often each source comes by: as `weight` says, else by size, so that all end about together; all alike
        where a stream's size is unknown."""
        sources = self.data.train
        if all(source.weight is None for source in sources):
            sizes = [source.expected() if source.streaming else 0 for source in sources]
            if None not in sizes:
                for number, source in enumerate(sources):
                    if not source.streaming:
                        sizes[number] = len(self._indexes[number] or self._records_of_listed(source))
                return [source.repeat * max(size or 0, 1) for source, size in zip(sources, sizes)]
        return [source.weight or 1.0 for source in sources]

    def _records_of_listed(self, source: Source) -> list[Cut | UnusableRecord]:
        """The records of a source that is no stream but is read beside one."""
        if id(source) not in self._records_beside:
            self._records_beside[id(source)] = list(source.cuts())
        return self._records_beside[id(source)]

    def _items_of(self, number: int, shard: int, epoch: int, place: Any) -> ItemStream:
        """(cut, copy) of the usable records of a source, read as often as its `repeat` says; a fraction takes another
        part of the records in each epoch."""
        source, index = self.data.train[number], self._indexes[number]
        passes = math.ceil(source.repeat)

        def opened(copy: int, cursor: Any) -> tuple[Iterator[Cut | UnusableRecord], Callable[[], Any]]:
            if index is not None:
                key = (self.seed, "beside", number, epoch * passes + copy)
                reader = ShuffledRecords(source, index, (shard, self.num_shards), key, cursor)
                return reader, reader.cursor
            ordered = source.in_epoch(self.seed, epoch * passes + copy) if source.streaming else source
            ordered.start_at(cursor)
            records = records_of_shard(ordered, shard, self.num_shards, self._records_of_listed)
            return records, ordered.cursor

        def wanted(cut: Cut, copy: int) -> bool:
            return source.repeat == passes or copy < self._num_copies(number, source.repeat, cut, epoch)

        return SourceItems(source, opened, partial(self._usable_cuts, shard, number), wanted, place)

    def _num_copies(self, number: int, repeat: float, cut: Cut, epoch: int) -> int:
        """As in `Mix`: exact over the epochs, for every record."""
        phase = rng(self.seed, "mix", number, cut.id).random()
        return math.floor(repeat * (epoch + 1) + phase) - math.floor(repeat * epoch + phase)

    def _usable_cuts(
        self, shard: int, number: int, record: Cut | UnusableRecord, num_read: int, is_new: bool = True
    ) -> Iterator[Cut]:
        """The usable cuts of a record, the `num_read`-th of what a lane counts under `number`. What is dropped counts
        where it is read for the first time: the dry run and later epochs come past the same records again."""
        counts, dropped = self._counted(shard), DropCounter()
        is_new = is_new and num_read > counts.num_read[number]
        counts.num_read[number] = max(counts.num_read[number], num_read)
        cuts = filter_cuts([record], self.data, dropped, self.drop_reason)
        if self._held_out is not None:
            cuts = self._held_out.rest(cuts)
        yield from filter_cuts(self._segments(cuts), self.data, dropped, *self._model_drop_reasons)
        if is_new and dropped.reasons:
            self.dropped.merge(dropped)
            counts.dropped.merge(dropped)
        if is_new and isinstance(record, UnusableRecord):
            self.dropped.check(max(self._num_read(), STREAM_TRUST), self.data.max_bad, "data.train")

    def _count_too_long(self, shard: int, item: Item, cost: int) -> None:
        counts = self._counted(shard)
        if item.cut.id not in counts.too_long:
            counts.too_long.add(item.cut.id)
            for dropped in (counts.dropped, self.dropped):
                self._add_too_long(dropped, item, cost)

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        newest = dict(self._restored)  # lanes that nobody came to since
        for lanes in gather(self._lane_counts):
            for shard, counts in lanes.items():
                if shard not in newest or counts.num_read.total() > newest[shard].num_read.total():
                    newest[shard] = counts
        for shard, counts in newest.items():
            if shard not in self._lane_counts:
                self._lane_counts[shard] = counts
                self.dropped.merge(counts.dropped)

    def _fingerprint_parts(self, sampler: Sampler | None) -> Iterator[str]:
        held_out = {} if self._held_out is None else self._held_out.sets
        sections = [source.model_dump(mode="json", exclude={"max_hours"}) for source in self.data.train]
        yield json.dumps([self.num_shards, {n: s.model_dump(mode="json") for n, s in held_out.items()}, *sections])
        yield "".join(source.contents() for source in self.data.train if source.streaming)
        yield "".join(index.content for index in self._indexes if index is not None)
