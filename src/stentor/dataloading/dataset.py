"""Training data set: lists or streams the sources, counts what is dropped, and fixes the order of the batches."""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.cut import UnusableRecord, text_of
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler, Item
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
from stentor.dataloading.section import Data, Replay
from stentor.dataloading.stream_shards import ShardedStream, common_num_shards, records_of_shard, shard_window, share_of
from stentor.errors import ConfigError, DataError
from stentor.sources.base import Source
from stentor.sources.held_out import HeldOut, StreamHoldOut, hold_out

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.models.base import Processor

STREAM_TEXTS = 10_000
"""Transcripts of a stream that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


def train_dataset(
    data: Data,
    seed: int,
    drop_reason: DropReason,
    say: Callable[[str], None],
    training_segments: Callable[[Cut], Iterable[Cut]] | None = None,
) -> TrainDataset:
    """The training data of one stage: streamed when one of its sources is a stream, listed otherwise."""
    kind = StreamedDataset if any(source.streaming for source in data.train) else ListedDataset
    return kind(data if training_segments is None else unlimited(data), seed, drop_reason, say, training_segments)


@dataclass(eq=False)
class TrainDataset(ABC):
    """What is trained on: usable records, those that are replayed, and what was dropped."""

    data: Data
    seed: int
    """Fixes the order together with the epoch."""
    drop_reason: DropReason
    """Of the task."""
    say: Callable[[str], None]
    """Takes lines for the user."""
    training_segments: Callable[[Cut], Iterable[Cut]] | None
    """Of the task: the segments that a record is trained on in; records may then be of any length. None: records are
    trained on whole."""
    streams: ClassVar[bool]
    """Whether the number of records is unknown until all were read."""
    num_shards: int = field(default=1, init=False)
    """Shards of a stream, each planned apart (see stentor.dataloading.stream_shards)."""
    replay: ReplayMix | None = field(default=None, init=False)
    pools: list[Pool] = field(default_factory=list, init=False)
    dropped: DropCounter = field(default_factory=DropCounter, init=False)

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

    def leave_out(self, drop_reason: DropReason) -> None:
        """Drop (and count) the records that the model can do nothing with; to be called before `batch_sampler`. Raises
        `DataError` when they are more than `data.max_bad` allows, or all."""
        for pool in self._all_pools():
            pool.cuts = list(filter_cuts(pool.cuts, self.data, self.dropped, drop_reason))

    @property
    def replayed(self) -> int:
        """Replayed items in each epoch; 0 beside a stream, whose length is unknown."""
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

    @abstractmethod
    def _epoch(self, shard: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) of an epoch (of a stream's shard), with those that are replayed in it."""

    def batch_sampler(self, cost: Callable[[Cut, float], int]) -> BatchSampler | ShardedStream:
        """The batches, given the sequence positions that an item takes."""
        data = self.data
        too_long: set[str] = set()

        def drop(shard: int, item: Item, cost: int) -> None:
            if item.cut.id not in too_long:
                too_long.add(item.cut.id)
                message = f"{item.cut.id}: {cost} positions, more than data.batch_tokens ({data.batch_tokens})"
                self._count_too_long(shard, message, item.cut.duration)

        samplers = [
            BatchSampler(
                partial(self._epoch, shard),
                cost,
                _limits(data, data.batch_tokens),
                seed=self.seed * self.num_shards + shard,  # or all shards would have their short items at the same time
                speed=data.augment.speed_factor if data.augment.speed else None,
                stream_window=shard_window(data.window, self.num_shards) if self.streams else None,
                on_too_long=partial(drop, shard),
            )
            for shard in range(self.num_shards)
        ]
        return samplers[0] if len(samplers) == 1 else ShardedStream(samplers)

    def _count_too_long(self, shard: int, message: str, seconds: float) -> None:
        self.dropped.add("too_long_for_batch", message, seconds)

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        """Count in `dropped` what other processes read of a stream; `gather` gives every process's value to all."""
        return  # every process lists the same records

    def fingerprint(self, sampler: BatchSampler | ShardedStream | None = None) -> str:
        """Changes when the order of training items would change; with `sampler` also when items cost something else (a
        changed prompt or tokenizer) and so fall into other batches."""
        data = self.data
        digest = hashlib.blake2b(digest_size=16)
        keys = ("layout", "batch_tokens", "max_items", "buckets", "window")
        settings: list[Any] = [getattr(data, key) for key in keys]
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

    @abstractmethod
    def _fingerprint_parts(self, sampler: BatchSampler | ShardedStream | None) -> Iterator[str]: ...


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

    def leave_out(self, drop_reason: DropReason) -> None:
        super().leave_out(drop_reason)
        self.dropped.check(self.all_records + self.dropped.reasons.total(), self.data.max_bad, "data.train")
        if not self.records:
            raise DataError(f"data.train: no usable record ({', '.join(self.dropped.reasons)}).")
        self.mix = Mix(self.pools, self.data.language_temperature)
        if self.replay is not None and self.data.replay is not None:
            self.replay = ReplayMix(self.replay.pools, self.data.replay.share)

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

    def _fingerprint_parts(self, sampler: BatchSampler | ShardedStream | None) -> Iterator[str]:
        for items in () if sampler is None else sampler.epoch(0):
            yield " ".join(item.cut.id for item in items) + "\n"


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


def unlimited(data: Data) -> Data:
    """The section without `max_seconds`, for tasks that take records of any length."""
    return data.model_copy(update={"max_seconds": math.inf})


def eval_plan(
    source: Source, name: str, data: Data, processor: Processor, *drop_reasons: DropReason
) -> tuple[BatchSampler, DropCounter]:
    """The batches of one evaluation set: each record once, in batches by length. Records are left out (and counted)
    only when they are broken, refused, or longer than the model or `data.max_seconds` takes; never for `batch_tokens`.
    """
    dropped = DropCounter()
    data = data.model_copy(update={"max_seconds": min(data.max_seconds, processor.max_seconds or data.max_seconds)})
    (pool,) = read_pools([source], data, dropped, name, *drop_reasons)
    cost = processor.tokens
    largest = max(cost(cut, cut.duration) for cut in pool.cuts)
    limits = _limits(data, max(data.eval_batch_tokens or data.batch_tokens, largest))
    return BatchSampler(lambda epoch: ((cut, 0) for cut in pool.cuts), cost, limits, seed=0), dropped


def _limits(data: Data, budget: int) -> BatchLimits:
    return BatchLimits(data.layout or "padded", budget, data.max_items, data.buckets, data.window)
