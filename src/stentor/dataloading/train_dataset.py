"""Training data set: what all have in common, and the one of sources of known length."""

import hashlib
import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

from stentor.data.cut import Cut, text_of
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler, always
from stentor.dataloading.mixing import (
    DropCounter,
    DropReason,
    Mix,
    Pool,
    ReplayMix,
    filter_cuts,
    read_pools,
    total_hours,
)
from stentor.dataloading.planned import ModelDrops
from stentor.dataloading.section import Data, Replay
from stentor.dataloading.stream_shards import ShardedStream
from stentor.errors import ConfigError, DataError
from stentor.sources.held_out import HeldOut, hold_out

PackedLength = Callable[[int], int]
Fits = Callable[[Cut, float], bool]
Sampler = BatchSampler | ShardedStream
"""The batches of a run: of sources of known length, or of lanes of a stream."""


@dataclass(eq=False)
class TrainDataset(ABC):
    """The training data: usable records, those that are replayed, and what was dropped."""

    data: Data
    seed: int
    """Fixes the order together with the epoch."""
    drop_reason: DropReason
    """`drop_reason` of the task."""
    say: Callable[[str], None]
    """Takes lines for the user."""
    training_segments: Callable[[Cut], Iterable[Cut]] | None
    """Function of the task that cuts a record into training segments; records may then have any length. None: records
    are trained on whole."""
    streams: ClassVar[bool]
    """Whether the number of records is unknown until all were read."""
    num_shards: int = field(default=1, init=False)
    """Shards of a stream, each planned apart (see stentor.dataloading.stream_shards)."""
    replay: ReplayMix | None = field(default=None, init=False)
    pools: list[Pool] = field(default_factory=list, init=False)
    dropped: DropCounter = field(default_factory=DropCounter, init=False)
    fits: Fits = field(default=always, init=False)
    """Whether the model can use a record that lasts so many seconds; set by `leave_out`."""
    packed_length: PackedLength = field(default=int, init=False)
    """See `Processor.packed_length`; set by `batch_sampler`."""

    def __post_init__(self) -> None:
        evaluated = {**self.data.eval, **self.data.test}
        self._open({name: source for name, source in evaluated.items() if isinstance(source, HeldOut)})
        if self.data.replay is not None:
            self._open_replay(self.data.replay)

    @abstractmethod
    def _open(self, held_out: dict[str, HeldOut]) -> None:
        """Read what can be read of the sources, and give the sets in `held_out` their records."""

    def _open_replay(self, section: Replay) -> None:
        for number, source in enumerate(section.sources):
            if source.streaming and source.limit is None:
                raise ConfigError(
                    f"data.replay.sources.{number} is a stream: set its `limit` to the number of records that are read "
                    "and held in memory to draw from, a few times as many as an epoch replays."
                )
        dropped = DropCounter()
        pools = read_pools(section.sources, self.data, dropped, "data.replay", self.drop_reason)
        for pool in pools:
            pool.cuts = list(self._segments(pool.cuts))
        self.replay = ReplayMix(pools, section.share)
        self.dropped.merge(dropped)
        each = "" if self.streams else f", {self.replayed:,} in each epoch"
        self.say(
            f"Replay: {section.share:.1%} of the items are general data{each}, drawn from {len(self.replay):,} records "
            f"({total_hours(self.replay.pools):.2f} h)."
        )

    def _segments(self, cuts: Iterable[Cut]) -> Iterable[Cut]:
        if self.training_segments is None:
            return cuts
        return (segment for cut in cuts for segment in self.training_segments(cut))

    def _all_pools(self) -> list[Pool]:
        return [*self.pools, *(self.replay.pools if self.replay else [])]

    def leave_out(self, drop_reason: ModelDrops) -> None:
        """Drop (and count) the records that the model cannot use; to be called before `batch_sampler`. Raises
        `DataError` when they are more than `data.max_bad` allows, or all."""
        self.fits = lambda cut, seconds: drop_reason(cut, seconds) is None
        self._drop(drop_reason)

    def _drop(self, drop_reason: DropReason) -> None:
        """Drop (and count) the records that have a reason."""
        for pool in self._all_pools():
            pool.cuts = list(filter_cuts(pool.cuts, self.data, self.dropped, drop_reason))
        if self.replay is not None and self.data.replay is not None:
            if not len(self.replay):
                raise DataError(f"data.replay: no usable record ({', '.join(self.dropped.reasons)}).")
            self.replay = ReplayMix(self.replay.pools, self.data.replay.share)

    @property
    def replayed(self) -> int:
        """Replayed items in each epoch; 0 with a stream, whose length is unknown."""
        return 0

    @property
    def records(self) -> int:
        """Usable records, 0 for streams."""
        return sum(len(pool.cuts) for pool in self.pools)

    @property
    def all_records(self) -> int:
        """Usable records whose number is known: `records` and those to replay; 0 when there are streams."""
        return 0

    @property
    def hours(self) -> float:
        return total_hours(self.pools)

    def cuts(self) -> Iterator[Cut]:
        """Each usable record once; of streams only the first."""
        for pool in self._all_pools():
            yield from pool.cuts

    def texts(self) -> Iterator[str]:
        """Training transcripts."""
        return (text for cut in self.cuts() if (text := text_of(cut)))

    def audio_sample(self, size: int) -> Sequence[Cut]:
        """Records, always the same ones, about so many: evenly spread over those that are listed."""
        cuts = [cut for pool in self.pools for cut in pool.cuts]  # none of streams
        return cuts[:: -(-len(cuts) // size) or 1]

    @abstractmethod
    def statistics(self, sampler: Sampler) -> dict[str, float] | None:
        """See `BatchSampler.statistics`, of an epoch; None where its length is unknown."""

    @abstractmethod
    def _epoch(self, shard: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) of an epoch (of a stream's shard), with those that are replayed in it."""

    @abstractmethod
    def _plan(self, cost: Callable[[Cut, float], int]) -> Sampler: ...

    def batch_sampler(self, cost: Callable[[Cut, float], int], packed_length: PackedLength = int) -> Sampler:
        """The batches, given the sequence positions that an item takes, and a packed batch (see `Processor`). Records
        that no batch can hold are dropped, and counted, before."""
        self.packed_length = packed_length
        if not self.limits.budget:
            raise ConfigError(
                f"data.batch_tokens: with its padding, a pack takes at least {packed_length(1)} positions: set at "
                "least as many."
            )
        cost = cost if self.streams else _remembered(cost)
        self._drop(partial(self._too_long_for_batch, cost))
        return self._plan(cost)

    def _too_long_for_batch(self, cost: Callable[[Cut, float], int], cut: Cut) -> tuple[str, str] | None:
        positions, budget, tokens = cost(cut, cut.duration), self.limits.budget, self.data.batch_tokens
        if positions <= budget:
            return None
        rounded = f", in whole blocks {budget}" if budget < tokens else ""
        message = f"{cut.id}: {positions} positions, more than `data.batch_tokens` ({tokens}{rounded}): raise it"
        return "too_long_for_batch", message

    @property
    def limits(self) -> BatchLimits:
        return limits_of(self.data, self.data.batch_tokens, self.packed_length)

    def _samplers(self, cost: Callable[[Cut, float], int], stream_window: int | None = None) -> list[BatchSampler]:
        """One for each shard."""
        data = self.data
        return [
            BatchSampler(
                partial(self._epoch, shard),
                cost,
                self.limits,
                seed=self.seed * self.num_shards + shard,  # or all shards would have their short items at the same time
                speed=data.augment.speed_factor if data.augment.speed else None,
                stream_window=stream_window,
                fits=self.fits,
            )
            for shard in range(self.num_shards)
        ]

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        """Count in `dropped` what other processes read of a stream; `gather` gives every process's value to all."""
        return  # every process lists the same records

    def fingerprint(self, sampler: Sampler | None = None) -> str:
        """Changes when the order of training items would change; with `sampler` also when items cost something else (a
        changed prompt or tokenizer) and so fall into other batches."""
        data = self.data
        digest = hashlib.blake2b(digest_size=16)
        settings: list[Any] = [data.layout, self.limits.budget, data.max_items, data.buckets, data.window]
        settings += [data.augment.speed, self.seed, data.language_temperature]
        settings.append([(s.repeat, s.weight) for s in data.train])
        if data.replay is not None:
            settings.append([data.replay.share, [(s.repeat, s.weight) for s in data.replay.sources]])
        digest.update(json.dumps(settings).encode())
        for pool in self._all_pools():
            for cut in pool.cuts:
                digest.update(f"{cut.id}\0{cut.duration:.6f}\0".encode())
        for part in self._fingerprint_parts(sampler):
            digest.update(part.encode())
        return digest.hexdigest()

    @cached_property
    def texts_digest(self) -> str:
        """Hash of the transcripts; of streams, which are not read for it, of the sizes and times of their files."""
        parts = [f"{cut.id}\0{text_of(cut)}" for pool in self._all_pools() for cut in pool.cuts]
        files = (line for source in self.data.train if self.streams for line in source.file_facts())
        return hashlib.blake2b("\0".join([*parts, *files]).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @abstractmethod
    def _fingerprint_parts(self, sampler: Sampler | None) -> Iterator[str]: ...


class ListedDataset(TrainDataset):
    """Sources of known length: all records are listed, and each epoch is planned at once."""

    streams = False

    def _open(self, held_out: dict[str, HeldOut]) -> None:
        data = self.data
        self.say(f"Listing the training data ({', '.join(s.type for s in data.train)}) ...")
        self.pools = read_pools(data.train, data, self.dropped, "data.train", self.drop_reason)
        if held_out:
            for pool, remaining in zip(self.pools, hold_out([pool.cuts for pool in self.pools], held_out)):
                pool.cuts = remaining
        for pool in self.pools:
            pool.cuts = list(self._segments(pool.cuts))
        self.mix = Mix(self.pools, data.language_temperature)

    def _plan(self, cost: Callable[[Cut, float], int]) -> BatchSampler:
        (sampler,) = self._samplers(cost)
        return sampler

    def statistics(self, sampler: Sampler) -> dict[str, float]:
        assert isinstance(sampler, BatchSampler)
        return sampler.statistics()

    def leave_out(self, drop_reason: ModelDrops) -> None:
        super().leave_out(drop_reason)
        self.dropped.check(self.all_records + self.dropped.reasons.total(), self.data.max_bad, "data.train")
        if not self.records:
            raise DataError(f"data.train: no usable record ({', '.join(self.dropped.reasons)}).")

    def _drop(self, drop_reason: DropReason) -> None:
        super()._drop(drop_reason)
        self.mix = Mix(self.pools, self.data.language_temperature)

    @property
    def replayed(self) -> int:
        return 0 if self.replay is None else sum(self.replay.counts(len(self.mix)))

    @property
    def all_records(self) -> int:
        return self.records + len(self.replay or ())

    def _epoch(self, shard: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        yield from self.mix.epoch(self.seed, epoch)
        if self.replay is not None:
            yield from self.replay.epoch(self.seed, epoch, len(self.mix))

    def _fingerprint_parts(self, sampler: Sampler | None) -> Iterator[str]:
        for items in () if sampler is None else sampler.epoch(0):
            yield " ".join(item.cut.id for item in items) + "\n"


def _remembered(cost: Callable[[Cut, float], int]) -> Callable[[Cut, float], int]:
    """The cost, which tokenises the text, computed once for each listed record at its own speed."""
    known: dict[int, int] = {}

    def remembered(cut: Cut, seconds: float) -> int:
        if seconds != cut.duration:
            return cost(cut, seconds)
        if id(cut) not in known:
            known[id(cut)] = cost(cut, seconds)
        return known[id(cut)]

    return remembered


def limits_of(data: Data, budget: int, packed_length: PackedLength) -> BatchLimits:
    """Limits of batches of at most `budget` positions, padding of a pack included."""
    if data.layout == "packed":
        budget = bisect_right(range(1, budget + 1), budget, key=packed_length)
    return BatchLimits(data.layout or "padded", budget, data.max_items, data.buckets, data.window)
