"""The batch plan: made from metadata before audio is read, a pure function of (seed, epoch).

Batches are numbered globally and dealt to ranks in turn, so resuming is "start at batch k", exact for any number of
processes: the step takes batches k ... k + n - 1, whoever computes them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.codec_tokens import has_codes
from stentor.data.seeding import rng

if TYPE_CHECKING:
    from lhotse.cut import Cut


@dataclass(slots=True)
class Item:
    """One record's turn in an epoch."""

    cut: Cut
    epoch: int
    copy: int = 0
    speed: float = 1.0

    @property
    def seconds(self) -> float:
        """Length after speed perturbation."""
        return self.cut.duration / self.speed

    def rng(self, seed: int, purpose: str) -> np.random.Generator:
        """Randomness of this item, whatever rank, worker or batch it lands in."""
        return rng(seed, self.epoch, self.cut.id, self.copy, purpose)


@dataclass(slots=True)
class PlannedBatch:
    """One batch of the plan, before its audio is read."""

    items: list[Item]
    index: int
    """Global number of the batch, over all epochs."""
    epoch: int
    batch_in_epoch: int
    """Number of the batch within its epoch."""


def pack(
    costs: Sequence[int], budget: int, max_items: int | None, window: int, generator: np.random.Generator
) -> list[list[int]]:
    """Best-fit packing: lists of at most `max_items` indices whose costs add up to at most `budget`.

    Looks `window` items ahead of a shuffled stream: each pack starts with a random item and takes the largest that
    still fits until none does.
    """
    order = generator.permutation(len(costs))
    pool: list[tuple[int, int]] = []
    packs, taken = [], 0
    while pool or taken < len(order):
        while len(pool) < window and taken < len(order):
            index = int(order[taken])
            bisect.insort(pool, (costs[index], index))
            taken += 1
        cost, index = pool.pop(int(generator.integers(len(pool))))
        row, room = [index], budget - cost
        while len(row) != max_items and (k := bisect.bisect_right(pool, (room, len(costs)))) > 0:
            cost, index = pool.pop(k - 1)
            row.append(index)
            room -= cost
        packs.append(row)
    return packs


def bucket(
    costs: Sequence[int], budget: int, max_items: int | None, buckets: int, generator: np.random.Generator
) -> list[list[int]]:
    """Batches of items of similar cost: items x longest stays within `budget`, at most `max_items` each.

    Items are shuffled within buckets of similar cost, and a bucket's unfinished batch goes on with the next longer one.
    """
    order = np.lexsort((generator.random(len(costs)), buckets_of(costs, buckets)))
    batches: list[list[int]] = []
    row: list[int] = []
    longest = 0
    for index in order.tolist():
        wide = max(longest, costs[index])
        if row and (wide * (len(row) + 1) > budget or len(row) == max_items):
            batches.append(row)
            row, wide = [], costs[index]
        row.append(index)
        longest = wide
    if row:
        batches.append(row)
    return [batches[i] for i in generator.permutation(len(batches))]


def buckets_of(costs: Sequence[int], buckets: int) -> np.ndarray:
    """The bucket of each item, with the edges that waste least.

    Padding grows with the sum over buckets of items x width. With items at density f over cost that sum is least for
    widths that go with f ** -1/2: between equal widths, which are too wide where most items are, and equal numbers of
    items, which are too wide in the long tail. Edges lie at equal shares of the integral of f ** 1/2.
    """
    values, where, counts = np.unique(costs, return_inverse=True, return_counts=True)
    share = np.cumsum(np.sqrt(counts * np.diff(values, prepend=values[0] - 1)))
    return np.ceil(share / share[-1] * buckets)[where]


class BatchSampler:
    """All batches of a run, epoch after epoch, from the records that `epoch_items` names.

    `epoch_items(epoch)` gives the (cut, copy) pairs; `cost(cut, seconds)` the sequence positions an item takes;
    `speed(generator)` an item's speed factor. With `stream_window`, items are planned in windows of that many instead
    of the whole epoch at once (sources of unknown length).
    """

    def __init__(
        self,
        epoch_items: Callable[[int], Iterable[tuple[Cut, int]]],
        cost: Callable[[Cut, float], int],
        *,
        layout: str,
        budget: int,
        max_items: int | None,
        buckets: int,
        window: int,
        seed: int,
        speed: Callable[[np.random.Generator], float] | None = None,
        stream_window: int | None = None,
        on_too_long: Callable[[Item, int], None] = lambda item, cost: None,
    ):
        self.epoch_items, self.cost, self.speed = epoch_items, cost, speed
        self.layout, self.budget, self.max_items, self.buckets, self.window = layout, budget, max_items, buckets, window
        self.seed, self.stream_window, self.on_too_long = seed, stream_window, on_too_long
        self._epoch: tuple[int, list[list[Item]]] | None = None

    def _items(self, epoch: int) -> Iterator[Item]:
        for cut, copy in self.epoch_items(epoch):
            item = Item(cut, epoch, copy)
            if self.speed is not None and not has_codes(cut):
                item.speed = self.speed(item.rng(self.seed, "speed"))
            yield item

    def _batches(self, items: Iterable[Item], *key: Any) -> list[list[Item]]:
        kept, costs = [], []
        for item in items:
            cost = self.cost(item.cut, item.seconds)
            if cost > self.budget:
                self.on_too_long(item, cost)
                continue
            kept.append(item)
            costs.append(cost)
        if not kept:
            return []
        generator = rng(self.seed, "plan", *key)
        if self.layout == "packed":
            rows = pack(costs, self.budget, self.max_items, self.window, generator)
        else:
            rows = bucket(costs, self.budget, self.max_items, self.buckets, generator)
        return [[kept[i] for i in row] for row in rows]

    def epoch(self, epoch: int) -> Iterable[list[Item]]:
        """The batches of one epoch: a list, or for streams an iterator that reads as it goes."""
        if self.stream_window is None:
            if self._epoch is None or self._epoch[0] != epoch:
                self._epoch = (epoch, self._batches(self._items(epoch), epoch))
            return self._epoch[1]
        return self._stream(epoch)

    def _stream(self, epoch: int) -> Iterator[list[Item]]:
        held: list[Item] = []
        number = 0
        for item in self._items(epoch):
            held.append(item)
            if len(held) == self.stream_window:
                yield from self._batches(held, epoch, number)
                held, number = [], number + 1
        yield from self._batches(held, epoch, number)

    def batches(self, epoch: int = 0, within: int = 0, index: int = 0) -> Iterator[PlannedBatch]:
        """Batches without end, from batch `within` of `epoch` on; `index` is that batch's global number."""
        while True:
            seen = 0
            for number, items in enumerate(self.epoch(epoch)):
                seen += 1
                if number >= within:
                    yield PlannedBatch(items, index, epoch, number)
                    index += 1
            if not seen:
                return
            epoch, within = epoch + 1, 0

    def shard(self, rank: int, world: int, skip: int = 0, **position: int) -> Iterator[PlannedBatch]:
        """The batches of one rank: every `world`-th, from `skip` batches after the position on."""
        return islice(self.batches(**position), skip + rank, None, world)

    def statistics(self, epoch: int = 0) -> dict[str, float]:
        """Batches, items, positions, fill (used share of padded positions) and budget use of one listed epoch."""
        batches = list(self.epoch(epoch))
        costs = [[self.cost(i.cut, i.seconds) for i in b] for b in batches]
        real = sum(map(sum, costs))
        slots = real if self.layout == "packed" else sum(max(c) * len(c) for c in costs)
        return {
            "batches": len(batches),
            "items": sum(map(len, costs)),
            "tokens": real,
            "slots": slots,
            "fill": real / (len(batches) * self.budget if self.layout == "packed" else slots) if batches else 0.0,
            "seconds": sum(i.seconds for b in batches for i in b),
        }

    def largest(self, epoch: int = 0, rank: int = 0) -> list[Item]:
        """The batch that takes the most memory: most positions, then the longest item; the same on all ranks."""

        def size(items: list[Item]) -> tuple[int, int]:
            costs = [self.cost(i.cut, i.seconds) for i in items]
            return (sum(costs) if self.layout == "packed" else max(costs) * len(costs), max(costs))

        if self.stream_window is not None:
            window = []
            for number, items in enumerate(self._stream(epoch)):
                window.append(items)
                if number == 50:
                    break
            return max(window, key=size)
        return max(self.epoch(epoch), key=size)
