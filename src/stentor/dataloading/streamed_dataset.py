"""Training data set of sources of unknown length, read as training goes on."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.data.cut import UnusableRecord
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.mixing import DropCounter, DropReason, filter_cuts
from stentor.dataloading.stream_shards import ShardedStream, common_num_shards, records_of_shard, share_of
from stentor.dataloading.train_dataset import TrainDataset
from stentor.errors import ConfigError
from stentor.sources.base import Source
from stentor.sources.held_out import HeldOut, StreamHoldOut

if TYPE_CHECKING:
    from lhotse.cut import Cut


STREAM_TEXTS = 10_000
"""Transcripts of a stream that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


class StreamedDataset(TrainDataset):
    """Sources of unknown length, read as training goes on: shuffled and batched in windows, in one or more shards."""

    streams = True

    def _open(self, held_out: dict[str, HeldOut]) -> None:
        data = self.data
        self.num_shards = common_num_shards(data.train, data.lanes)
        self._num_read: Counter[tuple[int, int]] = Counter()  # by (source, shard): most records read of an epoch
        self._dropped_by_shard: dict[int, DropCounter] = {}
        self._finished_shards: set[int] = set()
        # By id(source): of sources that are no streams.
        self._records_beside: dict[int, list[Cut | UnusableRecord]] = {}
        self._model_drop_reasons: list[DropReason] = []
        self._held_out = StreamHoldOut(held_out) if held_out else None
        if data.language_temperature is not None:
            raise ConfigError(
                "`data.language_temperature` needs sources of known length; one of `data.train` is a stream. Use "
                "`weight` or `repeat`."
            )
        self.say(
            "The training data is a stream of unknown length: items are shuffled and batched in windows of "
            f"{data.window}; a resumed run reads the metadata again up to its place, in the same order, which "
            "needs the source to give its records in the same order as before."
        )
        if self._held_out is not None:
            self._held_out.fill([filter_cuts(s.cuts(), data, DropCounter(), self.drop_reason) for s in data.train])
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            share = share_of(self.num_shards, world)
            self.say(
                f"The stream is read in {self.num_shards} lanes: each of the {world} processes reads "
                + (f"1/{round(1 / share)} of it." if share < 1 else "all of it (see `data.lanes`).")
            )

    def leave_out(self, drop_reason: DropReason) -> None:
        self._model_drop_reasons = [drop_reason]
        super().leave_out(drop_reason)

    def cuts(self) -> Iterator[Cut]:
        for source in self.data.train:
            yield from islice(filter_cuts(source.cuts(), self.data, DropCounter(), self.drop_reason), STREAM_TEXTS)
        yield from super().cuts()

    def _epoch(self, shard: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        stream = self._interleaved(epoch, shard)
        if self.replay is None:
            return stream
        return self.replay.between(self.seed, epoch * self.num_shards + shard, stream)

    def _interleaved(self, epoch: int, shard: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) of all sources, until every one has ended."""
        self._dropped_by_shard.setdefault(shard, DropCounter())
        weights = self._sampling_weights()
        streams = [
            (self._epoch_of_source(number, source, shard, epoch), weights[number])
            for number, source in enumerate(self.data.train)
        ]
        generator = rng(self.seed, "stream", epoch * self.num_shards + shard)
        while streams:
            choice = 0
            if len(streams) > 1:
                total = sum(weight for _, weight in streams)
                choice = int(generator.choice(len(streams), p=[weight / total for _, weight in streams]))
            pair = next(streams[choice][0], None)
            if pair is None:
                streams.pop(choice)
            else:
                yield pair
        self._finished_shards.add(shard)
        if len(self._finished_shards) == len(self._dropped_by_shard):
            # Where other processes read the other shards, this one's records are too few to judge by.
            least = 0 if len(self._finished_shards) == self.num_shards else STREAM_TRUST
            self.dropped.check(max(self._num_read.total(), least), self.data.max_bad, "data.train")

    def _sampling_weights(self) -> list[float]:
        """How often each source comes by: as `weight` says, else by size, so that all end about together; all alike
        where a stream's size is unknown."""
        sources = self.data.train
        if all(source.weight is None for source in sources):
            sizes = [source.expected() if source.streaming else 0 for source in sources]
            if None not in sizes:
                sizes = [n if s.streaming else len(self._records_of_listed(s)) for s, n in zip(sources, sizes)]
                return [source.repeat * max(size or 0, 1) for source, size in zip(sources, sizes)]
        return [source.weight or 1.0 for source in sources]

    def _records_of_listed(self, source: Source) -> list[Cut | UnusableRecord]:
        """The records of a source that is no stream but is read beside one."""
        if id(source) not in self._records_beside:
            self._records_beside[id(source)] = list(source.cuts())
        return self._records_beside[id(source)]

    def _epoch_of_source(self, number: int, source: Source, shard: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) of the usable records of a source, read as often as its `repeat` says; a fraction takes another
        part of the records in each epoch."""
        passes = math.ceil(source.repeat)
        for copy in range(passes):
            ordered = source.in_epoch(self.seed, epoch * passes + copy) if source.streaming else source
            for cut in self._usable_cuts(number, ordered, shard):
                if source.repeat == passes or copy < self._num_copies(number, source.repeat, cut, epoch):
                    yield cut, copy

    def _num_copies(self, number: int, repeat: float, cut: Cut, epoch: int) -> int:
        """As in `Mix`: exact over the epochs, for every record."""
        phase = rng(self.seed, "mix", number, cut.id).random()
        return math.floor(repeat * (epoch + 1) + phase) - math.floor(repeat * epoch + phase)

    def _usable_cuts(self, number: int, source: Source, shard: int) -> Iterator[Cut]:
        """The usable cuts of a source's shard. What is dropped counts where the stream is read for the first time: the
        dry run and later epochs come past the same records again."""
        records = records_of_shard(source, shard, self.num_shards, self._records_of_listed)
        for num_read, record in enumerate(records, 1):
            is_new = num_read > self._num_read[number, shard]
            self._num_read[number, shard] = max(self._num_read[number, shard], num_read)
            dropped = DropCounter()
            cuts = filter_cuts([record], self.data, dropped, self.drop_reason)
            if self._held_out is not None:
                cuts = self._held_out.rest(cuts)
            segments = self._segments(cuts)
            yield from filter_cuts(segments, self.data, dropped, *self._model_drop_reasons)
            if is_new and dropped.reasons:
                self.dropped.merge(dropped)
                self._dropped_by_shard[shard].merge(dropped)
            if is_new and isinstance(record, UnusableRecord):
                self.dropped.check(max(self._num_read.total(), STREAM_TRUST), self.data.max_bad, "data.train")

    def _count_too_long(self, shard: int, message: str, seconds: float) -> None:
        super()._count_too_long(shard, message, seconds)
        self._dropped_by_shard.setdefault(shard, DropCounter()).add("too_long_for_batch", message, seconds)

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        for dropped_by_shard in gather(self._dropped_by_shard):
            for shard, dropped in dropped_by_shard.items():
                if shard not in self._dropped_by_shard:
                    self._dropped_by_shard[shard] = dropped
                    self.dropped.merge(dropped)

    def _fingerprint_parts(self, sampler: BatchSampler | ShardedStream | None) -> Iterator[str]:
        held_out = {} if self._held_out is None else self._held_out.sets
        sections = [source.model_dump(mode="json") for source in self.data.train]
        yield json.dumps([self.num_shards, {n: s.model_dump(mode="json") for n, s in held_out.items()}, *sections])
        yield "".join(source.contents() for source in self.data.train if source.streaming)
