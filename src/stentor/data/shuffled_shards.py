"""Shuffled shards: the order in which the tar files of a stream and their records are read, with its cursor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.data.seeding import rng, rng_state, set_rng_state
from stentor.data.storage_cache import prefetch

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord


@dataclass
class OpenShard:
    """A tar file that is being read."""

    number: int
    """In the order of the epoch."""
    records: Iterator[Cut | UnusableRecord]
    state: list[int] | None = None
    """State of the generator of the order when its first record was asked for."""
    num_read: int = 0


class ShuffledShards(Iterator["Cut | UnusableRecord"]):
    """The records of tar shards (`read` gives those of one, whose file is its `tar`) in random order, `mix` shards open
    at a time; it can begin at the `cursor` of another one of the same order. What was read to the end is then not
    opened, of open shards the labels are read again."""

    def __init__(
        self,
        shards: list[Any],
        key: Sequence[int | str],
        mix: int,
        read: Callable[[Any, np.random.Generator], Iterator[Cut | UnusableRecord]],
        cursor: list[Any] | None = None,
    ):
        self.order, self.mix, self.read = rng(*key), mix, read
        self.shards = [shards[i] for i in self.order.permutation(len(shards))]
        self.open: list[OpenShard] = []
        self.num_opened = 0
        if cursor is not None:
            self.num_opened, open_shards, now = cursor
            for number, state, num_read in open_shards:
                shard = OpenShard(number, read(self.shards[number], self.order), state, num_read)
                self.open.append(shard)
                if num_read:
                    set_rng_state(self.order, state)
                    deque(islice(shard.records, num_read), maxlen=0)
            set_rng_state(self.order, now)

    def __next__(self) -> Cut | UnusableRecord:
        while self.open or self.num_opened < len(self.shards):
            while self.num_opened < len(self.shards) and len(self.open) < self.mix:
                records = self.read(self.shards[self.num_opened], self.order)
                self.open.append(OpenShard(self.num_opened, records))
                self.num_opened += 1
                if self.num_opened < len(self.shards):
                    prefetch(self.shards[self.num_opened].tar)
            pick = int(self.order.integers(len(self.open)))
            shard = self.open[pick]
            if not shard.num_read:
                shard.state = rng_state(self.order)
            record = next(shard.records, None)
            if record is None:
                self.open.pop(pick)
            else:
                shard.num_read += 1
                return record
        raise StopIteration

    def cursor(self) -> list[Any]:
        return [self.num_opened, [[s.number, s.state, s.num_read] for s in self.open], rng_state(self.order)]
