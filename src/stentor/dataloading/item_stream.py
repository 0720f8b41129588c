"""Item streams: the (cut, copy) pairs of a lane's epoch, with their place, from which another process reads on.

A place is plain data for JSON. A stream that is made with it gives exactly what comes after.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.data.seeding import rng, rng_state, set_rng_state
from stentor.dataloading.mixing import ReplayMix

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord
    from stentor.sources.base import Source

Pair = tuple["Cut", int]
Usable = Callable[["Cut | UnusableRecord", int], Iterator["Cut"]]
"""The usable cuts of a record, given how many records of the source came up to it, itself included."""


class ItemStream(ABC, Iterator[Pair]):
    """(cut, copy) pairs, lazily."""

    @abstractmethod
    def place(self) -> Any:
        """Where the next pair comes from."""


class SourceItems(ItemStream):
    """Usable cuts of a source's lane, read as often as its `repeat` says.

    Args:
        source: read `ceil(repeat)` times.
        opened: (pass, place of its cursor) -> the source's records of that pass and lane, and what tells its cursor.
        usable: see `Usable`.
        wanted: whether a cut comes in this pass.
        place: where to begin: pass, records read of it, the source's cursor there, and how many cuts of the next record
            came already.
    """

    def __init__(
        self,
        source: Source,
        opened: Callable[[int, Any], tuple[Iterator[Cut | UnusableRecord], Callable[[], Any]]],
        usable: Usable,
        wanted: Callable[[Cut, int], bool],
        place: Sequence[Any] | None = None,
    ):
        self.passes, self.opened, self.usable, self.wanted = math.ceil(source.repeat), opened, usable, wanted
        start: Sequence[Any] = place or (0, 0, None, 0)
        self.copy, self.num_read, self.cursor, self.num_cuts = start
        self.pairs = self._pairs()

    def __next__(self) -> Pair:
        return next(self.pairs)

    def place(self) -> list[Any]:
        return [self.copy, self.num_read, self.cursor, self.num_cuts]

    def _pairs(self) -> Iterator[Pair]:
        while self.copy < self.passes:
            records, cursor = self.opened(self.copy, self.cursor)
            if self.cursor is None:  # only counting leads to the place
                records = islice(records, self.num_read, None)
            for record in records:
                for cut in islice(self.usable(record, self.num_read + 1), self.num_cuts, None):
                    self.num_cuts += 1
                    if self.wanted(cut, self.copy):
                        yield cut, self.copy
                self.num_read, self.cursor, self.num_cuts = self.num_read + 1, cursor(), 0
            self.copy, self.num_read, self.cursor = self.copy + 1, 0, None


class MixedItems(ItemStream):
    """Pairs of several streams in random order, by their weights, until every one has ended."""

    def __init__(
        self,
        streams: Sequence[Callable[[Any], ItemStream]],
        weights: Sequence[float],
        key: Sequence[int | str],
        on_end: Callable[[], None],
        place: Sequence[Any] | None = None,
    ):
        self.generator, self.weights, self.on_end = rng(*key), list(weights), on_end
        self.alive, places = list(range(len(streams))), [None] * len(streams)
        if place is not None:
            self.alive, places, state = place
            self.alive = list(self.alive)
            set_rng_state(self.generator, state)
        self.streams = [make(at) for make, at in zip(streams, places)]

    def __next__(self) -> Pair:
        while self.alive:
            choice = 0
            if len(self.alive) > 1:
                total = sum(self.weights[i] for i in self.alive)
                chances = [self.weights[i] / total for i in self.alive]
                choice = int(self.generator.choice(len(self.alive), p=chances))
            pair = next(self.streams[self.alive[choice]], None)
            if pair is not None:
                return pair
            self.alive.pop(choice)
        self.on_end()
        raise StopIteration

    def place(self) -> list[Any]:
        return [list(self.alive), [stream.place() for stream in self.streams], rng_state(self.generator)]


class ReplayedItems(ItemStream):
    """Pairs of a stream with replayed ones in between; those are drawn anew in each epoch."""

    def __init__(
        self,
        base: Callable[[Any], ItemStream],
        replay: ReplayMix,
        key: Sequence[int | str],
        place: Sequence[Any] | None = None,
    ):
        self.replay, self.generator = replay, rng(*key)
        self.orders = [self.generator.permutation(len(pool.cuts)) for pool in replay.pools]
        self.num_base, self.drawn, base_place = 0, [0] * len(self.orders), None
        if place is not None:
            self.num_base, drawn, state, base_place = place
            self.drawn = list(drawn)
            set_rng_state(self.generator, state)
        self.base = base(base_place)

    def __next__(self) -> Pair:
        if sum(self.drawn) + 1 > self.num_base * self.replay.ratio:
            pair = next(self.base)
            self.num_base += 1
            return pair
        pool = int(self.generator.choice(len(self.orders), p=self.replay.shares))
        copy, position = divmod(self.drawn[pool], len(self.orders[pool]))
        self.drawn[pool] += 1
        return self.replay.pools[pool].cuts[self.orders[pool][position]], copy

    def place(self) -> list[Any]:
        return [self.num_base, list(self.drawn), rng_state(self.generator), self.base.place()]
