from collections import Counter
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler, bucket, buckets_of, pack
from stentor.dataloading.mixing import Mix, Pool

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
LAYOUTS = ("padded", "packed")
COSTS = st.lists(st.integers(1, 400), min_size=1, max_size=300)


def price(cut, seconds: float) -> int:
    """12.5 positions a second, and a word of text."""
    return round(12.5 * seconds) + 4


def make(
    cuts, layout="padded", *, budget=400, max_items=None, buckets=8, window=50, seed=0, repeat=1.0, **more
) -> BatchSampler:
    mix = Mix([Pool(list(cuts), repeat, None)])
    return BatchSampler(
        lambda epoch: mix.epoch(seed, epoch),
        more.pop("cost", price),
        BatchLimits(layout, budget, max_items, buckets, window),
        seed,
        **more,
    )


@pytest.fixture(scope="module")
def cuts(cut, lengths):
    return [cut(f"c{i}", float(s)) for i, s in enumerate(lengths("librispeech", 300))]


def facts(planned) -> list[tuple]:
    """All there is to know about planned batches."""
    return [
        (p.index, p.epoch, p.batch_in_epoch, [(i.cut.id, i.epoch, i.copy, i.speed) for i in p.items]) for p in planned
    ]


# One batch ---------------------------------------------------------------------------------------------------------


@PROPERTY
@given(COSTS, st.integers(400, 3000), st.none() | st.integers(1, 9), st.integers(1, 200), st.integers(0, 5))
def test_packs_keep_the_budget_and_every_item(costs, budget, max_items, window, seed):
    packs = pack(costs, budget, max_items, window, rng(seed))
    assert sorted(i for row in packs for i in row) == list(range(len(costs)))
    assert all(0 < sum(costs[i] for i in row) <= budget for row in packs)
    assert max_items is None or all(len(row) <= max_items for row in packs)


@PROPERTY
@given(COSTS, st.integers(400, 3000), st.none() | st.integers(1, 9), st.integers(1, 60), st.integers(0, 5))
def test_buckets_keep_the_budget_and_every_item(costs, budget, max_items, buckets, seed):
    rows = bucket(costs, budget, max_items, buckets, rng(seed))
    assert sorted(i for row in rows for i in row) == list(range(len(costs)))
    assert all(0 < max(costs[i] for i in row) * len(row) <= budget for row in rows)
    assert max_items is None or all(len(row) <= max_items for row in rows)


@PROPERTY
@given(COSTS, st.integers(400, 1500), st.integers(0, 5))
def test_a_pack_takes_the_largest_that_still_fits(costs, budget, seed):
    """Seen with a window over everything: after the first, drawn item, no larger one that fits is passed over."""
    left = Counter(costs)
    for row in pack(costs, budget, None, len(costs), rng(seed)):
        room = budget
        for position, index in enumerate(row):
            if position:
                assert costs[index] == max(c for c in left if c <= room)
            left -= Counter([costs[index]])
            room -= costs[index]
        assert all(c > room for c in left)


def test_bucket_edges_waste_less_than_equal_widths_and_equal_numbers(lengths):
    """Waste if every batch were padded to its bucket's longest: items x distance to the bucket's largest cost."""

    def waste(costs, which):
        return sum((costs[which == b].max() - costs[which == b]).sum() for b in np.unique(which))

    for corpus in ("librispeech", "commonvoice", "podcast"):
        costs = np.sort((12.5 * lengths(corpus, 6000)).astype(int))
        widths = np.ceil((costs - costs[0] + 1) / (costs[-1] - costs[0] + 1) * 30)
        numbers = np.arange(6000) // 200
        best = buckets_of(costs, 30)
        assert len(np.unique(best)) <= 30 and (np.diff(best) >= 0).all()
        assert waste(costs, best) < 0.9 * min(waste(costs, widths), waste(costs, numbers))


@PROPERTY
@given(COSTS, st.integers(1, 40))
def test_equal_costs_share_a_bucket_and_longer_ones_come_later(costs, buckets):
    which = buckets_of(costs, buckets)
    assert which.min() >= 1 and which.max() == buckets
    bucket_of = dict(zip(costs, which))
    assert all(bucket_of[c] == b for c, b in zip(costs, which))
    assert [bucket_of[c] for c in sorted(bucket_of)] == sorted(bucket_of.values())


def test_order_is_random_not_sorted(cuts):
    for layout in LAYOUTS:
        sizes = [sum(i.seconds for i in b) / len(b) for b in make(cuts, layout, budget=900).epoch(0)]
        assert sizes != sorted(sizes) and sizes != sorted(sizes, reverse=True)
        first = [b[0].cut.id for e in range(5) for b in islice(make(cuts, layout, budget=900).epoch(e), 1)]
        assert len(set(first)) > 1


@pytest.mark.parametrize("corpus", ["librispeech", "commonvoice", "podcast"])
@pytest.mark.parametrize("budget", [2000, 8000])
def test_little_is_wasted_on_real_lengths(cut, lengths, corpus, budget):
    """An hour's worth of clips in a bucket or two is not enough to choose from; 6,000 are."""
    many = [cut(f"c{i}", float(s)) for i, s in enumerate(lengths(corpus, 6000))]
    packed = make(many, "packed", budget=budget, window=1000).statistics()
    padded = make(many, "padded", budget=budget, buckets=30).statistics()
    assert packed["fill"] > 0.98
    assert padded["fill"] > 0.94
    assert packed["items"] == padded["items"] == 6000
    assert packed["tokens"] == padded["tokens"] == sum(price(c, c.duration) for c in many)


def test_statistics_by_hand(cut):
    cuts = [cut("a", 8), cut("b", 8), cut("c", 4)]  # 104, 104 and 54 positions
    padded, packed = (make(cuts, layout, budget=320, buckets=1).statistics() for layout in LAYOUTS)
    assert padded == {"batches": 1, "items": 3, "tokens": 262, "slots": 312, "fill": 262 / 312, "seconds": 20}
    assert packed == {"batches": 1, "items": 3, "tokens": 262, "slots": 262, "fill": 262 / 320, "seconds": 20}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_largest_is_the_batch_that_takes_most(cuts, layout):
    plan = make(cuts, layout)
    sizes = []
    for items in plan.epoch(0):
        costs = [price(i.cut, i.seconds) for i in items]
        sizes.append(sum(costs) if layout == "packed" else max(costs) * len(costs))
    costs = [price(i.cut, i.seconds) for i in plan.largest()]
    assert (sum(costs) if layout == "packed" else max(costs) * len(costs)) == max(sizes)


# Epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_holds_each_record_once_within_the_limits(cuts, layout):
    plan = make(cuts, layout, budget=600, max_items=5)
    for epoch in range(3):
        rows = list(plan.epoch(epoch))
        assert Counter(i.cut.id for row in rows for i in row) == dict.fromkeys((c.id for c in cuts), 1)
        assert all(i.epoch == epoch for row in rows for i in row)
        assert max(map(len, rows)) <= 5
        for row in rows:
            costs = [price(i.cut, i.seconds) for i in row]
            assert (sum(costs) if layout == "packed" else max(costs) * len(costs)) <= 600


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_plan_is_a_function_of_seed_and_epoch(cuts, layout):
    def batches(seed, epoch):
        plan = make(cuts, layout, seed=seed, speed=lambda g: [0.9, 1.0, 1.1][int(g.integers(3))])
        list(plan.epoch(epoch + 1))  # looking elsewhere leaves no trace
        return [[(i.cut.id, i.speed) for i in row] for row in plan.epoch(epoch)]

    assert batches(1, 4) == batches(1, 4)
    assert batches(1, 4) != batches(2, 4) and batches(1, 4) != batches(1, 5)
    first, second = ([[i.cut.id for i in row] for row in make(cuts, layout).epoch(epoch)] for epoch in (0, 1))
    assert first != second, "in another order, whatever the speeds"


def test_speed_changes_length_and_cost(cuts):
    plan = make(cuts[:50], budget=10_000, speed=lambda g: [0.5, 2.0][int(g.integers(2))])
    items = [i for row in plan.epoch(0) for i in row]
    assert {i.speed for i in items} == {0.5, 2.0}
    assert all(i.seconds == i.cut.duration / i.speed for i in items)
    assert plan.statistics()["tokens"] == sum(price(i.cut, i.cut.duration / i.speed) for i in items)
    again = {i.cut.id: i.speed for row in plan.epoch(1) for i in row}
    assert again != {i.cut.id: i.speed for i in items}, "drawn anew in each epoch"


def test_an_items_randomness_is_its_own(cuts):
    """Equal in whatever batch it lies, different by epoch, copy and purpose."""
    one, other = make(cuts, "padded", repeat=2), make(cuts, "packed", repeat=2)
    a, b = ({(i.cut.id, i.copy): i for row in p.epoch(0) for i in row} for p in (one, other))
    draws = {key: item.rng(0, "augment").random() for key, item in a.items()}
    assert draws == {key: item.rng(0, "augment").random() for key, item in b.items()}
    assert len(set(draws.values())) == 600
    item = a["c0", 0]
    (later,) = [i for row in one.epoch(1) for i in row if (i.cut.id, i.copy) == ("c0", 0)]
    generators = (item.rng(0, "augment"), item.rng(0, "prompt"), later.rng(0, "augment"))
    assert len({generator.random() for generator in generators}) == 3


def test_a_speed_with_which_an_item_is_too_long_is_not_used(cut):
    """Neither what no batch holds nor what the model cannot read is left out for the speed that was drawn."""
    records = [cut("a", 10), cut("b", 29)]
    for limits in ({"budget": 390}, {"fits": lambda cut, seconds: seconds <= 30}):
        plan = make(records, **limits, speed=lambda generator: 0.9)
        assert {i.cut.id: i.speed for row in plan.epoch(0) for i in row} == {"a": 0.9, "b": 1.0}


def test_without_a_usable_record_there_is_no_batch():
    assert list(make([], budget=10).batches()) == []


# Dealing and continuing --------------------------------------------------------------------------------------------


def test_batches_number_themselves_over_all_epochs(cuts):
    plan = make(cuts)
    length = len(list(plan.epoch(0)))
    seen = list(islice(plan.batches(), length + 3))
    assert [p.index for p in seen] == list(range(length + 3))
    assert [(p.epoch, p.batch_in_epoch) for p in seen[-4:]] == [(0, length - 1), (1, 0), (1, 1), (1, 2)]


@pytest.fixture(scope="module")
def straight(cuts):
    """Plans by layout, each with its first batches over several epochs, and one that is planned in windows."""
    plans = {layout: make(cuts, layout, repeat=1.3, budget=900) for layout in LAYOUTS}
    plans["stream"] = make(cuts, repeat=1.3, budget=900, stream_window=64)
    return {name: (plan, list(islice(plan.batches(), 170))) for name, plan in plans.items()}


@PROPERTY
@given(st.sampled_from([*LAYOUTS, "stream"]), st.integers(0, 130), st.integers(1, 30))
def test_going_on_from_any_batch(straight, name, start, count):
    plan, planned = straight[name]
    assert planned[-1].epoch >= 2
    at = planned[start]
    rest = islice(plan.batches(epoch=at.epoch, batch_in_epoch=at.batch_in_epoch, index=at.index), count)
    assert facts(rest) == facts(planned[start : start + count])


@PROPERTY
@given(
    st.sampled_from([*LAYOUTS, "stream"]),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_going_on_with_any_number_of_ranks(straight, name, legs):
    """Legs of (ranks, batches per rank and step, steps): together they take the batches in the global order.

    Each leg starts from what a checkpoint holds: the place of the last batch that rank 0 took, and how many batches
    all ranks took in all.
    """
    plan, planned = straight[name]
    position, taken, got = {"epoch": 0, "batch_in_epoch": 0, "index": 0}, 0, []
    for world, accumulate, steps in legs:
        ranks = [plan.shard(r, world, skip=taken - position["index"], **position) for r in range(world)]
        hands = [list(islice(rank, accumulate * steps)) for rank in ranks]
        got += [hand[k] for k in range(accumulate * steps) for hand in hands]
        last = hands[0][-1]
        position = {"epoch": last.epoch, "batch_in_epoch": last.batch_in_epoch, "index": last.index}
        taken += world * accumulate * steps
    assert facts(got) == facts(planned[:taken])


# Streams -----------------------------------------------------------------------------------------------------------


class Endless:
    """Records without end; remembers how far it was read."""

    def __init__(self, cut):
        self.cut, self.read = cut, 0

    def __call__(self, epoch):
        self.read = 0
        while True:
            self.read += 1
            yield self.cut(f"c{self.read}", 1 + self.read % 13), 0


def stream(source, window=40, **more):
    return BatchSampler(
        source, price, BatchLimits("padded", budget=400, buckets=8, window=window), seed=0, stream_window=window, **more
    )


def test_a_stream_is_read_only_as_far_as_it_is_needed(cut):
    source = Endless(cut)
    plan = stream(source)
    next(iter(plan.batches()))
    assert source.read == 40
    taken = list(islice(plan.batches(), 200))
    assert source.read % 40 == 0
    ids = [i.cut.id for p in taken for i in p.items]
    assert len(ids) == len(set(ids)) and source.read - len(ids) < 40
    assert {p.epoch for p in taken} == {0}


def test_a_stream_is_shuffled_within_its_windows(cut):
    taken = list(islice(stream(Endless(cut)).batches(), 60))
    first = [int(i.cut.id[1:]) for p in taken for i in p.items][:40]
    assert sorted(first) == list(range(1, 41)) and first != sorted(first)


def test_a_stream_that_ends_begins_its_next_epoch(cuts):
    plan = stream(lambda epoch: ((c, 0) for c in cuts[:100]), window=33)
    seen = list(islice(plan.batches(), 300))
    for epoch in (0, 1):
        assert Counter(i.cut.id for p in seen if p.epoch == epoch for i in p.items) == {c.id: 1 for c in cuts[:100]}
    first, second = ([i.cut.id for p in seen if p.epoch == epoch for i in p.items] for epoch in (0, 1))
    assert first != second


def test_the_largest_batch_of_an_endless_stream(cut):
    source = Endless(cut)
    items = stream(source).largest()
    assert max(price(i.cut, i.seconds) for i in items) * len(items) > 350
    assert source.read < 1000


def test_what_a_record_costs_is_asked_once_an_epoch():
    """Of a large manifest, tokenising the texts is most of the work of planning."""
    asked = []

    def cost(cut, seconds):
        asked.append(cut.id)
        return round(seconds * 25)

    cuts = [SimpleNamespace(id=str(i), duration=1 + i % 7, custom=None) for i in range(100)]
    sampler = BatchSampler(lambda epoch: ((cut, 0) for cut in cuts), cost, BatchLimits("padded", 600, None, 4, 1000), 0)
    batches = list(sampler.epoch(0))
    figures, largest = sampler.statistics(), sampler.largest()
    assert sorted(asked) == sorted(cut.id for cut in cuts)
    assert figures["tokens"] == sum(25 * cut.duration for cut in cuts) and largest in batches
