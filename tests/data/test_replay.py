"""General data on top of one's own: how much, which, and that nothing of it depends on anything but seed and epoch."""

import json
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_plans import dataset, ids, price
from stentor.dataloading.mixing import Pool, ReplayMix
from stentor.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def clips(cut):
    return lambda count, prefix="c", seconds=2.0: [cut(f"{prefix}{i}", seconds) for i in range(count)]


def replayed(plan, epoch) -> list[str]:
    return sorted(name for name in ids(plan.epoch(epoch)) if name[0] == "g")


def test_own_data_come_whole_and_replay_is_its_share_of_the_items(clips, source, data):
    lines = []
    train = dataset(data(source(clips(40)), replay={"share": 0.2, "sources": [source(clips(100, "g"))]}), lines=lines)
    plan = train.batch_sampler(price)
    seen = Counter()
    for epoch in range(10):
        names = Counter(ids(plan.epoch(epoch)))
        assert {n: k for n, k in names.items() if n[0] == "c"} == {f"c{i}": 1 for i in range(40)}
        general = [n for n in names if n[0] == "g"]
        assert len(general) == train.replayed == 10 and len(general) / names.total() == 0.2
        seen.update(general)
    assert set(seen.values()) == {1} and len(seen) == 100, "all of the general data before any of it again"
    assert (
        lines[-1] == "Replay: 20.0% of the items are general data, 10 in each epoch, drawn from 100 records (0.06 h)."
    )
    assert train.records == 40 and train.all_records == 140 and train.hours == pytest.approx(80 / 3600)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 60), st.floats(0.01, 0.9), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(0, 50)
)
def test_counts_add_up_and_every_copy_is_told_apart(cut, listed, share, sizes, epoch):
    pools = [Pool([cut(f"g{p}-{i}") for i in range(size)], 1.0, None) for p, size in enumerate(sizes)]
    mix = ReplayMix(pools, share)
    items = [(c.id, copy) for c, copy in mix.epoch(3, epoch, listed)]
    assert len(items) == round(listed * share / (1 - share)) == len(set(items))
    for p, (size, count) in enumerate(zip(sizes, mix.counts(listed))):
        times = Counter(name for name, _ in items if name.startswith(f"g{p}-"))
        assert times.total() == count
        assert all(count // size <= times[f"g{p}-{i}"] <= -(-count // size) for i in range(size))


def test_it_is_a_function_of_seed_and_epoch(clips, source, data):
    def plan(seed=0):
        general = [source(clips(60, "g")), source(clips(30, "gg"))]
        return dataset(data(source(clips(20)), replay={"share": 0.5, "sources": general}), seed).batch_sampler(price)

    assert [ids(plan().epoch(e)) for e in (3, 1)] == [ids(plan().epoch(e)) for e in (3, 1)]
    assert replayed(plan(), 0) != replayed(plan(), 1)
    assert replayed(plan(0), 0) != replayed(plan(1), 0)


def test_weights_and_repeats_share_what_is_replayed(clips, source, data):
    def shares(**fields):
        general = [source(clips(90, "ga"), **fields), source(clips(10, "gb"), weight=3 if "weight" in fields else None)]
        train = dataset(data(source(clips(100)), replay={"share": 0.5, "sources": general}))
        return train.replay.counts(100)

    assert shares() == [90, 10]
    assert shares(weight=1) == [25, 75]
    assert shares(repeat=0.1) == [47, 53]  # 9 to 10
    with pytest.raises(ValueError, match="needs a `weight`, as other replay sources have one"):
        data(source([]), replay={"sources": [source([], weight=1), source([])]})


def test_own_repeats_count_and_language_balance_is_of_the_own_alone(cut, clips, source, data):
    cuts = [cut("a", 10, language="en"), cut("b", 5, language="sv")]
    train = dataset(
        data(
            source(cuts, repeat=2), replay={"share": 0.5, "sources": [source(clips(9, "g"))]}, language_temperature=0.0
        )
    )
    assert len(train.mix) == 6 and train.replayed == 6


def test_a_stream_of_ones_own_gets_its_share_everywhere(clips, source, data):
    section = data(
        source(clips(600), stream=True),
        replay={"share": 0.25, "sources": [source(clips(500, "g"))]},
        window=100,
        batch_tokens=100,
    )
    train = dataset(section)
    plan = train.batch_sampler(price)
    assert train.replayed == 0 and train.all_records == 0
    for epoch in (0, 1):
        names = ids(plan.epoch(epoch))
        general = [n for n in names if n[0] == "g"]
        assert len(names) == 800 and len(general) == len(set(general)) == 200
        first = ids(islice(plan.epoch(epoch), 20))  # of the first windows already
        assert sum(n[0] == "g" for n in first) / len(first) == pytest.approx(0.25, abs=0.1)
    assert replayed(plan, 0) != replayed(plan, 1)
    assert ids(plan.epoch(1)) == ids(dataset(section).batch_sampler(price).epoch(1))


def test_a_stream_to_replay_from_needs_a_limit(clips, source, data):
    with pytest.raises(ConfigError, match=r"data\.replay\.sources\.1 is a stream: set its `limit`"):
        dataset(data(source(clips(4)), replay={"sources": [source(clips(4, "g")), source(clips(9, "h"), stream=True)]}))
    stream = source(clips(900, "g"), stream=True, limit=30)
    train = dataset(data(source(clips(4)), replay={"sources": [stream]}))
    assert len(train.replay) == 30 and stream._read <= 31


def test_what_replay_drops_is_counted(cut, clips, source, data):
    from stentor.data.cut import UnusableRecord

    gone = UnusableRecord("gone", "missing", "gone.wav is missing")
    train = dataset(
        data(
            source([*clips(9), cut("long", 99)]),
            max_bad=0.2,
            replay={"sources": [source([*clips(9, "g"), cut("g-long", 98), gone])]},
        )
    )
    assert train.dropped.reasons == {"too_long": 2, "missing": 1}
    more = "s, more than `data.max_seconds` (30)"
    assert train.dropped.named["too_long"] == [f"long: 99.0 {more}", f"g-long: 98.0 {more}"]
    with pytest.raises(DataError, match=r"data\.replay: 1 of 4 records cannot be used"):
        dataset(data(source(clips(100)), replay={"sources": [source([*clips(3, "g"), gone])]}))


def test_the_fingerprint_follows_replay(clips, source, data):
    def print_of(count=9, **fields):
        replay = {"sources": [source(clips(count, "g"))], **fields} if count else None
        return dataset(data(source(clips(5)), replay=replay)).fingerprint()

    assert print_of() == print_of()
    assert len({print_of(0), print_of(), print_of(8), print_of(share=0.3)}) == 4


def test_texts_for_tokenizers_hold_those_of_replay(cut, source, data):
    train = dataset(data(source([cut("a", text="own")]), replay={"sources": [source([cut("g", text="general")])]}))
    assert list(train.texts()) == ["own", "general"]


def test_a_run_says_how_much_is_replayed(tiny, here, corpus, tmp_path):
    replay = f"data.replay={{share: 0.3, sources: [{{type: jsonl, path: {corpus}/dev.jsonl}}]}}"
    said = here("train", tiny(), replay, "name=run", "train.steps=1")
    assert "Replay: 30.0% of the items are general data, 7 in each epoch, drawn from 4 records" in said
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert results["data"]["used"] == 16 and results["data"]["replay"] == 7
