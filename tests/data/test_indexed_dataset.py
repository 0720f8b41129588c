"""Data sets with an index: what is written, the order by its definition in memory, places, mixing, what is dropped."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from data_plans import dataset, facts, in_turn, price, starts_at
from stentor.data.cut import UnusableRecord, audio_path, cut_from_record
from stentor.data.record_index import RecordIndex, build_index, index_folder
from stentor.data.seeding import ROUNDS, Permutation, rng
from stentor.dataloading.batch_sampler import BatchLimits
from stentor.dataloading.streamed_dataset import StreamedDataset
from stentor.dataloading.train_dataset import ListedDataset
from stentor.errors import DataError
from stentor.sources.manifest import Jsonl


def records_of(count, prefix="r", language=None, **more):
    """Plain records of 1 to 6 seconds."""
    return [
        {
            "id": f"{prefix}{i}",
            "audio_path": f"{prefix}{i}.wav",
            "duration": 1 + i * 7 % 50 / 10,
            "text": f"text {i}",
            **({"language": language} if language else {}),
            **more,
        }
        for i in range(count)
    ]


@pytest.fixture
def manifest(tmp_path):
    """Writes records, or lines, as a manifest with its index."""

    def write(records, name="train.jsonl", index=True):
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
        if index:
            build_index(path)
        return path

    return write


def source(path, **fields):
    return Jsonl(type="jsonl", path=path, **fields)


# The index ------------------------------------------------------------------------------------------------------------


def test_a_record_costs_sixteen_bytes_and_gives_its_cut(manifest):
    records = [*records_of(5, "a", "de"), *records_of(4, "b", "English"), *records_of(3, "c")]
    path = manifest([*records[::2], "", *records[1::2]])
    index = RecordIndex(path)
    assert index.records.nbytes == 16 * 12
    assert {name: part.count for name, part in index.parts.items()} == {"": 3, "de": 5, "en": 4}
    assert index.seconds.sum() == pytest.approx(sum(r["duration"] for r in records))
    by_language = {name: index.cuts(np.arange(p.first, p.first + p.count)) for name, p in index.parts.items()}
    assert {k: {c.id for c in cuts} for k, cuts in by_language.items()} == {
        "": {f"c{i}" for i in range(3)},
        "de": {f"a{i}" for i in range(5)},
        "en": {f"b{i}" for i in range(4)},
    }
    (cut,) = index.cuts(np.array([index.parts["de"].first]))
    assert cut == cut_from_record(records[0], path.parent, "")


def test_an_index_of_paths_from_another_folder(manifest, tmp_path):
    path, folder = manifest(records_of(3), index=False), tmp_path / "elsewhere"
    moved = source(path, audio_folder=folder)
    assert moved.index() is None
    build_index(path, moved.record_filter())
    [cut] = moved.index().cuts(np.array([1]))
    assert audio_path(cut) == str(folder / "r1.wav") and source(path).index() is None


def test_an_index_of_another_manifest_is_refused(manifest):
    path = manifest(records_of(30))
    with path.open("a") as file:
        file.write(json.dumps(records_of(31)[-1]) + "\n")
    with pytest.raises(DataError, match=r"has changed since its index .* run `stentor prepare index .*train.jsonl`"):
        source(path).index()
    build_index(path)
    assert len(source(path).index()) == 31
    (index_folder(path) / "records.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot be read .* or delete that folder to list"):
        source(path).index()


def test_a_copy_of_both_is_the_same_index(manifest, tmp_path):
    path = manifest(records_of(30))
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes())
    index_folder(path).rename(index_folder(other / path.name))
    assert len(source(other / path.name).index()) == 30


SELECTIONS = [
    ({"limit": 31}, lambda r, n: n < 31),
    ({"skip": 20, "limit": 40}, lambda r, n: 20 <= n < 60),
    ({"where": {"language": ["de", "en"]}}, lambda r, n: r.get("language") in ("de", "en")),
    ({"where": {"language": "sv"}, "language": "sv"}, lambda r, n: "language" not in r),
    ({"exclude": {"speaker": "s3"}, "skip": 4}, lambda r, n: r["speaker"] != "s3" and n > 4),
]


@pytest.mark.parametrize(("fields", "chosen"), SELECTIONS)
def test_a_selection_has_an_index_of_its_own(manifest, data, fields, chosen, tmp_path):
    """The plan is that of a manifest of these records alone; without such an index they are listed."""
    records = [*records_of(60, "a", "de"), *records_of(40, "b", "en"), *records_of(20, "c")]
    records = [{**records[i], "speaker": f"s{n % 5}"} for n, i in enumerate(rng("mixed").permutation(120))]
    for record in records:
        (tmp_path / record["audio_path"]).touch()
    path, some = manifest(records), source(manifest(records, "some.jsonl"), **fields)
    assert some.index() is None and type(dataset(data(some))) is ListedDataset
    listed = [cut.id for cut in some.cuts()]
    build_index(some.path, some.record_filter())
    assert type(dataset(data(some))) is StreamedDataset and len(source(some.path).index()) == 120
    alone = manifest([r for n, r in enumerate(records) if chosen(r, n)], "alone.jsonl")
    plans = [
        facts(dataset(data(s, window=25, batch_tokens=200)).batch_sampler(price).batches(), 60)
        for s in (some, source(alone, language=fields.get("language")), source(path))
    ]
    assert plans[0] == plans[1] != plans[2]
    assert sorted({name for _, items in plans[0] for name, *_ in items}) == sorted(listed)


def test_neighbours_do_not_stay_together():
    """Of a random permutation of N, the mean distance of two neighbours is N / 3."""
    for size in (1000, 1_000_000):
        order = Permutation(size, 7)(np.arange(1000))
        assert np.abs(np.diff(order)).mean() == pytest.approx(size / 3, rel=0.1)


# The order, by its definition in memory -------------------------------------------------------------------------------


def scalar_permutation(size, *key):
    """The list that `Permutation` never makes, number by number."""
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    keys = [int(k) for k in rng("permutation", *key).integers(0, 2**64, ROUNDS, dtype=np.uint64)]
    word = 2**64 - 1

    def mixed(value):
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & word
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & word
        return value ^ value >> 31

    def network(value):
        left, right = value >> half, value % 2**half
        for key in keys:
            left, right = right, left ^ mixed((right + key) & word) % 2**half
        return left << half | right

    places = []
    for number in range(size):
        value = network(number)
        while value >= size:
            value = network(value)
        places.append(value)
    return places


def in_memory(groups, lanes, window, limits, epochs):
    """All batches of some epochs, with every list written out. `groups`: (cuts, factor, language) of each language."""
    lane_batches = [[] for _ in range(lanes)]
    for epoch in range(epochs):
        taken = []
        for cuts, factor, language in groups:
            order = scalar_permutation(len(cuts), "records", language)
            start, end = (int(len(cuts) * factor * e) for e in (epoch, epoch + 1))
            taken += [(cuts[order[i % len(cuts)]], (i - start) // len(cuts)) for i in range(start, end)]
        epoch_order = [taken[i] for i in scalar_permutation(len(taken), 0, "epoch", epoch)]
        for lane in range(lanes):
            items = [pair for pair in epoch_order[lane::lanes] if price(pair[0], pair[0].duration) <= limits.budget]
            for number, start in enumerate(range(0, len(items), window)):
                part = items[start : start + window]
                costs = [price(cut, cut.duration) for cut, _ in part]
                generator = rng(0 * lanes + lane, "plan", epoch, number)
                for batch in limits.group(costs, generator):
                    lane_batches[lane].append([(part[i][0].id, epoch, part[i][1], costs[i]) for i in batch])
    return [(i, lane_batches[i % lanes][i // lanes]) for i in range(lanes * min(map(len, lane_batches)))]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("repeat", [1, 0.4, 2.5])
def test_the_order_is_that_of_the_lists_in_memory(manifest, data, layout, lanes, repeat, monkeypatch):
    monkeypatch.setattr("stentor.dataloading.streamed_dataset.WINDOW", 1)
    records = [*records_of(130, "a", "de"), *records_of(57, "b", "en"), *records_of(20, "c")]
    path = manifest([records[i] for i in rng("mixed").permutation(len(records))])
    written = [json.loads(line) for line in path.read_text().splitlines()]
    cuts = [cut_from_record(r, path.parent, "") for r in written]
    groups = [
        ([c for c, r in zip(cuts, written) if r.get("language", "") == language], repeat, language)
        for language in ("", "de", "en")
    ]
    section = data(source(path, repeat=repeat), layout=layout, lanes=lanes, window=25, batch_tokens=200)
    train = dataset(section)
    assert train.num_shards == lanes
    expected = in_memory(groups, lanes, 25, BatchLimits(layout, 200, None, section.buckets, 25), 3)
    assert facts(train.batch_sampler(price).batches(), len(expected)) == expected
    assert len(expected) > 20


@pytest.fixture
def large(manifest, data, monkeypatch):
    """A data set with all that there is to mix: an index, another one, a list, replay and segments."""
    monkeypatch.setattr("stentor.dataloading.streamed_dataset.WINDOW", 1)
    first = manifest([*records_of(400, "a", "de"), *records_of(100, "b", "en")], "first.jsonl")
    bad = {"id": "bad", "audio_path": "x", "duration": 0}
    second = manifest([*records_of(150, "c", "fr"), bad, *records_of(3, "w", duration=90.0)], "second.jsonl")

    def make(*more, **fields):
        sources = [source(first, repeat=1.5), source(second), *more]
        return data(*sources, **{"window": 30, "batch_tokens": 200, "lanes": 2, **fields})

    return make


@pytest.mark.parametrize("before, after", [(1, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("taken", [1, 7, 30, 141])
def test_resuming_is_exact_and_counts_on(large, source, cut, before, after, taken):
    """At any batch and for another number of processes, with replay and segments, and reads a window again at most."""
    replay = {"share": 0.2, "sources": [source([cut(f"g{i}") for i in range(30)])]}

    def halves(record):
        return [cut(f"{record.id}/{n}", record.duration / 2) for n in range(2)]

    def make():
        train = dataset(large(replay=replay), segments=halves)
        return train, train.batch_sampler(price)

    straight, sampler = make()
    index, more = taken * before, 12 * after
    expected = facts(sampler.batches(), index + more)
    ranks = [make()[1] for _ in range(before)]
    for rank, one in enumerate(ranks):
        list(islice(one.shard(rank, before), taken + 3))
    dealt, later, starts = [], [make() for _ in range(after)], starts_at(index, *ranks)
    for rank, (train, one) in enumerate(later):
        read = []
        lines = train.mix.items
        train.mix.items = lambda epoch, positions, lines=lines, read=read: (
            read.append(positions) or lines(epoch, positions)
        )
        one.resume_at(starts)
        dealt.append(facts(one.shard(rank, after, 1, index=index - 1), 12))
        assert sum(map(len, read)) < 700
    assert in_turn(dealt) == expected[index:]
    if index > 500:
        for train, _ in later:
            train.collect(lambda _: [t._lane_counts for t, _ in later])
            assert train.dropped.reasons == straight.dropped.reasons


# Mixing ---------------------------------------------------------------------------------------------------------------


def items_of_epoch(train, epoch=0):
    return [(i.cut.id, i.copy) for items in train.batch_sampler(price).epoch(epoch) for i in items]


def test_weights_and_languages_are_balanced_as_in_a_list(manifest, data, tmp_path):
    records = [*records_of(300, "a", "de"), *records_of(100, "b", "en")]
    for record in [*records, *records_of(50, "c", "fr")]:
        (tmp_path / record["audio_path"]).touch()
    first, second = manifest(records, "first.jsonl"), manifest(records_of(50, "c", "fr"), "second.jsonl")
    counts = {}
    for index in (True, False):
        if not index:
            for path in (first, second):
                for file in index_folder(path).iterdir():
                    file.unlink()
                index_folder(path).rmdir()
        section = data(
            source(first, weight=1), source(second, weight=2), language_temperature=0.5, window=50, batch_tokens=200
        )
        epochs = [items_of_epoch(dataset(section), epoch) for epoch in range(4)]
        counts[index] = Counter(name[0] for items in epochs for name, _ in items)
    assert counts[True].keys() == counts[False].keys()
    for key, count in counts[True].items():
        assert count == pytest.approx(counts[False][key], abs=4)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("languages", [1, 3])
def test_so_many_hours_are_always_the_same(manifest, data, index, languages, tmp_path):
    records = [{**r, "language": ["de", "en", "fr"][i % languages]} for i, r in enumerate(records_of(1000))]
    for record in records:
        (tmp_path / record["audio_path"]).touch()
    path = manifest(records, index=index)
    train = dataset(data(source(path, max_hours=0.5), window=50, batch_tokens=200))
    epochs = [{name for name, _ in items_of_epoch(train, epoch)} for epoch in range(2)]
    assert epochs[0] == epochs[1]
    seconds = sum(r["duration"] for r in records if r["id"] in epochs[0])
    assert 0 <= 1800 - seconds < 6 * languages, "no record more would fit"
    assert train.hours * 3600 == pytest.approx(seconds, rel=1e-6)
    assert len({r[:2] for r in epochs[0]}) > 5, "from everywhere"
    assert train.records == len(epochs[0])
    assert dataset(data(source(path, max_hours=9))).records == 1000


@pytest.mark.parametrize("size", [1, 7, 130])
def test_as_many_as_fit_are_taken_in_order(size, monkeypatch):
    monkeypatch.setattr("stentor.data.seeding.BLOCK", 10)
    amounts, order = rng("amounts").random(size).astype(np.float32), Permutation(size, "x")
    totals = np.cumsum(amounts[order(np.arange(size))], dtype=np.float64)
    for most in (0.0, 0.5, *totals, totals[-1] / 2, 1000.0):
        count, total = order.within(amounts, most)
        assert count == max(1, sum(totals <= most)) and total == pytest.approx(totals[count - 1])


# What a run asks for --------------------------------------------------------------------------------------------------


def test_what_is_dropped_is_counted_where_it_is_read_and_once(manifest, data):
    lines = [json.dumps(r) for r in records_of(200)]
    lines[7] = json.dumps({**records_of(8)[7], "duration": 99.0})
    lines[9] = json.dumps({**records_of(10)[9], "words": "none"})
    lines[150] = json.dumps({**records_of(151)[150], "duration": 25.0})
    path = manifest(lines)
    train = dataset(data(source(path), window=40, batch_tokens=200))
    assert not train.dropped.reasons
    for _ in range(2):
        items_of_epoch(train)
    assert train.dropped.reasons == {"too_long": 1, "unreadable": 1, "too_long_for_batch": 1}
    (message,) = train.dropped.named["unreadable"]
    assert "train.jsonl at byte" in message and "`words` must be a list" in message


def test_speakers_are_held_out(manifest, data):
    records = [{**r, "speaker": f"s{i % 40}"} for i, r in enumerate(records_of(800))]
    section = data(
        source(manifest(records)), window=40, batch_tokens=200, eval={"dev": {"type": "held_out", "share": 0.1}}
    )
    train = dataset(section)
    held = list(section.eval["dev"].cuts())
    speakers = {c.supervisions[0].speaker for c in held}
    assert 1 <= len(speakers) < 12 and len(held) == 20 * len(speakers)
    trained = {name for name, _ in items_of_epoch(train)}
    assert trained == {r["id"] for r in records if r["speaker"] not in speakers}


def test_figures_of_an_epoch_without_planning_it(manifest, data):
    path = manifest(records_of(3000))
    for layout in ("padded", "packed"):
        train = dataset(data(source(path), window=500, batch_tokens=400, layout=layout, lanes=1))
        sampler = train.batch_sampler(price)
        facts_of_epoch = train.statistics(sampler)
        batches = list(sampler.epoch(0))
        assert facts_of_epoch["batches"] == pytest.approx(len(batches), rel=0.05)
        assert facts_of_epoch["items"] == pytest.approx(3000, rel=0.01)
        assert facts_of_epoch["seconds"] == pytest.approx(train.hours * 3600, rel=0.05)
        assert 0.8 < facts_of_epoch["fill"] <= 1


def test_texts_and_audio_are_sampled(manifest, data, monkeypatch):
    monkeypatch.setattr("stentor.dataloading.streamed_dataset.STREAM_TEXTS", 30)
    train = dataset(data(source(manifest(records_of(500))), batch_tokens=200))
    texts, sample = set(train.texts()), train.audio_sample(10)
    assert len(texts) == 30 and texts < {f"text {i}" for i in range(500)}
    assert [c.id for c in sample] == [c.id for c in train.audio_sample(10)] and len(sample) == 10


def test_the_fingerprint_follows_records_and_costs(manifest, data):
    def fingerprint(path, cost=price, **fields):
        train = dataset(data(source(path), window=40, batch_tokens=200, **fields))
        return train.fingerprint(train.batch_sampler(cost))

    path = manifest(records_of(900))
    same = fingerprint(path)
    assert same == fingerprint(path)
    assert same != fingerprint(path, max_items=3)
    assert same != fingerprint(path, cost=lambda cut, seconds: round(11 * seconds))
    assert same != fingerprint(manifest([*records_of(899), {**records_of(900)[-1], "duration": 2.25}]))


def test_a_line_that_is_no_longer_a_record_is_counted(manifest):
    path = manifest(records_of(3))
    index = RecordIndex(path)
    text = path.read_text()
    path.write_text("x" + text[1:])
    records = list(index.cuts(np.arange(3)))
    assert isinstance(records[0], UnusableRecord) and records[0].reason == "unreadable"
    assert [r.id for r in records[1:]] == ["r1", "r2"]
