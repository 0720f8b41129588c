import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.data.cut import UnusableRecord
from stentor.data.seeding import rng
from stentor.dataloading.mixing import DropCounter, Mix, Pool, filter_cuts, read_pools, total_hours
from stentor.errors import DataError

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
GOLDEN = [328238845, 716257329, 44103519]


def pool(cut, count, repeat=1.0, weight=None, prefix="c", **fields) -> Pool:
    return Pool([cut(f"{prefix}{i}", **fields) for i in range(count)], repeat, weight)


def counts(mix, epochs, seed=0) -> Counter:
    """How often each record comes within so many epochs."""
    return Counter(c.id for e in range(epochs) for c, _ in mix.epoch(seed, e))


def test_randomness_never_changes_between_versions():
    """Resuming an old run under a new version of this code, numpy or Python needs the same draws."""
    assert rng(0, 3, "clip-7", 0, "augment").integers(1 << 30, size=3).tolist() == GOLDEN
    assert rng(0, "a").random() != rng(1, "a").random()
    assert rng(0, 1).random() != rng(0, "1").random() != rng("0", 1).random()


def test_plain_sources_come_once_in_their_order(cut):
    mix = Mix([pool(cut, 30), pool(cut, 5, prefix="d")])
    for epoch in (0, 1, 1000):
        assert [(c.id, k) for c, k in mix.epoch(5, epoch)] == [(f"c{i}", 0) for i in range(30)] + [
            (f"d{i}", 0) for i in range(5)
        ]
    assert len(mix) == 35


@PROPERTY
@given(st.floats(0.02, 5), st.integers(1, 12), st.integers(0, 3))
def test_fractional_repeats_are_exact_over_epochs(cut, repeat, epochs, seed):
    mix = Mix([pool(cut, 9, repeat)])
    for epoch in range(epochs):
        copies: dict[str, list[int]] = {}
        for c, copy in mix.epoch(seed, epoch):
            copies.setdefault(c.id, []).append(copy)
        assert all(numbers == list(range(len(numbers))) for numbers in copies.values())
        for i in range(9):
            assert math.floor(repeat) <= len(copies.get(f"c{i}", [])) <= math.ceil(repeat)
    total = counts(mix, epochs, seed)
    for i in range(9):
        assert math.floor(repeat * epochs) <= total[f"c{i}"] <= math.ceil(repeat * epochs)


def test_a_quarter_more_means_once_in_four_epochs_for_every_record(cut):
    mix = Mix([pool(cut, 200, 2.25)])
    assert set(counts(mix, 4).values()) == {9}
    assert len(mix) == 450
    sizes = [len(list(mix.epoch(0, e))) for e in range(4)]
    assert sum(sizes) == 1800 and all(400 <= n <= 500 for n in sizes)
    extra = [{c.id for c, k in mix.epoch(0, e) if k == 2} for e in range(4)]
    assert sum(map(len, extra)) == 200 and set.union(*extra) == {f"c{i}" for i in range(200)}


def test_an_epoch_is_a_function_of_seed_and_epoch(cut):
    def ids(seed, epoch):
        return [c.id for c, _ in Mix([pool(cut, 50, 0.5)]).epoch(seed, epoch)]

    assert ids(3, 7) == ids(3, 7)
    assert ids(3, 7) != ids(4, 7) and ids(3, 7) != ids(3, 8)


def test_weights_share_an_epoch_of_the_same_size(cut):
    mix = Mix([pool(cut, 90, weight=1), pool(cut, 10, weight=3, prefix="d")])
    assert len(mix) == 100
    total = counts(mix, 4)
    assert sum(n for name, n in total.items() if name[0] == "d") == 300
    assert sum(n for name, n in total.items() if name[0] == "c") == pytest.approx(100, abs=10)


def test_repeats_count_in_the_size_of_a_weighted_epoch(cut):
    assert len(Mix([pool(cut, 10, repeat=2, weight=1), pool(cut, 10, repeat=4, weight=1)])) == 60


def test_a_weight_on_some_sources_only_is_refused(cut, source, data):
    with pytest.raises(ValueError, match="needs a `weight`, as other training sources have one"):
        data(source([cut("a")], weight=1), source([cut("b")]))


@pytest.mark.parametrize(("temperature", "gain"), [(1, 1), (0.5, 3), (0, 9)])
def test_language_temperature(cut, temperature, gain):
    """9 h of one language and 1 h of another: (9 / 1) ^ (1 - temperature) times the second."""
    mix = Mix(
        [pool(cut, 18, language="en", seconds=1800), pool(cut, 2, prefix="d", language="sv", seconds=1800)], temperature
    )
    total = counts(mix, 4)
    assert {total[f"c{i}"] for i in range(18)} == {4}
    assert {total[f"d{i}"] for i in range(2)} == {4 * gain}


def test_language_temperature_goes_by_hours_and_across_sources(cut):
    mixed = Pool([cut("a", 10, language="en"), cut("b", 5, language="sv"), cut("c", 1, language=None)], 1.0, None)
    total = counts(Mix([mixed, pool(cut, 1, language="sv", seconds=5, prefix="d")], 0.0), 1)
    assert total == {"a": 1, "b": 1, "c": 10, "d0": 1}


def test_usable_counts_what_is_left_out_by_reason(cut, data):
    records = [
        cut("good"),
        cut("long", 31),
        cut("short", 0.05),
        cut("silent text", text=" "),
        UnusableRecord("gone", "missing", "a.jsonl:3: gone.wav does not exist"),
    ]
    dropped = DropCounter()
    refuse = lambda c: None if c.supervisions[0].text.strip() else ("empty_text", c.id)  # noqa: E731
    usable = list(filter_cuts(records, data(), dropped, refuse))
    assert [c.id for c in usable] == ["good"]
    assert dropped.reasons == {"too_long": 1, "too_short": 1, "empty_text": 1, "missing": 1}
    assert dropped.named["too_long"] == ["long: 31.0 s, more than `data.max_seconds` (30)"]
    assert dropped.named["missing"] == ["a.jsonl:3: gone.wav does not exist"]
    assert dropped.seconds == pytest.approx(31 + 0.05 + 1)
    assert dropped.bad == 1


def test_too_many_bad_records_are_listed():
    dropped = DropCounter()
    for i in range(30):
        dropped.add("unreadable", f"a.jsonl:{i}: clip{i}.wav cannot be decoded")
    dropped.add("too_long", "x", unwanted=True)
    with pytest.raises(DataError) as caught:
        dropped.check(1000, 0.029, "data.train")
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "data.train: 30 of 1000 records cannot be used, more than `data.max_bad` allows (2.9%). "
        "Fix or remove these, or raise `data.max_bad`:"
    )
    assert lines[1] == "  a.jsonl:0: clip0.wav cannot be decoded"
    assert len(lines) == 22 and lines[-1] == "  ... and 10 more"
    dropped.check(1000, 0.03, "data.train")  # exactly the share that is allowed


def test_records_that_are_only_unwanted_never_stop_a_run():
    dropped = DropCounter()
    for i in range(99):
        dropped.add("empty_text", str(i))
    dropped.check(100, 0.0, "data.train")


def test_listed_reads_every_source_and_counts_over_all_of_them(cut, source, data):
    bad = [UnusableRecord(f"b{i}", "missing", f"b{i}") for i in range(2)]
    sources = [source([cut("a"), cut("long", 99)], repeat=2.0), source([cut("b"), *bad])]
    dropped = DropCounter()
    pools = read_pools(sources, data(max_bad=0.4), dropped, "data.train")
    assert [[c.id for c in p.cuts] for p in pools] == [["a"], ["b"]]
    assert [p.repeat for p in pools] == [2.0, 1.0]
    assert total_hours(pools) == pytest.approx(2 / 3600)
    with pytest.raises(DataError, match="2 of 5 records"):
        read_pools(sources, data(max_bad=0.39), DropCounter(), "data.train")


def test_nothing_left_says_why(cut, source, data):
    empty = source([cut("a", 99), cut("b", 98), cut("c", text="")])
    with pytest.raises(DataError, match=r"data.train: no usable record \(2 too_long, 1 empty_text\)"):
        read_pools([empty], data(), DropCounter(), "data.train", lambda c: ("empty_text", c.id))
    with pytest.raises(DataError, match="the source is empty"):
        read_pools([source([])], data(), DropCounter(), "data.train")
    with pytest.raises(DataError, match=r"no usable record \(no record has the speaker 1; is it spelled right\?\)"):
        read_pools([source([cut("a")], where={"speaker": [1]})], data(), DropCounter(), "data.train")
