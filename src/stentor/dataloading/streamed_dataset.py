"""Training data set that is read during training: streams, sources with an index, and listed ones with them."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any

from stentor.data.cut import Cut, UnusableRecord, language_of
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import LOOK_AHEAD
from stentor.dataloading.indexed_mix import IndexedMix, ListedRecords, ReadRecord, Records
from stentor.dataloading.item_stream import ItemStream, LaneItems, MixedItems, ReplayedItems
from stentor.dataloading.mixing import DropCounter, DropReason, Language, filter_cuts, read_pools
from stentor.dataloading.stream_shards import WINDOW, ShardedStream, common_num_shards, shard_window, share_of
from stentor.dataloading.train_dataset import Sampler, TrainDataset
from stentor.errors import ConfigError
from stentor.sources.base import Source, divisible_shards
from stentor.sources.held_out import HeldOut, StreamHoldOut

STREAM_TEXTS = 10_000
"""Records of each source that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


@dataclass
class LaneCounts:
    """Counts of a lane, each record where it was read for the first time."""

    num_read: Counter[int] = field(default_factory=Counter)
    """Most records that were read of a pass of a stream, by its number, or of an epoch of the mix, by the number of
    streams + the epoch."""
    dropped: DropCounter = field(default_factory=DropCounter)

    def as_plain(self) -> list[Any]:
        """For JSON."""
        dropped = self.dropped
        facts = {**dropped.facts(), "seconds": dropped.seconds, "unwanted": dict(dropped.unwanted)}
        return [list(self.num_read.items()), facts]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> LaneCounts:
        num_read, facts, *_ = plain  # older runs have a third entry
        counts = cls(Counter(dict(num_read)), DropCounter(Counter(facts["dropped"]), facts["seconds"]))
        counts.dropped.named.update(facts["named"])
        counts.dropped.unwanted.update(facts.get("unwanted", {"too_long": facts["dropped"].get("too_long", 0)}))
        return counts


class StreamedDataset(TrainDataset):
    """Sources that are read during training, in lanes, each shuffled and batched in windows: streams, and the mix of
    all others. Where there is no stream no record is in memory: each epoch is a permutation that needs no list.
    """

    streams = True

    def _open(self, held_out: dict[str, HeldOut]) -> None:
        data = self.data
        self.streamed = [source for source in data.train if source.streaming]
        self._lane_counts: dict[int, LaneCounts] = {}
        self._restored: dict[int, LaneCounts] = {}  # of lanes that this process has not come to
        self._finished_shards: set[int] = set()
        self._model_drop_reasons: list[DropReason] = []
        self._held_out: StreamHoldOut | None = None
        self._contents: list[str] = []
        self._texts: list[str] | None = None
        self._languages = self._languages_of_streams()
        total = sum(map(Counter, self._languages), Counter[Language]())
        self.mix = IndexedMix(list(self._mixed_sources()), data.language_temperature, self.seed, total)
        most = max(1, self.mix.num_records // WINDOW)
        self.num_shards = (
            common_num_shards(self.streamed, data.lanes) if self.streamed else divisible_shards(most, data.lanes)
        )
        self._introduce()
        if held_out:
            self._held_out = StreamHoldOut(held_out)
            self._held_out.fill([*self._streams_ahead(), *self._mix_ahead()])

    def _languages_of_streams(self) -> list[dict[Language, float]]:
        """Seconds of the languages of each stream; empty where not needed. Raises ConfigError."""
        data = self.data
        languages: list[dict[Language, float]] = []
        for number, source in enumerate(data.train):
            if not source.streaming:
                continue
            if source.max_hours is not None and not source.takes_hours:
                raise ConfigError(
                    f"data.train.{number}.max_hours: only a stream of shards whose list has the seconds of each shard "
                    "supports it, and not with `where`, `exclude`, `skip` or `limit`. Use `limit`, `weight` or "
                    "`repeat`."
                )
            seconds = source.language_seconds() if data.language_temperature is not None else {}
            if seconds is None:
                raise ConfigError(
                    f"`data.language_temperature` needs the hours of each language, and those of data.train.{number}, "
                    "a stream, are unknown. They are known of shards, read whole, whose folder has a summary.json with "
                    "`languages` (`stentor prepare tokens` writes it), or whose list has seconds and that are all of "
                    "the source's `language`. Or use `weight` or `repeat`."
                )
            languages.append(seconds)
        return languages

    def _mixed_sources(self) -> Iterator[tuple[Source, Records]]:
        """The sources that are no streams: those without an index are listed."""
        for source in self.data.train:
            if source.streaming:
                continue
            if (index := source.index()) is not None:
                self._contents.append(index.content)
                yield source, index
            else:
                unlimited = source.model_copy(update={"max_hours": None})  # the mix takes its part
                (pool,) = read_pools([unlimited], self.data, self.dropped, "data.train", self.drop_reason)
                self._contents += [f"{cut.id}\0{cut.duration:.6f}" for cut in pool.cuts]
                yield source, ListedRecords(pool.cuts)

    def _introduce(self) -> None:
        if self.streamed:
            self.say(
                "The training data is a stream of unknown length: items are shuffled and batched in windows of "
                f"{self.data.window}; a resumed run continues in the middle of sources that support it (`shards`), and "
                "reads the metadata of others again up to its place, which requires the same order as before."
            )
        else:
            self.say(
                f"The training data has an index: {self.records:,} records, {self.hours:.2f} h. They are read in "
                f"windows of {self.data.window} when their batches are needed; dropped records are counted then."
            )
        if (world := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            share = share_of(self.num_shards, world)
            self.say(
                f"The {'stream' if self.streamed else 'data'} is read in {self.num_shards} lanes: each of the {world} "
                f"processes reads " + (f"1/{round(1 / share)} of it." if share < 1 else "all of it (see `data.lanes`).")
            )

    def _usable(self, records: Iterator[Cut | UnusableRecord]) -> Iterator[Cut]:
        return filter_cuts(records, self.data, DropCounter(), self.drop_reason)

    def _streams_ahead(self) -> list[Iterator[Cut]]:
        """The first usable records of each stream."""
        return [self._usable(source.cuts()) for source in self.streamed]

    def _mix_ahead(self) -> list[Iterator[Cut]]:
        """Random usable records of each source of the mix."""
        return [self._usable(self.mix.sample(number)) for number in range(len(self.mix.sources))]

    def _drop(self, drop_reason: DropReason) -> None:
        self._model_drop_reasons.append(drop_reason)
        super()._drop(drop_reason)

    def cuts(self) -> Iterator[Cut]:
        for cuts in (*self._streams_ahead(), *self._mix_ahead()):
            yield from islice(cuts, STREAM_TEXTS)
        yield from super().cuts()

    def texts(self) -> Iterator[str]:
        if self._texts is None:  # each alphabet and tokenizer asks for them
            self._texts = list(super().texts())
        return iter(self._texts)

    def audio_sample(self, size: int) -> Sequence[Cut]:
        samples = self._mix_ahead()
        return [cut for cuts in samples for cut in islice(cuts, -(-size // len(samples)))]

    @property
    def records(self) -> int:
        return 0 if self.streamed else self.mix.num_records

    @property
    def hours(self) -> float:
        return 0.0 if self.streamed else self.mix.hours

    def _plan(self, cost: Callable[[Cut, float], int]) -> ShardedStream:
        window = shard_window(self.data.window, self.num_shards) if self.streamed else self.data.window
        return ShardedStream(self._samplers(cost, window), self)

    def statistics(self, sampler: Sampler) -> dict[str, float] | None:
        """As `BatchSampler.statistics`, of the first window of the first lane and multiplied to an epoch."""
        assert isinstance(sampler, ShardedStream)
        if self.streamed:
            return None
        mixed = self._mixed(0, 0, None)
        items = (
            mixed if self.replay is None else ReplayedItems(lambda place: mixed, self.replay, (self.seed, "replay", 0))
        )
        facts = sampler.samplers[0].statistics(next(sampler.samplers[0].windows(items, 0)))
        ((_, num_read, _, num_cuts),) = mixed.place()[1]
        share = self.mix.length(0) / max(1, num_read + bool(num_cuts))
        return {key: value if key == "fill" else round(value * share) for key, value in facts.items()}

    def _epoch(self, shard: int, epoch: int) -> ItemStream:
        return self.items(shard, epoch)

    def items(self, shard: int, epoch: int, place: Any = None) -> ItemStream:
        """The items of a lane's epoch, from a place of theirs on."""
        if self.replay is None:
            return self._mixed(shard, epoch, place)
        key = (self.seed, "replay", epoch * self.num_shards + shard)
        return ReplayedItems(partial(self._mixed, shard, epoch), self.replay, key, place)

    def _mixed(self, shard: int, epoch: int, place: Any) -> MixedItems:
        """(cut, copy) of all sources."""
        self._counted(shard)
        streams = [partial(self._items_of_stream, number, shard, epoch) for number in range(len(self.streamed))]
        if self.mix.sources:
            streams.append(partial(self._items_of_mix, shard, epoch))
        key = (self.seed, "stream", epoch * self.num_shards + shard)
        return MixedItems(streams, self._sampling_weights(), key, partial(self._finish, shard), place)

    def _finish(self, shard: int) -> None:
        """At the end of a lane's epoch: see whether too much of what was read is broken."""
        self._finished_shards.add(shard)
        if len(self._finished_shards) == len(self._lane_counts):
            # Where other processes read the other shards, this one's records are too few to judge by.
            least = 0 if len(self._finished_shards) == self.num_shards else STREAM_TRUST
            self.dropped.check(max(self._num_read(), least), self.data.max_bad, "data.train")

    def _num_read(self) -> int:
        return sum(counts.num_read.total() for counts in self._lane_counts.values())

    def _counted(self, shard: int) -> LaneCounts:
        """Counts of a lane by this process, and before it by those from whose checkpoint it resumes."""
        if shard not in self._lane_counts:
            self._lane_counts[shard] = self._restored.pop(shard, LaneCounts())
            self.dropped.merge(self._lane_counts[shard].dropped)
        return self._lane_counts[shard]

    def counts(self, shard: int) -> Any:
        """Counts of a lane, as plain data for JSON."""
        return (self._lane_counts.get(shard) or self._restored.get(shard) or LaneCounts()).as_plain()

    def restore_counts(self, shard: int, counts: Any) -> None:
        """Count on from there."""
        self._restored[shard] = LaneCounts.from_plain(counts)

    def _sampling_weights(self) -> list[float]:
        """Weight of each stream, and of the mix, in the order: `weight`, else by size, so that all end at about the
        same time; equal weights where a stream's size is unknown."""
        sizes = [source.expected() for source in self.streamed]
        if None in sizes or any(source.weight is not None for source in self.data.train):
            mixed = sum(source.weight or 1.0 for source, _ in self.mix.sources)
            return [*(source.weight or 1.0 for source in self.streamed), *([mixed] if mixed else [])]
        weights = []
        for source, size, seconds in zip(self.streamed, sizes, self._languages):
            repeated = sum(self.mix.gains.get(name, 1.0) * amount for name, amount in seconds.items())
            gain = repeated / sum(seconds.values()) if repeated else 1.0
            weights.append(source.repeat * gain * max(size or 0, 1))
        return [*weights, *([float(max(self.mix.length(0), 1))] if self.mix.sources else [])]

    def _items_of_stream(self, number: int, shard: int, epoch: int, place: Any) -> LaneItems:
        """(cut, copy) of the usable records of a stream, read as often as its `repeat` and the languages say; a
        fraction takes another part of the records in each epoch."""
        source = self.streamed[number]
        gains = {name: self.mix.gains[name] for name, seconds in self._languages[number].items() if seconds}
        highest = max(gains.values(), default=1.0)
        passes = math.ceil(source.repeat * highest)

        def opened(copy: int, cursor: Any) -> tuple[Iterator[ReadRecord], Callable[[], Any]]:
            lane = source.lane(shard, self.num_shards, (self.seed, epoch * passes + copy), cursor)
            return (ReadRecord(record, copy, True) for record in lane.cuts()), lane.cursor

        def usable(record: ReadRecord, num_read: int) -> Iterator[Cut]:
            for cut in self._usable_cuts(shard, number, record, num_read):
                # The source counts as one language where it does not know that of a record.
                factor = source.repeat * (gains.get(language_of(cut), highest) if gains else 1.0)
                if factor == passes or record.copy < self._num_copies(number, factor, cut, epoch):
                    yield cut

        return LaneItems(passes, opened, usable, place)

    def _items_of_mix(self, shard: int, epoch: int, place: Any) -> LaneItems:
        """(cut, copy) of the usable records of the mix."""
        positions = range(shard, self.mix.length(epoch), self.num_shards)

        def opened(copy: int, cursor: Any) -> tuple[Iterator[ReadRecord], Callable[[], Any]]:
            start = cursor or 0
            return self.mix.read(epoch, positions[start:], self.data.window), count(start + 1).__next__

        return LaneItems(1, opened, partial(self._usable_cuts, shard, len(self.streamed) + epoch), place)

    def _num_copies(self, number: int, repeat: float, cut: Cut, epoch: int) -> int:
        """As in `Mix`: exact over the epochs, for every record."""
        phase = rng(self.seed, "mix", number, cut.id).random()
        return math.floor(repeat * (epoch + 1) + phase) - math.floor(repeat * epoch + phase)

    def _usable_cuts(self, shard: int, number: int, read: ReadRecord, num_read: int) -> Iterator[Cut]:
        """The usable cuts of a record, the `num_read`-th of what a lane counts under `number`. What is dropped counts
        where it is read for the first time: the dry run and later epochs come past the same records again."""
        counts, dropped = self._counted(shard), DropCounter()
        is_new = read.is_new and num_read > counts.num_read[number]
        counts.num_read[number] = max(counts.num_read[number], num_read)
        cuts = filter_cuts([read.record], self.data, dropped, self.drop_reason)
        if self._held_out is not None:
            cuts = self._held_out.rest(cuts)
        yield from filter_cuts(self._segments(cuts), self.data, dropped, *self._model_drop_reasons)
        if is_new and dropped.reasons:
            self.dropped.merge(dropped)
            counts.dropped.merge(dropped)
        if is_new and dropped.bad:
            self.dropped.check(max(self._num_read(), STREAM_TRUST), self.data.max_bad, "data.train")

    def collect(self, gather: Callable[[Any], list[Any]]) -> None:
        newest = dict(self._restored)  # lanes that no process has read since
        for lanes in gather(self._lane_counts):
            for shard, counts in lanes.items():
                if shard not in newest or counts.num_read.total() > newest[shard].num_read.total():
                    newest[shard] = counts
        for shard, counts in newest.items():
            if shard not in self._lane_counts:
                self._lane_counts[shard] = counts
                self.dropped.merge(counts.dropped)

    def _fingerprint_parts(self, sampler: Sampler | None) -> Iterator[str]:
        held_out = {} if self._held_out is None else self._held_out.sets
        sections = [source.model_dump(mode="json", exclude={"max_hours"}) for source in self.streamed]
        yield json.dumps([self.num_shards, {n: s.model_dump(mode="json") for n, s in held_out.items()}, *sections])
        yield "".join(source.contents() for source in self.streamed)
        yield "".join(json.dumps(list(seconds.items())) for seconds in self._languages if seconds)
        if self.mix.sources:
            yield json.dumps(["mix", *([s.language, s.channel, s.max_hours] for s, _ in self.mix.sources)])
            yield "\n".join(self._contents)
        assert sampler is None or isinstance(sampler, ShardedStream)
        for items in () if sampler is None or self.streamed else islice(sampler.samplers[0].epoch(0), LOOK_AHEAD):
            yield " ".join(item.cut.id for item in items) + "\n"
