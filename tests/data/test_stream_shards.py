"""Streams that several processes read together: the plan is the same for any number of them, the reading is shared."""

import json
from collections import Counter
from itertools import islice
from math import gcd

import pytest

from data_plans import dataset, facts, ids, in_turn, price, starts_at
from stentor.data.record_index import build_index
from stentor.dataloading.stream_shards import share_of
from stentor.errors import ConfigError, DataError
from stentor.sources.base import Source, divisible_shards
from stentor.sources.manifest import Jsonl


class Parted(Source):
    """A stream of several parts; remembers which were read."""

    streaming = True
    _parts: list
    _read: Counter
    _seconds: dict | None = None
    _lane: tuple = (0, 1)

    def language_seconds(self):
        return self._seconds

    def num_shards(self, most):
        return divisible_shards(len(self._parts), most)

    def lane(self, number, num_lanes, order, cursor=None):
        copy = self.model_copy()
        copy._lane = (number, num_lanes)
        return copy

    def records(self):
        number, num_lanes = self._lane
        for part in range(number, len(self._parts), num_lanes):
            self._read[part] += 1
            yield from self._parts[part]


@pytest.fixture
def parted(clips):
    def make(parts=8, each=30, prefix="p", **fields):
        stream = Parted(type="given", **fields)
        stream._parts = [clips(each, f"{prefix}{n}-") for n in range(parts)]
        stream._read = Counter()
        return stream

    return make


@pytest.fixture
def clips(cut):
    return lambda count, prefix="c": [cut(f"{prefix}{i}", 1 + i % 5, f"text {prefix}{i}") for i in range(count)]


def plan(data, *sources, **more):
    return dataset(data(*sources, **{"window": 64, "batch_tokens": 100, **more})).batch_sampler(price)


def test_lanes_are_equal_or_nearly_so():
    assert [divisible_shards(n, 8) for n in (1, 2, 3, 4, 6, 8, 16, 24, 43, 90)] == [1, 2, 1, 4, 2, 8, 8, 8, 4, 8]
    assert divisible_shards(9, 12) == 3 and divisible_shards(5, 1) == 1


def test_every_record_comes_once_an_epoch_and_then_again(parted, data):
    sampler = plan(data, parted())
    everyone = sorted(f"p{n}-{i}" for n in range(8) for i in range(30))
    assert sorted(ids(sampler.epoch(0))) == everyone
    batches = list(islice(sampler.batches(), 400))
    assert [p.index for p in batches] == list(range(400))
    for epoch in (0, 1):
        seen = [i.cut.id for p in batches for i in p.items if i.epoch == epoch]
        assert sorted(seen) == everyone
    first, second = ([[i.cut.id for i in b] for b in sampler.epoch(e)] for e in (0, 1))
    assert first != second


def test_lanes_do_not_march_in_step(parted, data):
    """Their windows are shuffled apart: or all would come to their longest items in the same step."""
    longest = [max(i.seconds for i in p.items) for p in islice(plan(data, parted()).batches(), 8 * 6)]
    rounds = [longest[k : k + 8] for k in range(0, len(longest), 8)]
    assert sum(len(set(r)) > 1 for r in rounds) >= 5


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 16])
def test_the_plan_is_the_same_for_any_number_of_processes(parted, data, world):
    dealt = [facts(plan(data, parted()).shard(rank, world), 240 // world) for rank in range(world)]
    assert in_turn(dealt) == facts(plan(data, parted()).batches(), 240)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 16])
def test_a_process_reads_its_share_and_no_more(parted, data, world):
    for rank in range(world):
        source = parted()
        sampler = plan(data, source)
        sampler.largest(rank=rank)  # the dry run
        list(islice(sampler.shard(rank, world), 64))
        step = gcd(8, world)
        assert set(source._read) == {n for n in range(8) if n % step == rank % step}
        assert len(source._read) / 8 == share_of(8, world)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 4), (4, 1), (8, 3), (3, 8)])
@pytest.mark.parametrize("taken", [1, 5, 60])
def test_resuming_is_exact_for_another_number_of_processes(parted, data, before, after, taken):
    """And reads nothing of the epochs that are over."""
    expected = facts(plan(data, parted()).batches(), taken * before + after * 10)
    samplers = [plan(data, parted()) for _ in range(before)]
    for rank in range(before):
        list(islice(samplers[rank].shard(rank, before), taken + 7))  # read ahead of what was taken
    index = taken * before
    starts = starts_at(index, *samplers)
    dealt = []
    for rank in range(after):
        source = parted()
        later = plan(data, source)
        later.resume_at(starts)
        # The trainer knows the place of its own last batch alone.
        dealt.append(facts(later.shard(rank, after, 1, epoch=0, batch_in_epoch=3, index=index - 1), 10))
        assert max(source._read.values()) <= 3, "the epoch that it is in, and the next ones"
    assert in_turn(dealt) == expected[index:]


def test_listed_sources_are_dealt_beside_a_stream(parted, source, clips, data):
    listed = source(clips(45, "l"))
    section = data(parted(), listed, window=64, batch_tokens=100)
    sampler = dataset(section).batch_sampler(price)
    assert len(sampler.samplers) == 8
    seen = Counter(ids(sampler.epoch(0)))
    assert seen == Counter([f"p{n}-{i}" for n in range(8) for i in range(30)] + [f"l{i}" for i in range(45)])


def test_streams_share_the_lanes_that_all_of_them_have(parted, source, clips, data):
    assert len(dataset(data(parted(8), parted(4, prefix="q"))).batch_sampler(price).samplers) == 4
    alone = dataset(data(parted(8), source(clips(9), stream=True))).batch_sampler(price)
    assert len(alone.samplers) == 1


@pytest.fixture
def corpora(parted, source, cut, tmp_path):
    """Makes the sources of one mix: a stream of two languages, an index, and a list; `listed`: all as lists."""

    def clips(prefix, count, *languages):
        return [cut(f"{prefix}{i}", 1.0 + i % 3, language=languages[i % len(languages)]) for i in range(count)]

    of_stream = [clips(f"p{n}-", 12, "en", "de") for n in range(8)]
    of_index, of_list = clips("x", 60, "en", "fr"), clips("l", 15, "de")
    path = tmp_path / "indexed.jsonl"
    with path.open("w") as file:
        for c in of_index:
            (tmp_path / f"{c.id}.wav").touch()
            language = c.supervisions[0].language
            record = {"id": c.id, "audio_path": f"{c.id}.wav", "duration": c.duration, "language": language}
            file.write(json.dumps({**record, "text": "one"}) + "\n")
    build_index(path)

    def make(listed=False, **fields):
        if listed:
            return [source([c for part in of_stream for c in part]), source(of_index), source(of_list)]
        stream = parted(8)
        stream._parts, stream._seconds = of_stream, Counter()
        for c in (c for part in of_stream for c in part):
            stream._seconds[c.supervisions[0].language] += c.duration
        return [stream, Jsonl(type="jsonl", path=path, **fields), source(of_list)]

    return make


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_languages_are_balanced_over_streams_indexes_and_lists(corpora, data, temperature):
    """As often as in lists of all of it, where nothing is left to chance over some epochs but a copy of each record."""
    counts = []
    for listed in (False, True):
        train = dataset(data(*corpora(listed), window=64, batch_tokens=100, language_temperature=temperature))
        sampler = train.batch_sampler(price)
        counts.append(Counter(name for epoch in range(6) for name in ids(sampler.epoch(epoch))))
    assert counts[0].keys() == counts[1].keys() and len(counts[0]) == 96 + 60 + 15
    assert all(abs(count - counts[1][name]) <= 1 for name, count in counts[0].items())
    assert counts[0].total() == pytest.approx(counts[1].total(), rel=0.01)
    assert (max(counts[0].values()) == 6) == (temperature == 1.0)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("taken", [3, 50])
def test_a_mix_of_all_kinds_is_equal_on_any_ranks_and_goes_on(corpora, data, world, taken):
    def plan():
        more = {"window": 64, "batch_tokens": 100, "language_temperature": 0.3}
        return dataset(data(*corpora(max_hours=0.02), **more)).batch_sampler(price)

    expected, index = facts(plan().batches(), world * (taken + 60)), world * taken
    ranks = [plan() for _ in range(world)]
    assert in_turn([facts(one.shard(rank, world), taken) for rank, one in enumerate(ranks)]) == expected[:index]
    later = plan()
    later.resume_at(starts_at(index, *ranks))
    assert facts(later.shard(0, 1, 1, index=index - 1), world * 60) == expected[index:]


def test_a_stream_of_unknown_languages_is_not_balanced(parted, source, clips, data):
    listed = source(clips(9, "l"))
    with pytest.raises(ConfigError, match=r"needs the hours of each language, and those of data.train.1, .* unknown"):
        dataset(data(listed, parted(), language_temperature=0.5))
    with pytest.raises(ConfigError, match=r"data.train.0.max_hours: only of a stream of shards"):
        dataset(data(parted(max_hours=1.0)))


def test_what_is_dropped_counts_over_all_processes(parted, cut, data):
    def make(rank):
        source = parted(4)
        for n in range(4):
            source._parts[n] += [cut(f"long{n}", 99), cut(f"wide{n}", 20)]
        streamed = dataset(data(source, window=16, batch_tokens=100, max_seconds=30))
        list(islice(streamed.batch_sampler(price).shard(rank, 2), 60))
        return streamed

    ranks = [make(0), make(1)]
    assert ranks[0].dropped.reasons == {"too_long": 2, "too_long_for_batch": 2}
    parts = [r._lane_counts for r in ranks]
    ranks[0].collect(lambda _: parts)
    assert ranks[0].dropped.reasons == {"too_long": 4, "too_long_for_batch": 4}


def test_a_lane_without_records_is_refused(parted, data):
    source = parted(2)
    source._parts[1] = []
    with pytest.raises(DataError, match=r"lane 2 of the 2 .* has no usable record. Set `data.lanes: 1`"):
        list(islice(plan(data, source).batches(), 3))


@pytest.mark.parametrize("worlds", [(2, 4, 2), (4, 4, 1)])
def test_going_on_a_second_time_begins_at_the_newest_place(parted, data, worlds):
    """Though each process was told the places of lanes that others read."""
    starts, index = [], 0
    expected = facts(plan(data, parted(each=60)).batches(), 400)
    for world in worlds:
        ranks = [plan(data, parted(each=60)) for _ in range(world)]
        dealt = []
        for rank, sampler in enumerate(ranks):
            sampler.resume_at(starts)
            dealt.append(facts(sampler.shard(rank, world, index=index), 96 // world))
        assert in_turn(dealt) == expected[index : index + 96]
        index += 96
        starts = starts_at(index, *ranks)
    last = plan(data, parted(each=60))
    last.resume_at(starts)
    assert [place[0].first for _, place in sorted(last.window_starts.items())] == [
        max(first for shard, (first, *_) in starts if shard == lane) for lane in range(8)
    ]
    assert all(0 <= index // 8 - place[0].first < 64 for place in last.window_starts.values())


@pytest.mark.parametrize("taken", [3, 17, 40, 101])
def test_everything_that_a_stream_is_made_of_goes_on_at_its_place(parted, source, cut, data, taken):
    """Repeats, a fraction of them, weights, replayed records, segments and what was dropped."""

    def thirds(record):
        return [cut(f"{record.id}/{n}", record.duration / 3) for n in range(3)]

    def make():
        first, second = parted(8, each=11, repeat=1.5), parted(8, each=7, prefix="q")
        first._parts[2].insert(4, cut("short", 0.01))
        second._parts[5].insert(3, cut("wide", 40.0))
        listed = source([cut(f"l{i}", 2.0) for i in range(30)])
        replay = {"share": 0.3, "sources": [source([cut(f"r{i}", 1.0) for i in range(9)])]}
        section = data(first, second, listed, replay=replay, window=64, batch_tokens=100, min_seconds=0.1)
        train = dataset(section, segments=thirds)
        return train, train.batch_sampler(price)

    straight, sampler = make()
    expected = facts(sampler.batches(), taken + 150)
    _, first = make()
    list(islice(first.batches(), taken + 9))  # read ahead of what was taken
    after, later = make()
    later.resume_at(starts_at(taken, first))
    assert facts(later.shard(0, 1, 1, index=taken - 1), 150) == expected[taken:]
    after.collect(lambda counts: [counts])
    assert after.dropped.reasons == straight.dropped.reasons != {}
    assert after.dropped.named == straight.dropped.named
