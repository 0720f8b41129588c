"""From the section `data:` to batch plans: lists or streams the sources, counts what is dropped, fixes the order."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.data.cut import UnusableRecord, text_of
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import BatchSampler, Item
from stentor.dataloading.mixing import DropCounter, DropReason, Mix, Pool, ReplayMix, filter_cuts, listed, total_hours
from stentor.dataloading.stream_shards import ShardedStream, num_shards_of_all, records_of_shard, share, window_of
from stentor.errors import ConfigError, DataError
from stentor.sources.held_out import HeldOut, StreamHoldOut, hold_out

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.dataloading.section import Data, Replay
    from stentor.models.base import Processor
    from stentor.sources.base import Source

STREAM_TEXTS = 10_000
"""Transcripts of a stream that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


class TrainDataset:
    """The training data of one stage."""

    def __init__(
        self,
        data: Data,
        seed: int,
        refuse: Callable[[Cut], str | None],
        tell: Callable[[str], None],
        pieces: Callable[[Cut], Iterable[Cut]] | None = None,
    ):
        """`refuse` and `pieces` are the task's. With `pieces`, records may be of any length and are trained on in
        these; None: whole."""
        if pieces is not None:
            data = unlimited(data)
        self.data, self.seed, self.drop_reason, self.training_segments = data, seed, refuse, pieces
        self.dropped = DropCounter()
        self.streams = any(s.streaming for s in data.train)
        self.pools: list[Pool] = []
        self.lanes = num_shards_of_all(data.train, data.lanes) if self.streams else 1
        self._read: Counter[tuple[int, int]] = Counter()  # records read of each stream's lane, at most
        self._refusal: DropReason | None = None
        self._lists: dict[int, list[Cut | UnusableRecord]] = {}
        self._by_lane: dict[int, DropCounter] = {}  # of streams: `dropped` by the lane it was read in
        self._ended: set[int] = set()
        sets = {**data.eval, **data.test}
        held = {name: source for name, source in sets.items() if isinstance(source, HeldOut)}
        self._held = StreamHoldOut(held) if held and self.streams else None
        if self.streams:
            if data.language_temperature is not None:
                raise ConfigError(
                    "`data.language_temperature` needs sources of known length; one of `data.train` is a stream. Use "
                    "`weight` or `repeat`."
                )
            tell(
                "The training data is a stream of unknown length: items are shuffled and batched in windows of "
                f"{data.window}; a resumed run reads the metadata again up to its place, in the same order, which "
                "needs the source to give its records in the same order as before."
            )
            if self._held is not None:
                self._held.fill([filter_cuts(s.cuts(), data, refuse, DropCounter()) for s in data.train])
            world = int(os.environ.get("WORLD_SIZE", "1"))
            if world > 1:
                part = share(self.lanes, world)
                tell(
                    f"The stream is read in {self.lanes} lanes: each of the {world} processes reads "
                    + (f"1/{round(1 / part)} of it." if part < 1 else "all of it (see `data.lanes`).")
                )
        else:
            tell(f"Listing the training data ({', '.join(s.type for s in data.train)}) ...")
            self.pools = listed(data.train, data, refuse, self.dropped, "data.train")
            if held:
                for pool, rest in zip(self.pools, hold_out([p.cuts for p in self.pools], held)):
                    pool.cuts = rest
            for pool in self.pools:
                pool.cuts = list(self._in_pieces(pool.cuts))
            self.mix = Mix(self.pools, data.language_temperature)
        self.replay = None if data.replay is None else self._listed_replay(data.replay, tell)

    def _listed_replay(self, section: Replay, tell: Callable[[str], None]) -> ReplayMix:
        for number, source in enumerate(section.sources):
            if source.streaming and source.limit is None:
                raise ConfigError(
                    f"data.replay.sources.{number} is a stream: set its `limit` to the number of records that are read "
                    "and held in memory to draw from, a few times as many as an epoch replays."
                )
        dropped = DropCounter()
        pools = listed(section.sources, self.data, self.drop_reason, dropped, "data.replay")
        for pool in pools:
            pool.cuts = list(self._in_pieces(pool.cuts))
        replay = ReplayMix(pools, section.share)
        self.dropped.merge(dropped)
        each = "" if self.streams else f", {sum(replay.counts(len(self.mix))):,} in each epoch"
        tell(
            f"Replay: {section.share:.1%} of the items are general data{each}, drawn from {len(replay):,} records "
            f"({total_hours(replay.pools):.2f} h)."
        )
        return replay

    def _in_pieces(self, cuts: Iterable[Cut]) -> Iterable[Cut]:
        return (
            cuts if self.training_segments is None else (piece for cut in cuts for piece in self.training_segments(cut))
        )

    def leave_out(self, refusal: DropReason) -> None:
        """Drop (and count) the records that the model can do nothing with; to be called before `plan`.

        Raises `DataError` when they are more than `data.max_bad` allows, or all.
        """
        self._refusal = refusal
        for pool in [*self.pools, *(self.replay.pools if self.replay else [])]:
            pool.cuts = list(filter_cuts(pool.cuts, self.data, lambda cut: None, self.dropped, refusal))
        if self.streams:
            return
        self.dropped.check(self.all_records + self.dropped.reasons.total(), self.data.max_bad, "data.train")
        if not self.records:
            raise DataError(f"data.train: no usable record ({', '.join(self.dropped.reasons)}).")
        self.mix = Mix(self.pools, self.data.language_temperature)
        if self.replay is not None and self.data.replay is not None:
            self.replay = ReplayMix(self.replay.pools, self.data.replay.share)

    @property
    def replayed(self) -> int:
        """Replayed items in each epoch; 0 beside a stream, whose length is unknown."""
        return 0 if self.replay is None or self.streams else sum(self.replay.counts(len(self.mix)))

    def _epoch(self, epoch: int, lane: int = 0) -> Iterator[tuple[Cut, int]]:
        """The records of an epoch (of a stream's lane) with those that are replayed in it."""
        if not self.streams:
            yield from self.mix.epoch(self.seed, epoch)
            if self.replay is not None:
                yield from self.replay.epoch(self.seed, epoch, len(self.mix))
        elif self.replay is None:
            yield from self._stream(epoch, lane)
        else:
            yield from self.replay.between(self.seed, epoch * self.lanes + lane, self._stream(epoch, lane))

    @property
    def records(self) -> int:
        """Usable records, 0 for streams."""
        return sum(len(p.cuts) for p in self.pools)

    @property
    def all_records(self) -> int:
        """Usable records whose number is known: `records` and those to replay; 0 when there are streams."""
        return 0 if self.streams else self.records + len(self.replay or ())

    @property
    def hours(self) -> float:
        return total_hours(self.pools)

    def cuts(self) -> Iterator[Cut]:
        """Each usable record once; of streams only the first."""
        if self.streams:
            for source in self.data.train:
                yield from islice(filter_cuts(source.cuts(), self.data, self.drop_reason, DropCounter()), STREAM_TEXTS)
        for pool in [*self.pools, *(self.replay.pools if self.replay else [])]:
            yield from pool.cuts

    def texts(self) -> Iterator[str]:
        """Training transcripts."""
        return (text for cut in self.cuts() if (text := text_of(cut)))

    def plan(self, cost: Callable[[Cut, float], int]) -> BatchSampler | ShardedStream:
        """The batch plan, given what an item costs."""
        data = self.data
        too_long: set[str] = set()

        def drop(item: Item, cost: int, lane: int) -> None:
            if item.cut.id not in too_long:
                too_long.add(item.cut.id)
                message = f"{item.cut.id}: {cost} positions, more than data.batch_tokens ({data.batch_tokens})"
                for dropped in (self.dropped, self._by_lane.setdefault(lane, DropCounter())):
                    dropped.add("too_long_for_batch", message, item.cut.duration)

        def one(lane: int) -> BatchSampler:
            return BatchSampler(
                lambda epoch: self._epoch(epoch, lane),
                cost,
                layout=data.layout or "padded",
                budget=data.batch_tokens,
                max_items=data.max_items,
                buckets=data.buckets,
                window=data.window,
                seed=self.seed * self.lanes + lane,  # or all lanes would come past short items at the same time
                speed=data.augment.speed_factor if data.augment.speed else None,
                stream_window=window_of(data.window, self.lanes) if self.streams else None,
                on_too_long=lambda item, cost: drop(item, cost, lane),
            )

        return one(0) if self.lanes == 1 else ShardedStream([one(lane) for lane in range(self.lanes)])

    def _stream(self, epoch: int, lane: int = 0) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) of all sources, interleaved until every one has ended."""
        self._by_lane.setdefault(lane, DropCounter())
        shares = self._shares()
        open_ = [(self._usable(n, s, lane, epoch), shares[n]) for n, s in enumerate(self.data.train)]
        generator = rng(self.seed, "stream", epoch * self.lanes + lane)
        while open_:
            pick = 0
            if len(open_) > 1:
                weights = [w for _, w in open_]
                pick = int(generator.choice(len(open_), p=[w / sum(weights) for w in weights]))
            found = next(open_[pick][0], None)
            if found is None:
                open_.pop(pick)
            else:
                yield found
        self._ended.add(lane)
        if len(self._ended) == len(self._by_lane):
            least = 0 if len(self._ended) == self.lanes else STREAM_TRUST  # the other lanes are other processes'
            self.dropped.check(max(self._read.total(), least), self.data.max_bad, "data.train")

    def _shares(self) -> list[float]:
        """How often each source comes by: as `weight` says, else by size, so that all end about together; all alike
        where a stream's size is unknown."""
        if all(s.weight is None for s in self.data.train):
            known = {n: s.expected() for n, s in enumerate(self.data.train) if s.streaming}
            if None not in known.values():
                sizes = [known[n] if n in known else len(self._listed(s)) for n, s in enumerate(self.data.train)]
                return [s.repeat * max(size or 0, 1) for s, size in zip(self.data.train, sizes)]
        return [s.weight or 1.0 for s in self.data.train]

    def _listed(self, source: Source) -> list[Cut | UnusableRecord]:
        """The records of a source that is no stream but is read beside one."""
        if id(source) not in self._lists:
            self._lists[id(source)] = list(source.cuts())
        return self._lists[id(source)]

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        """Count in `dropped` what other processes read of a stream; `gather` gives every process's value to all."""
        for part in gather(self._by_lane):
            for lane, dropped in part.items():
                if lane not in self._by_lane:
                    self._by_lane[lane] = dropped
                    self.dropped.merge(dropped)

    def _usable(self, number: int, source: Source, lane: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """The usable cuts of a source of a stream's epoch, read as often as its `repeat` says, with the number of the
        copy; a fraction takes another part of the records in each epoch."""
        passes = math.ceil(source.repeat)
        for copy in range(passes):
            ordered = source.in_epoch(self.seed, epoch * passes + copy) if source.streaming else source
            for cut in self._passed(number, ordered, lane):
                if source.repeat == passes or copy < self._copies(number, source.repeat, cut, epoch):
                    yield cut, copy

    def _copies(self, number: int, repeat: float, cut: Cut, epoch: int) -> int:
        """As in `Mix`: exact over the epochs, for every record."""
        phase = rng(self.seed, "mix", number, cut.id).random()
        return math.floor(repeat * (epoch + 1) + phase) - math.floor(repeat * epoch + phase)

    def _passed(self, number: int, source: Source, lane: int) -> Iterator[Cut]:
        """The usable cuts of a lane. What is dropped counts where the stream is read for the first time: the dry run
        and later epochs come past the same records again."""
        for place, record in enumerate(records_of_shard(source, lane, self.lanes, self._listed), 1):
            new = place > self._read[number, lane]
            self._read[number, lane] = max(self._read[number, lane], place)
            fresh = DropCounter()
            found = filter_cuts([record], self.data, self.drop_reason, fresh)
            found = found if self._held is None else self._held.rest(found)
            yield from filter_cuts(self._in_pieces(found), self.data, lambda cut: None, fresh, self._refusal)
            if new and fresh.reasons:
                self.dropped.merge(fresh)
                self._by_lane[lane].merge(fresh)
            if new and isinstance(record, UnusableRecord):
                self.dropped.check(max(self._read.total(), STREAM_TRUST), self.data.max_bad, "data.train")

    def fingerprint(self, plan: BatchSampler | None = None) -> str:
        """Changes when the order of training items would change; with `plan` also when items cost something else (a
        changed prompt or tokenizer) and so fall into other batches."""
        data = self.data
        digest = hashlib.blake2b(digest_size=16)
        facts: list[Any] = [
            data.layout,
            data.batch_tokens,
            data.max_items,
            data.buckets,
            data.window,
            data.augment.speed,
            self.seed,
            data.language_temperature,
            [(s.repeat, s.weight) for s in data.train],
        ]
        if data.replay is not None:
            facts.append([data.replay.share, [(s.repeat, s.weight) for s in data.replay.sources]])
        digest.update(json.dumps(facts).encode())
        for pool in [*self.pools, *(self.replay.pools if self.replay else [])]:
            for cut in pool.cuts:
                digest.update(f"{cut.id}\0{cut.duration:.6f}\0".encode())
        if plan is not None and not self.streams:
            for items in plan.epoch(0):
                digest.update(" ".join(i.cut.id for i in items).encode() + b"\n")
        if self.streams:
            held = {} if self._held is None else {n: s.model_dump(mode="json") for n, s in self._held.sets.items()}
            digest.update(json.dumps([self.lanes, held, *(s.model_dump(mode="json") for s in data.train)]).encode())
            digest.update("".join(s.contents() for s in data.train if s.streaming).encode())
        return digest.hexdigest()


def unlimited(data: Data) -> Data:
    """The section without `max_seconds`, for tasks that take records of any length."""
    return data.model_copy(update={"max_seconds": math.inf})


def eval_plan(
    source: Source,
    name: str,
    data: Data,
    refuse: Callable[[Cut], str | None],
    processor: Processor,
    refusal: DropReason | None = None,
) -> tuple[BatchSampler, DropCounter]:
    """The plan of one evaluation set: each record once, in batches by length. Records are left out (and counted) only
    when they are broken, refused, or longer than the model or `data.max_seconds` takes; never for `batch_tokens`."""
    dropped = DropCounter()
    longest = min(data.max_seconds, processor.max_seconds or data.max_seconds)
    pools = listed([source], data.model_copy(update={"max_seconds": longest}), refuse, dropped, name, refusal)
    cost = processor.tokens
    most = max(cost(c, c.duration) for c in pools[0].cuts)
    plan = BatchSampler(
        lambda epoch: ((c, 0) for c in pools[0].cuts),
        cost,
        layout=data.layout or "padded",
        budget=max(data.eval_batch_tokens or data.batch_tokens, most),
        max_items=data.max_items,
        buckets=data.buckets,
        window=data.window,
        seed=0,
    )
    return plan, dropped
