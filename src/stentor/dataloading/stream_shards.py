"""Stream shards: a stream that is read in several places at once, so that each process reads only its share of it.

A stream is cut into shards (`data.lanes` of them): sets of its files that are planned apart, each a stream of its own
with its own windows and epochs. Of S shards, batch i of the whole run is batch i // S of shard i % S, whoever computes
it: like every plan, that is a function of (seed, epoch) alone, equal on 1 and on 8 processes, and resuming is "start at
batch k". A process takes every W-th batch, so it comes past S / gcd(S, W) shards and opens no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from math import gcd
from typing import Any

from stentor.dataloading.batch_sampler import BatchSampler, Item, PlannedBatch
from stentor.errors import DataError
from stentor.sources.base import Source

WINDOW = 250
"""A shard is planned by no fewer items at a time, unless `data.window` is smaller itself."""


def common_num_shards(sources: Sequence[Source], most: int) -> int:
    """The number of shards that all sources which are streams can be read in; the others are listed anyway."""
    return gcd(*(source.num_shards(most) for source in sources if source.streaming)) or 1


def share_of(num_shards: int, world: int) -> float:
    """The part of a stream that each of `world` processes reads."""
    return 1 / gcd(num_shards, world)


def shard_window(window: int, num_shards: int) -> int:
    """Items of a shard's window. A process may hold those of all shards, so they share the window; but batches out of
    too few items are badly filled (padded, log-normal lengths, per cent: 95 out of 1000, 91 out of 250, 85 out of 125).
    """
    return min(window, max(window // num_shards, WINDOW))


class ShardedStream:
    """The batches of a stream in shards: what the training loop calls of a `BatchSampler`, for one sampler a shard."""

    def __init__(self, samplers: Sequence[BatchSampler]):
        self.samplers = list(samplers)
        self.cost = self.samplers[0].cost
        self.epoch_starts: dict[int, list[tuple[int, int]]] = {}
        """Shard -> (number of its first batch, epoch) of each epoch that this process came to, the latest last."""

    def epoch(self, epoch: int) -> Iterator[list[Item]]:
        """The batches of one epoch of every shard, in turn until all have ended."""
        shards = [iter(sampler.epoch(epoch)) for sampler in self.samplers]
        while shards:
            for shard in list(shards):
                if (items := next(shard, None)) is None:
                    shards.remove(shard)
                else:
                    yield items

    def batches(self, epoch: int = 0, batch_in_epoch: int = 0, index: int = 0) -> Iterator[PlannedBatch]:
        """All batches without end, from number `index` on."""
        return self.shard(0, 1, 0, epoch, batch_in_epoch, index)

    def shard(
        self, rank: int, world: int, skip: int = 0, epoch: int = 0, batch_in_epoch: int = 0, index: int = 0
    ) -> Iterator[PlannedBatch]:
        """The batches of one rank: every `world`-th, from number `index + skip` on. `epoch` and `batch_in_epoch` are
        those of batch `index` in its shard; where the other shards stand follows from `index` alone. Raises `DataError`
        for a shard without any usable record, which would leave its turns empty."""
        num_shards = len(self.samplers)
        step = world // gcd(num_shards, world)  # batches of a shard between two of this rank's
        shards: dict[int, Iterator[PlannedBatch]] = {}
        latest = epoch
        for number in count(index + skip + rank, world):
            shard = number % num_shards
            if shard not in shards:
                shards[shard] = islice(self._batches_of_shard(shard, number // num_shards), 0, None, step)
            planned = next(shards[shard], None)
            if planned is None:
                raise DataError(
                    f"data.train: lane {shard + 1} of the {num_shards} that the stream is read in has no usable record."
                    " Set `data.lanes: 1` to read it in one piece."
                )
            latest = max(latest, planned.epoch)  # a short shard is ahead of the others: count epochs upwards only
            yield PlannedBatch(planned.items, number, latest, planned.batch_in_epoch)

    def _batches_of_shard(self, shard: int, first: int) -> Iterator[PlannedBatch]:
        """The batches of a shard from its number `first` on, read from the start of the newest epoch that is known."""
        starts = self.epoch_starts.setdefault(shard, [(0, 0)])
        while starts[-1][0] > first:
            starts.pop()
        index, epoch = starts[-1]
        for planned in self.samplers[shard].batches(epoch, 0, index):
            if planned.batch_in_epoch == 0 and planned.index > starts[-1][0]:
                starts.append((planned.index, planned.epoch))
            if planned.index >= first:
                yield planned

    def starts(self, index: int) -> list[tuple[int, tuple[int, int]]]:
        """Each shard that was read, with (number of the first batch, epoch) of the epoch that it is in at batch `index`
        of the run."""
        number = index // len(self.samplers)
        return [(shard, max(s for s in starts if s[0] <= number)) for shard, starts in self.epoch_starts.items()]

    def go_on(self, starts: Iterable[tuple[int, tuple[int, int]]]) -> None:
        """Take over what `starts` of all processes gave, so that resuming reads no earlier epochs."""
        self.epoch_starts = {shard: [(0, 0), (first, epoch)] if first else [(0, 0)] for shard, (first, epoch) in starts}

    def largest(self, epoch: int = 0, rank: int = 0) -> list[Item]:
        """The batch that takes the most memory, of a shard that this rank reads anyway."""
        return self.samplers[rank % len(self.samplers)].largest(epoch)


def records_of_shard(
    source: Source, shard: int, num_shards: int, listed: Callable[[Source], Sequence[Any]]
) -> Iterator[Any]:
    """The records of one shard: of a stream its own files, of a listed source every `num_shards`-th record."""
    if num_shards == 1:
        return iter(source.cuts())
    return source.shard(shard, num_shards) if source.streaming else islice(listed(source), shard, None, num_shards)
