"""Batch sampler: which records share a batch, from metadata alone, as a pure function of (seed, epoch).

Batches are numbered globally and go to the ranks in turn, so resuming is "start at batch k", exact for any number of
processes: a step takes batches k ... k + n - 1 from any of them.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from stentor.data.codec_tokens import has_codes
from stentor.data.cut import Cut
from stentor.data.seeding import rng

LOOK_AHEAD = 51
"""Batches of a stream among which the largest is looked for."""


def always(cut: Cut, seconds: float) -> bool:
    """The model can use any record."""
    return True


@dataclass(slots=True)
class Item:
    """One record in an epoch; `copy` tells its repeats apart."""

    cut: Cut
    epoch: int
    copy: int = 0
    speed: float = 1.0
    cost: int = 0
    """Sequence positions that it takes in a batch."""

    @property
    def seconds(self) -> float:
        """Length after speed perturbation."""
        return self.cut.duration / self.speed

    def rng(self, seed: int, purpose: str) -> np.random.Generator:
        """Randomness of this item, the same in any rank, worker or batch."""
        return rng(seed, self.epoch, self.cut.id, self.copy, purpose)


@dataclass(slots=True)
class PlannedBatch:
    """One batch of the plan, before its audio is read."""

    items: list[Item]
    index: int
    """Global number of the batch, over all epochs."""
    epoch: int
    batch_in_epoch: int


@dataclass(frozen=True)
class BatchLimits:
    """Layout and size of batches (see the keys of `data:`)."""

    layout: str
    """`padded` or `packed`."""
    budget: int
    """Most sequence positions in a batch, padding included."""
    max_items: int | None = None
    buckets: int = 30
    window: int = 1000

    def group(self, costs: Sequence[int], generator: np.random.Generator) -> list[list[int]]:
        """Batches of indices into `costs`."""
        if self.layout == "packed":
            return pack(costs, self.budget, self.max_items, self.window, generator)
        return bucket(costs, self.budget, self.max_items, self.buckets, generator)

    def num_positions(self, costs: Sequence[int]) -> int:
        """Sequence positions that one batch of these items takes, padding included."""
        return sum(costs) if self.layout == "packed" else max(costs) * len(costs)


def pack(
    costs: Sequence[int], budget: int, max_items: int | None, window: int, generator: np.random.Generator
) -> list[list[int]]:
    """Best-fit packing: lists of at most `max_items` indices whose costs add up to at most `budget`. Looks `window`
    items ahead of a shuffled stream: each pack starts with a random item and takes the largest that still fits until
    none does."""
    order = generator.permutation(len(costs))
    pool: list[tuple[int, int]] = []
    packs, num_read = [], 0
    while pool or num_read < len(order):
        while len(pool) < window and num_read < len(order):
            index = int(order[num_read])
            bisect.insort(pool, (costs[index], index))
            num_read += 1
        cost, index = pool.pop(int(generator.integers(len(pool))))
        batch, room = [index], budget - cost
        while len(batch) != max_items and (fitting := bisect.bisect_right(pool, (room, len(costs)))) > 0:
            cost, index = pool.pop(fitting - 1)
            batch.append(index)
            room -= cost
        packs.append(batch)
    return packs


def bucket(
    costs: Sequence[int], budget: int, max_items: int | None, buckets: int, generator: np.random.Generator
) -> list[list[int]]:
    """Batches of items of similar cost: items x longest stays within `budget`, at most `max_items` each. Items are
    shuffled within buckets of similar cost, and a bucket's unfinished batch continues with the next longer one."""
    order = np.lexsort((generator.random(len(costs)), buckets_of(costs, buckets)))
    batches: list[list[int]] = []
    batch: list[int] = []
    width = 0
    for index in order.tolist():
        width = max(width, costs[index])
        if batch and (width * (len(batch) + 1) > budget or len(batch) == max_items):
            batches.append(batch)
            batch, width = [], costs[index]
        batch.append(index)
    if batch:
        batches.append(batch)
    return [batches[i] for i in generator.permutation(len(batches))]


def buckets_of(costs: Sequence[int], buckets: int) -> np.ndarray:
    """The bucket of each item, with the edges that waste least.

    Padding grows with the sum over buckets of items x width. With items at density f over cost that sum is least for
    widths that go with f ** -1/2: between equal widths, which are too wide where most items are, and equal numbers of
    items, which are too wide in the long tail. Edges lie at equal shares of the integral of f ** 1/2.
    """
    values, inverse, counts = np.unique(costs, return_inverse=True, return_counts=True)
    share = np.cumsum(np.sqrt(counts * np.diff(values, prepend=values[0] - 1)))
    return np.ceil(share / share[-1] * buckets)[inverse]


class BatchSampler:
    """All batches of a run, epoch after epoch, from the records that `epoch_items` names.

    Args:
        epoch_items: (cut, copy) pairs of an epoch.
        cost: sequence positions of a cut that lasts so many seconds.
        limits: how items share a batch.
        seed: fixes the order together with the epoch.
        speed: draws an item's speed factor.
        stream_window: items are planned in windows of that many instead of the whole epoch at once (for sources of
            unknown length).
        fits: whether the model can use a cut that lasts so many seconds. Items that are drawn a speed with which it
            cannot, or no batch can hold them, keep their own.
    """

    def __init__(
        self,
        epoch_items: Callable[[int], Iterable[tuple[Cut, int]]],
        cost: Callable[[Cut, float], int],
        limits: BatchLimits,
        seed: int,
        speed: Callable[[np.random.Generator], float] | None = None,
        stream_window: int | None = None,
        fits: Callable[[Cut, float], bool] = always,
    ):
        self.epoch_items, self.cost, self.limits, self.seed = epoch_items, cost, limits, seed
        self.speed, self.stream_window, self.fits = speed, stream_window, fits
        self._cached_epoch: tuple[int, list[list[Item]]] = (-1, [])

    def _items(self, pairs: Iterable[tuple[Cut, int]], epoch: int) -> Iterator[Item]:
        for cut, copy in pairs:
            item = Item(cut, epoch, copy)
            if self.speed is not None and not has_codes(cut):
                item.speed = self.speed(item.rng(self.seed, "speed"))
            yield item

    def _group(self, items: Iterable[Item], *key: int) -> list[list[Item]]:
        """Batches of the items; `key` seeds their order."""
        listed = list(items)
        for item in listed:
            item.cost = self.cost(item.cut, item.seconds)
            if item.speed != 1 and (item.cost > self.limits.budget or not self.fits(item.cut, item.seconds)):
                item.speed = 1.0
                item.cost = self.cost(item.cut, item.seconds)
            assert item.cost <= self.limits.budget, f"{item.cut.id} has to be left out before"
        if not listed:
            return []
        costs = [item.cost for item in listed]
        return [[listed[i] for i in batch] for batch in self.limits.group(costs, rng(self.seed, "plan", *key))]

    def epoch(self, epoch: int) -> Iterable[list[Item]]:
        """The batches of one epoch: a list, or for streams an iterator that reads as it goes."""
        if self.stream_window is not None:
            return self._stream(epoch)
        if self._cached_epoch[0] != epoch:
            self._cached_epoch = (epoch, self._group(self._items(self.epoch_items(epoch), epoch), epoch))
        return self._cached_epoch[1]

    def _stream(self, epoch: int) -> Iterator[list[Item]]:
        for batches in self.windows(iter(self.epoch_items(epoch)), epoch):
            yield from batches

    def windows(self, pairs: Iterator[tuple[Cut, int]], epoch: int, first: int = 0) -> Iterator[list[list[Item]]]:
        """The batches of each window of an epoch, from window `first` on, with which `pairs` begin. Reads a window when
        it is asked for."""
        for number in count(first):
            window = list(islice(pairs, self.stream_window))
            yield self._group(self._items(window, epoch), epoch, number)
            if len(window) != self.stream_window:
                return

    def batches(self, epoch: int = 0, batch_in_epoch: int = 0, index: int = 0) -> Iterator[PlannedBatch]:
        """Batches without end, from batch `batch_in_epoch` of `epoch` on; `index` is that batch's global number."""
        while True:
            number = -1
            for number, items in enumerate(self.epoch(epoch)):
                if number >= batch_in_epoch:
                    yield PlannedBatch(items, index, epoch, number)
                    index += 1
            if number < 0:
                return
            epoch, batch_in_epoch = epoch + 1, 0

    def shard(
        self, rank: int, world: int, skip: int = 0, epoch: int = 0, batch_in_epoch: int = 0, index: int = 0
    ) -> Iterator[PlannedBatch]:
        """The batches of one rank: every `world`-th, from `skip` batches after a position (see `batches`) on."""
        return islice(self.batches(epoch, batch_in_epoch, index), skip + rank, None, world)

    def statistics(self, planned: Iterable[list[Item]] | None = None) -> dict[str, float]:
        """Batches, items, positions, fill (used share of padded positions) and budget use of batches; None: of those of
        the first listed epoch."""
        batches = list(self.epoch(0) if planned is None else planned)
        costs = [[item.cost for item in items] for items in batches]
        tokens, slots = sum(map(sum, costs)), sum(map(self.limits.num_positions, costs))
        room = len(batches) * self.limits.budget if self.limits.layout == "packed" else slots
        return {
            "batches": len(batches),
            "items": sum(map(len, costs)),
            "tokens": tokens,
            "slots": slots,
            "fill": tokens / room if batches else 0.0,
            "seconds": sum(item.seconds for items in batches for item in items),
        }

    def largest(self, epoch: int = 0, rank: int = 0) -> list[Item]:
        """The batch that takes the most memory: most positions, then the longest item; the same on all ranks. Of a
        stream, among the first `LOOK_AHEAD` batches."""

        def size(items: list[Item]) -> tuple[int, int]:
            costs = [item.cost for item in items]
            return self.limits.num_positions(costs), max(costs)

        return max(islice(self.epoch(epoch), None if self.stream_window is None else LOOK_AHEAD), key=size)
