"""Training data set of sources with an index: planned in windows, of which each is read when its batches are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.dataloading.batch_sampler import LOOK_AHEAD
from stentor.dataloading.indexed_mix import IndexedItem, IndexedMix, ListedRecords, Records
from stentor.dataloading.item_stream import ItemStream, ReplayedItems
from stentor.dataloading.mixing import DropCounter, filter_cuts, read_pools
from stentor.dataloading.stream_shards import WINDOW, ShardedStream
from stentor.dataloading.streamed_dataset import STREAM_TEXTS, StreamedDataset
from stentor.sources.base import divisible_shards
from stentor.sources.held_out import HeldOut, StreamHoldOut

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.dataloading.train_dataset import Sampler


class IndexedDataset(StreamedDataset):
    """Sources with an index, and listed ones beside them. No record is held in memory: each epoch is a permutation of
    positions that needs no list, dealt to lanes and planned in windows of `data.window` items, for which the records'
    lines are read."""

    def _open(self, held_out: dict[str, HeldOut]) -> None:
        data = self.data
        sources: list[tuple[Any, Records]] = []
        self.contents: list[str] = []
        for source in data.train:
            if (index := source.index()) is not None:
                sources.append((source, index))
                self.contents.append(index.content)
            else:
                unlimited = source.model_copy(update={"max_hours": None})  # the mix takes its part
                (pool,) = read_pools([unlimited], data, self.dropped, "data.train", self.drop_reason)
                sources.append((source, ListedRecords(pool.cuts)))
                self.contents += [f"{cut.id}\0{cut.duration:.6f}" for cut in pool.cuts]
        self.mix = IndexedMix(sources, data.language_temperature, self.seed)
        self._start_counting(divisible_shards(max(1, self.mix.num_records // WINDOW), data.lanes))
        self.say(
            f"The training data has an index: {self.mix.num_records:,} records, {self.mix.hours:.2f} h. They are read "
            f"in windows of {data.window} when their batches are needed; what is dropped of them is counted then."
        )
        if held_out:
            self._held_out = StreamHoldOut(held_out)
            self._held_out.fill([self._sample(number) for number in range(len(data.train))])
        self._say_lanes("data")

    def _sample(self, number: int, most: int | None = None) -> Iterator[Cut]:
        """Random usable records of a source."""
        records = self.mix.sample(number, self.mix.num_records if most is None else most)
        return filter_cuts(records, self.data, DropCounter(), self.drop_reason)

    def cuts(self) -> Iterator[Cut]:
        for number in range(len(self.data.train)):
            yield from self._sample(number, STREAM_TEXTS)
        for pool in self.replay.pools if self.replay else ():
            yield from pool.cuts

    def audio_sample(self, size: int) -> Sequence[Cut]:
        each = -(-size // len(self.data.train))
        return [cut for number in range(len(self.data.train)) for cut in self._sample(number, each)]

    @property
    def records(self) -> int:
        return self.mix.num_records

    @property
    def hours(self) -> float:
        return self.mix.hours

    def batch_sampler(self, cost: Callable[[Cut, float], int]) -> ShardedStream:
        return ShardedStream(self._samplers(cost, self.data.window), self)

    def statistics(self, sampler: Sampler) -> dict[str, float]:
        """As `BatchSampler.statistics`, of the first window of the first lane and multiplied to an epoch."""
        assert isinstance(sampler, ShardedStream)
        items = self.items(0, 0)
        planned = next(sampler.samplers[0].windows(items, 0))
        facts = sampler.samplers[0].statistics(planned)
        share = self.mix.length(0) / max(1, items.place()[0] if self.replay is None else items.place()[-1][0])
        return {key: value if key == "fill" else round(value * share) for key, value in facts.items()}

    def items(self, shard: int, epoch: int, place: Any = None) -> ItemStream:
        if self.replay is None:
            return IndexedItems(self, shard, epoch, place)
        key = (self.seed, "replay", epoch * self.num_shards + shard)
        return ReplayedItems(lambda place: IndexedItems(self, shard, epoch, place), self.replay, key, place)

    def usable(self, shard: int, epoch: int, item: IndexedItem, num_read: int) -> Iterator[Cut]:
        """The usable cuts of the `num_read`-th record of a lane's epoch."""
        return self._usable_cuts(shard, epoch, item.record, num_read, item.is_new)

    def finish(self, shard: int) -> None:
        self._finish(shard)

    def _fingerprint_parts(self, sampler: Sampler | None) -> Iterator[str]:
        held_out = {} if self._held_out is None else self._held_out.sets
        yield json.dumps([self.num_shards, {n: s.model_dump(mode="json") for n, s in held_out.items()}])
        yield json.dumps([[s.language, s.channel, s.max_hours] for s in self.data.train])
        yield "\n".join(self.contents)
        assert sampler is None or isinstance(sampler, ShardedStream)
        for items in () if sampler is None else islice(sampler.samplers[0].epoch(0), LOOK_AHEAD):
            yield " ".join(item.cut.id for item in items) + "\n"


class IndexedItems(ItemStream):
    """The usable (cut, copy) pairs of a lane's epoch: of every `num_shards`-th position."""

    def __init__(self, dataset: IndexedDataset, shard: int, epoch: int, place: Sequence[int] | None = None):
        self.dataset, self.shard, self.epoch = dataset, shard, epoch
        self.num_read, self.num_cuts = place or (0, 0)
        self.pairs = self._pairs()

    def __next__(self) -> tuple[Cut, int]:
        return next(self.pairs)

    def place(self) -> list[int]:
        return [self.num_read, self.num_cuts]

    def _pairs(self) -> Iterator[tuple[Cut, int]]:
        dataset, epoch = self.dataset, self.epoch
        positions = range(self.shard, dataset.mix.length(epoch), dataset.num_shards)
        while self.num_read < len(positions):
            block = positions[self.num_read : self.num_read + dataset.data.window]
            for item in dataset.mix.items(epoch, np.array(block)):
                cuts = dataset.usable(self.shard, epoch, item, self.num_read + 1)
                for cut in islice(cuts, self.num_cuts, None):
                    self.num_cuts += 1
                    yield cut, item.copy
                self.num_read, self.num_cuts = self.num_read + 1, 0
        dataset.finish(self.shard)
