"""Item streams: the (cut, copy) pairs of a lane's epoch, with their place, from which another process reads on.

A place is plain data for JSON. A stream that is made with it gives exactly what comes after.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from stentor.data.cut import Cut
from stentor.data.seeding import rng, rng_state, set_rng_state
from stentor.dataloading.indexed_mix import ReadRecord
from stentor.dataloading.mixing import ReplayMix

Pair = tuple["Cut", int]


class ItemStream(ABC, Iterator[Pair]):
    """(cut, copy) pairs, lazily."""

    pairs: Iterator[Pair]

    def __next__(self) -> Pair:
        return next(self.pairs)

    @abstractmethod
    def place(self) -> Any:
        """Where the next pair comes from."""


class LaneItems(ItemStream):
    """Usable cuts of a lane of a stream, or of the mix, which is read several times.

    Args:
        passes: how often it is read.
        opened: (pass, place of its cursor) -> the records of that pass, and what tells its cursor.
        usable: the usable cuts of a record, given how many came up to it, itself included.
        place: where to begin: pass, records read of it, the lane's cursor there, and how many cuts of the next record
            came already.
    """

    def __init__(
        self,
        passes: int,
        opened: Callable[[int, Any], tuple[Iterator[ReadRecord], Callable[[], Any]]],
        usable: Callable[[ReadRecord, int], Iterator[Cut]],
        place: Sequence[Any] | None = None,
    ):
        self.passes, self.opened, self.usable = passes, opened, usable
        start: Sequence[Any] = place or (0, 0, None, 0)
        self.number, self.num_read, self.cursor, self.num_cuts = start
        self.pairs = self._pairs()

    def place(self) -> list[Any]:
        return [self.number, self.num_read, self.cursor, self.num_cuts]

    def _pairs(self) -> Iterator[Pair]:
        while self.number < self.passes:
            records, cursor = self.opened(self.number, self.cursor)
            if self.cursor is None:  # only counting leads to the place
                records = islice(records, self.num_read, None)
            for record in records:
                for cut in islice(self.usable(record, self.num_read + 1), self.num_cuts, None):
                    self.num_cuts += 1
                    yield cut, record.copy
                self.num_read, self.cursor, self.num_cuts = self.num_read + 1, cursor(), 0
            self.number, self.num_read, self.cursor = self.number + 1, 0, None


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
            if state is not None:
                set_rng_state(self.generator, state)
        self.streams = [make(at) for make, at in zip(streams, places)]
        self.pairs = self._pairs()

    def _pairs(self) -> Iterator[Pair]:
        while self.alive:
            choice = 0
            if len(self.alive) > 1:
                total = sum(self.weights[i] for i in self.alive)
                chances = [self.weights[i] / total for i in self.alive]
                choice = int(self.generator.choice(len(self.alive), p=chances))
            if (pair := next(self.streams[self.alive[choice]], None)) is not None:
                yield pair
            else:
                self.alive.pop(choice)
        self.on_end()

    def place(self) -> list[Any]:
        state = rng_state(self.generator) if len(self.streams) > 1 else None  # one alone is not drawn
        return [list(self.alive), [stream.place() for stream in self.streams], state]


class ReplayedItems(ItemStream):
    """Pairs of a stream with replayed ones in between; those are drawn again in each epoch."""

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
        self.pairs = self._pairs()

    def _pairs(self) -> Iterator[Pair]:
        while True:
            while sum(self.drawn) + 1 <= self.num_base * self.replay.ratio:
                pool = int(self.generator.choice(len(self.orders), p=self.replay.shares))
                copy, position = divmod(self.drawn[pool], len(self.orders[pool]))
                self.drawn[pool] += 1
                yield self.replay.pools[pool].cuts[self.orders[pool][position]], copy
            if (pair := next(self.base, None)) is None:
                return
            self.num_base += 1
            yield pair

    def place(self) -> list[Any]:
        return [self.num_base, list(self.drawn), rng_state(self.generator), self.base.place()]
