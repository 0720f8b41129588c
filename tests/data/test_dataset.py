from collections import Counter
from itertools import islice

import pytest

from data_plans import dataset, ids, price
from stentor.data.cut import UnusableRecord
from stentor.dataloading.dataset import eval_plan
from stentor.errors import ConfigError, DataError


class Positions:
    """A processor, as far as planning needs it."""

    max_seconds = None
    tokens = staticmethod(price)


def bad(name: str) -> UnusableRecord:
    return UnusableRecord(name, "missing", f"{name}.wav is missing")


@pytest.fixture
def clips(cut):
    return lambda count, prefix="c", seconds=2.0: [
        cut(f"{prefix}{i}", seconds, f"text {prefix}{i}") for i in range(count)
    ]


def test_a_feed_of_lists(cut, clips, source, data):
    lines = []
    records = [*clips(8), cut("long", 40), cut("no", text="skip me")]
    train = dataset(
        data(source(records), source(clips(2, "d")), batch_tokens=100),
        refuse=lambda c: ("not_wanted", c.id) if "skip" in c.supervisions[0].text else None,
        lines=lines,
    )
    assert train.records == 10 and train.hours == pytest.approx(20 / 3600) and not train.streams
    assert lines == ["Listing the training data (given, given) ..."]
    assert train.dropped.reasons == {"too_long": 1, "not_wanted": 1}
    assert list(train.texts()) == [f"text c{i}" for i in range(8)] + ["text d0", "text d1"]
    assert Counter(ids(train.batch_sampler(price).epoch(0))) == dict.fromkeys(
        [*(f"c{i}" for i in range(8)), "d0", "d1"], 1
    )


def test_repeats_reach_the_plan(clips, source, data):
    plan = dataset(data(source(clips(4), repeat=1.5), batch_tokens=100)).batch_sampler(price)
    assert Counter(i for e in (0, 1) for i in ids(plan.epoch(e))) == {f"c{i}": 3 for i in range(4)}


def test_what_fits_in_no_batch_is_counted_once(cut, clips, source, data):
    train = dataset(data(source([*clips(3), cut("huge", 25)], repeat=2), batch_tokens=200))
    plan = train.batch_sampler(price)
    for epoch in range(3):
        assert "huge" not in ids(plan.epoch(epoch))
    assert train.dropped.reasons == {"too_long_for_batch": 1}
    assert train.dropped.named["too_long_for_batch"] == [
        "huge: 250 positions, more than `data.batch_tokens` (200): raise it"
    ]
    assert train.records == 3


def test_too_many_bad_records_stop_before_anything_else(clips, source, data):
    with pytest.raises(DataError, match=r"2 of 10 records cannot be used(.|\n)*b0.wav is missing\n  b1.wav is missing"):
        dataset(data(source([*clips(8), bad("b0"), bad("b1")])))
    train = dataset(data(source([*clips(8), bad("b0"), bad("b1")]), max_bad=0.2))
    assert train.dropped.reasons == {"missing": 2} and train.records == 8


def test_the_fingerprint_follows_what_fixes_the_order(cut, clips, source, data):
    def print_of(records=None, seed=0, **fields):
        train = source(clips(5) if records is None else records, repeat=fields.pop("repeat", 1.0))
        return dataset(data(train, **fields), seed).fingerprint()

    same = print_of()
    assert print_of() == same
    assert print_of(workers=0, prefetch=9, max_bad=0.5, eval_batch_tokens=7) == same
    others = [
        print_of(clips(4)),
        print_of(clips(5)[::-1]),
        print_of(clips(5, seconds=2.1)),
        print_of(seed=1),
        print_of(batch_tokens=1999),
        print_of(layout="packed"),
        print_of(buckets=3),
        print_of(max_items=3),
        print_of(window=7),
        print_of(repeat=2.0),
        print_of(language_temperature=0.5),
        print_of(augment={"speed": [0.9, 1.1]}),
    ]
    assert len({same, *others}) == len(others) + 1


# Streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_says_what_resuming_means(clips, source, data):
    lines = []
    train = dataset(data(source(clips(5), stream=True), window=77), lines=lines)
    assert train.streams and train.records == 0
    line = lines[-1]
    assert "stream of unknown length" in line and "windows of 77" in line and "same order" in line


def test_streams_mix_by_weight(clips, source, data):
    """Three to one, until the heavier one has ended."""
    section = data(
        source(clips(3000), stream=True, weight=3),
        source(clips(3000, "d"), stream=True, weight=1),
        window=1000,
        batch_tokens=100,
    )
    first = islice(dataset(section).batch_sampler(price).epoch(0), 400)
    share = Counter(i[0] for i in ids(first))
    assert share["c"] / share.total() == pytest.approx(0.75, abs=0.04)


def test_a_stream_goes_on_at_its_place(clips, source, data):
    def plan():
        section = data(
            source(clips(200), stream=True), source(clips(50, "d"), stream=True), window=40, batch_tokens=100
        )
        return dataset(section).batch_sampler(price)

    def facts(batches):
        return [(p.index, p.epoch, p.batch_in_epoch, [i.cut.id for i in p.items]) for p in batches]

    planned = list(islice(plan().batches(), 90))
    assert planned[-1].epoch == 1
    for start in (0, 13, 70):
        at = planned[start]
        rest = islice(plan().batches(at.epoch, at.batch_in_epoch, at.index), 20)
        assert facts(rest) == facts(planned[start : start + 20])


def test_a_stream_with_too_many_bad_records_stops(clips, source, data):
    """At once past the first thousand records; a shorter one at its end, where its length is known."""
    records = [r for i in range(2000) for r in (*clips(9, f"c{i}-"), bad(f"b{i}"))]
    plan = dataset(data(source(records, stream=True), window=100, batch_tokens=100, max_bad=0.05)).batch_sampler(price)
    seen = 0
    with pytest.raises(DataError, match=r"51 of 1000 records cannot be used, more than `data.max_bad` allows"):
        for batch in plan.epoch(0):
            seen += len(batch)
    assert seen == 400, "whole windows before the 51st bad record"
    short = dataset(data(source(records[:100], stream=True), window=10, batch_tokens=100, max_bad=0.05)).batch_sampler(
        price
    )
    with pytest.raises(DataError, match="10 of 100 records"):
        list(short.epoch(0))


def test_an_empty_stream_has_no_batch(source, data):
    assert list(dataset(data(source([], stream=True))).batch_sampler(price).batches()) == []


def test_a_pack_with_its_padding_stays_within_the_limit(cut, clips, source, data):
    """Packs of flex attention are padded to whole blocks."""
    train = dataset(data(source([*clips(30), cut("big", 12.5)]), layout="packed", batch_tokens=130))
    plan = train.batch_sampler(price, lambda total: -(-total // 64) * 64)
    assert plan.limits.budget == 128
    assert max(sum(item.cost for item in items) for items in plan.epoch(0)) <= 128 and "big" in ids(plan.epoch(0))
    with pytest.raises(ConfigError, match=r"data.batch_tokens: .* at least 256 positions: set at least as many"):
        train.batch_sampler(price, lambda total: -(-total // 256) * 256)
    train = dataset(data(source([*clips(3), cut("big", 12.9)]), layout="packed", batch_tokens=130))
    assert "big" not in ids(train.batch_sampler(price, lambda total: -(-total // 64) * 64).epoch(0))
    assert train.dropped.named["too_long_for_batch"] == [
        "big: 129 positions, more than `data.batch_tokens` (130, in whole blocks 128): raise it"
    ]


def test_a_tokenizer_sees_the_first_texts_of_a_stream(clips, source, data, monkeypatch):
    monkeypatch.setattr("stentor.dataloading.streamed_dataset.STREAM_TEXTS", 4)
    train = source(clips(100), stream=True)
    assert list(dataset(data(train)).texts()) == [f"text c{i}" for i in range(4)]
    assert train._read < 10


# Evaluation --------------------------------------------------------------------------------------------------------


def planned(source, section, processor=Positions):
    return eval_plan(source, "data.eval.dev", section, processor)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_evaluation_takes_every_record_once_whatever_its_length(cut, clips, source, data, layout):
    """A record longer than the budget still is scored: leaving it out would make the score look better."""
    section = data(layout=layout, batch_tokens=100)
    plan, dropped = planned(source([*clips(20), cut("big", 25)], repeat=3), section)
    assert Counter(ids(plan.epoch(0))) == dict.fromkeys([*(f"c{i}" for i in range(20)), "big"], 1)
    assert not dropped.reasons
    again, _ = planned(source([*clips(20), cut("big", 25)]), section)
    assert ids(again.epoch(0)) == ids(plan.epoch(0))


def test_evaluation_counts_what_the_model_cannot_take(cut, clips, source, data):
    def short(cut):
        return ("too_long", f"{cut.id}: 25 s") if cut.duration > 20 else None

    records = source([*clips(3), cut("big", 25)])
    plan, dropped = eval_plan(records, "data.eval.dev", data(max_bad=0.25), Positions, short)
    assert sorted(ids(plan.epoch(0))) == ["c0", "c1", "c2"] and dropped.reasons == {"too_long": 1}
    with pytest.raises(DataError, match=r"data.eval.dev: 1 of 4 records cannot be used(.|\n)*  big: 25 s"):
        eval_plan(records, "data.eval.dev", data(), Positions, short)


def test_evaluation_may_have_a_budget_of_its_own(clips, source, data):
    plan, _ = planned(source(clips(20)), data(batch_tokens=40, eval_batch_tokens=200))
    assert max(len(b) for b in plan.epoch(0)) == 10


def test_a_bad_evaluation_set_is_named(clips, source, data):
    with pytest.raises(DataError, match=r"data.eval.dev: 1 of 3 records"):
        planned(source([*clips(2), bad("b")]), data())
