"""Streams that are read in several places at once, so that each process reads only its share of them.

A stream is cut into lanes: sets of its files that are planned apart, each a stream of its own with its own windows and
epochs. Batch i of the whole run is batch i // L of lane i % L, whoever computes it: like every plan, that is a function
of (seed, epoch) alone, equal on 1 and on 8 processes, and resuming is "start at batch k". A process takes every W-th
batch, so it comes past L / gcd(L, W) lanes and opens no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from math import gcd
from typing import TYPE_CHECKING, Any

from stentor.dataloading.batch_sampler import PlannedBatch
from stentor.errors import DataError

if TYPE_CHECKING:
    from stentor.dataloading.batch_sampler import BatchSampler, Item
    from stentor.sources.base import Source

WINDOW = 250
"""A lane is planned by no fewer items at a time, unless `data.window` is smaller itself."""


def num_shards_of_all(sources: Sequence[Source], most: int) -> int:
    """The number of lanes that all sources which are streams can be read in; the others are listed anyway."""
    return gcd(*(s.num_shards(most) for s in sources if s.streaming)) or 1


def share(lanes: int, world: int) -> float:
    """The part of a stream that each of `world` processes reads."""
    return 1 / gcd(lanes, world)


def window_of(window: int, lanes: int) -> int:
    """Items of a lane's window. A process may hold those of all lanes, so they share the window; but batches out of too
    few items are badly filled (padded, log-normal lengths, per cent: 95 out of 1000, 91 out of 250, 85 out of 125)."""
    return min(window, max(window // lanes, WINDOW))


class ShardedStream:
    """The batches of a stream in lanes; what the loop calls of a `BatchSampler`, for several of them side by side."""

    def __init__(self, plans: Sequence[BatchSampler]):
        self.plans = list(plans)
        self.cost = self.plans[0].cost
        self.begun: dict[int, list[tuple[int, int]]] = {}
        """Lane -> (number of its first batch, epoch) of each epoch that this process came to, the latest last."""

    def epoch(self, epoch: int) -> Iterator[list[Item]]:
        """The batches of one epoch of every lane, in turn until all have ended."""
        open_ = [iter(plan.epoch(epoch)) for plan in self.plans]
        while open_:
            for lane in list(open_):
                if (items := next(lane, None)) is None:
                    open_.remove(lane)
                else:
                    yield items

    def batches(self, epoch: int = 0, within: int = 0, index: int = 0) -> Iterator[PlannedBatch]:
        """All batches without end, from number `index` on."""
        return self.shard(0, 1, 0, epoch, within, index)

    def shard(
        self, rank: int, world: int, skip: int = 0, epoch: int = 0, within: int = 0, index: int = 0
    ) -> Iterator[PlannedBatch]:
        """The batches of one rank: every `world`-th, from number `index + skip` on. `epoch` and `within` say where the
        lane of batch `index` stood; the other lanes' places follow from `index` alone.

        Raises `DataError` for a lane without any usable record, which would leave its turns empty.
        """
        lanes = len(self.plans)
        step = world // gcd(lanes, world)  # batches of a lane between two of this rank's
        open_: dict[int, Iterator[PlannedBatch]] = {}
        latest = epoch
        for number in count(index + skip + rank, world):
            lane, place = number % lanes, number // lanes
            if lane not in open_:
                open_[lane] = islice(self._lane(lane, place), 0, None, step)
            planned = next(open_[lane], None)
            if planned is None:
                raise DataError(
                    f"data.train: lane {lane + 1} of the {lanes} that the stream is read in has no usable record. Set "
                    "`data.lanes: 1` to read it in one piece."
                )
            latest = max(latest, planned.epoch)  # a short lane is ahead of the others: count epochs upwards only
            yield PlannedBatch(planned.items, number, latest, planned.batch_in_epoch)

    def _lane(self, lane: int, place: int) -> Iterator[PlannedBatch]:
        """The batches of a lane from its number `place` on, read from the start of the newest epoch that is known."""
        begun = self.begun.setdefault(lane, [(0, 0)])
        while begun[-1][0] > place:
            begun.pop()
        first, epoch = begun[-1]
        for planned in self.plans[lane].batches(epoch, 0, first):
            if planned.batch_in_epoch == 0 and planned.index > begun[-1][0]:
                begun.append((planned.index, planned.epoch))
            if planned.index >= place:
                yield planned

    def starts(self, index: int) -> list[tuple[int, tuple[int, int]]]:
        """Each lane that was read, with (number of the first batch, epoch) of the epoch that it is in at batch `index`
        of the run."""
        place = index // len(self.plans)
        return [(lane, max(entry for entry in begun if entry[0] <= place)) for lane, begun in self.begun.items()]

    def go_on(self, starts: Iterable[tuple[int, tuple[int, int]]]) -> None:
        """Take over what `starts` of all processes gave, so that resuming reads no earlier epochs."""
        self.begun = {lane: [(0, 0), (first, epoch)] if first else [(0, 0)] for lane, (first, epoch) in starts}

    def largest(self, epoch: int = 0, rank: int = 0) -> list[Item]:
        """The batch that takes the most memory, of a lane that this rank reads anyway."""
        return self.plans[rank % len(self.plans)].largest(epoch)


def records_of_shard(source: Source, lane: int, lanes: int, listed: Callable[[Source], Sequence[Any]]) -> Iterator[Any]:
    """The records of one lane: of a stream its own files, of a listed source every `lanes`-th record."""
    if lanes == 1:
        return iter(source.cuts())
    return source.shard(lane, lanes) if source.streaming else islice(listed(source), lane, None, lanes)
