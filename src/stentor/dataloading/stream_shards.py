"""Stream shards: a stream that is read in several places at once, so that each process reads only its share of it.

A stream is cut into shards (`data.lanes` of them): sets of its files that are planned apart, each a stream of its own
with its own windows and epochs. Of S shards, batch i of the whole run is batch i // S of shard i % S, whoever computes
it: like every plan, that is a function of (seed, epoch) alone, equal on 1 and on 8 processes, and resuming is "start at
batch k". A process takes every W-th batch, so it comes past S / gcd(S, W) shards and opens no other.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import count, islice
from math import gcd
from typing import Any, Protocol

from stentor.dataloading.batch_sampler import BatchSampler, Item, PlannedBatch
from stentor.dataloading.item_stream import ItemStream
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


@dataclass(frozen=True)
class WindowStart:
    """Where a window of a shard begins. The fields are what JSON holds."""

    first: int = 0  # number, in the shard, of its first batch
    epoch: int = 0
    batch_in_epoch: int = 0  # of that batch
    window: int = 0  # number in the epoch
    place: Any = None  # of the shard's items (see stentor.dataloading.item_stream); None: the start of the epoch


class Lanes(Protocol):
    """The lanes of a stream: their items, and what is counted while these are read."""

    def items(self, shard: int, epoch: int, place: Any = None) -> ItemStream:
        """The items of a lane's epoch, from a place of theirs on."""

    def counts(self, shard: int) -> Any:
        """Counts of a lane, as plain data for JSON."""

    def restore_counts(self, shard: int, counts: Any) -> None:
        """Count on from there."""


class ShardedStream:
    """The batches of a stream in shards: what the training loop calls of a `BatchSampler`, for one sampler a shard."""

    def __init__(self, samplers: Sequence[BatchSampler], lanes: Lanes):
        self.samplers, self.lanes = list(samplers), lanes
        self.cost = self.samplers[0].cost
        self.window_starts: dict[int, list[WindowStart]] = {}
        """Window starts of each shard that this process read: those since the last checkpoint, the latest last."""

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
        those of batch `index` in its shard; the positions of the other shards were given by `resume_at`. Raises
        `DataError` for one of several shards without any usable record, which would leave its turns empty."""
        num_shards = len(self.samplers)
        if num_shards == 1 and 0 not in self.window_starts:
            self.window_starts[0] = [WindowStart(index - batch_in_epoch, epoch)]
        step = world // gcd(num_shards, world)  # batches of a shard between two of this rank's
        shards: dict[int, Iterator[PlannedBatch]] = {}
        latest = epoch
        for number in count(index + skip + rank, world):
            shard = number % num_shards
            if shard not in shards:
                shards[shard] = islice(self._batches_of_shard(shard, number // num_shards), 0, None, step)
            planned = next(shards[shard], None)
            if planned is None and num_shards == 1:
                return
            if planned is None:
                raise DataError(
                    f"data.train: lane {shard + 1} of the {num_shards} that the stream is read in has no usable record."
                    " Set `data.lanes: 1` to read it in one piece."
                )
            latest = max(latest, planned.epoch)  # a short shard is ahead of the others: count epochs upwards only
            yield PlannedBatch(planned.items, number, latest, planned.batch_in_epoch)

    def _batches_of_shard(self, shard: int, first: int) -> Iterator[PlannedBatch]:
        """The batches of a shard from its number `first` on, read from the newest start of a window that is known."""
        starts = self.window_starts.setdefault(shard, [])
        while starts and starts[-1].first > first:
            starts.pop()
        if not starts:
            starts.append(WindowStart())
        start = starts[-1]
        sampler = self.samplers[shard]
        while True:
            before = start
            items = self.lanes.items(shard, start.epoch, start.place)
            for batches in sampler.windows(items, start.epoch, start.window):
                for number, batch in enumerate(batches):
                    if start.first + number >= first:
                        index, within = start.first + number, start.batch_in_epoch + number
                        yield PlannedBatch(batch, index, start.epoch, within)
                start = WindowStart(
                    start.first + len(batches),
                    start.epoch,
                    start.batch_in_epoch + len(batches),
                    start.window + 1,
                    items.place(),
                )
                starts.append(start)
            if start.first == before.first and not before.batch_in_epoch:
                return  # an epoch without a batch
            starts[-1] = start = WindowStart(start.first, start.epoch + 1)

    def starts(self, index: int) -> list[tuple[int, list[Any]]]:
        """Each shard that was read, with the fields of the start of the window that it is in at batch `index` of the
        run, and what was counted of it."""
        number = index // len(self.samplers)
        for starts in self.window_starts.values():
            del starts[: bisect_right(starts, number, key=lambda start: start.first) - 1]
        return [
            (shard, [*astuple(starts[0]), self.lanes.counts(shard)]) for shard, starts in self.window_starts.items()
        ]

    def resume_at(self, starts: Iterable[tuple[int, list[Any]]]) -> None:
        """Take over what `starts` of all processes gave, so that resuming reads nothing of earlier windows."""
        for shard, (first, epoch, *rest) in starts:
            *fields, counts = rest or [None]  # older checkpoints have the starts of epochs alone
            if shard in self.window_starts and self.window_starts[shard][0].first >= first:
                continue  # of a process that has not read the shard since it resumed
            self.window_starts[shard] = [WindowStart(first, epoch, *fields)]
            if counts is not None:
                self.lanes.restore_counts(shard, counts)

    def largest(self, epoch: int = 0, rank: int = 0) -> list[Item]:
        """The batch that takes the most memory, of a shard that this rank reads anyway."""
        return self.samplers[rank % len(self.samplers)].largest(epoch)
