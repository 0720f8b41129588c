from collections import Counter

import pytest

from list_source import ListSource, ListStream, list_source
from stentor.dataloading.dataset import train_dataset
from stentor.dataloading.section import Data
from stentor.errors import ConfigError, DataError
from stentor.sources.held_out import HeldOut, held_groups


def cut(name, speaker=None):
    from lhotse import MonoCut, SupervisionSegment

    supervision = SupervisionSegment(name, "r", 0.0, 1.0, text=f"text {name}", speaker=speaker)
    return MonoCut(name, 0.0, 1.0, 0, [supervision])


def people(count, each=3, prefix="p"):
    return [cut(f"{prefix}{n}-{i}", f"{prefix}{n}") for n in range(count) for i in range(each)]


def fed(*sources, messages=None, **sets):
    data = Data(train=list(sources), batch_tokens=1000, **sets)
    dataset = train_dataset(data, 0, lambda c: None, (messages if messages is not None else []).append)
    plan = dataset.batch_sampler(price)
    trained = [i.cut for items in plan.epoch(0) for i in items]
    held = {n: list(s.cuts()) for n, s in {**data.eval, **data.test}.items()}
    return trained, held, dataset


def price(cut, seconds):
    return 10


def speakers(cuts):
    return Counter(c.supervisions[0].speaker for c in cuts)


@pytest.mark.parametrize("kind", [ListSource, ListStream])
def test_whole_speakers_of_all_sources_are_set_aside(kind):
    records = people(60)
    # The same speakers in two sources.
    trained, held, _ = fed(
        list_source(records[0::2], kind),
        list_source(records[1::2], kind),
        eval={"dev": HeldOut(share=0.1)},
        test={"test": HeldOut(share=0.2)},
    )
    assert sorted(c.id for c in [*trained, *held["dev"], *held["test"]]) == sorted(c.id for c in records)
    groups = [set(speakers(part)) for part in (trained, held["dev"], held["test"])]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
    assert all(count == 3 for part in (trained, *held.values()) for count in speakers(part).values())
    if kind is ListSource:
        assert [len(g) for g in groups] == [44, 6, 10]  # 10 % of 60, then 20 % of 54
    else:
        assert 2 <= len(groups[1]) <= 12 and 6 <= len(groups[2]) <= 20


def test_the_draw_is_the_seed_s_alone():
    def dev(records, **more):
        return set(speakers(fed(list_source(records), eval={"dev": HeldOut(share=0.1, **more)})[1]["dev"]))

    records = people(40)
    assert dev(records) == dev(records[::-1]) == dev(records)
    assert dev(records) != dev(records, seed=1)


def test_no_more_than_most_and_at_least_one():
    records = people(40)
    held = fed(list_source(records), eval={"dev": HeldOut(share=0.5, most=10)})[1]["dev"]
    assert len(held) == 9
    assert len(fed(list_source(records), eval={"dev": HeldOut(share=0.001)})[1]["dev"]) == 3
    assert held_groups({"a": 5, "b": 5}, 100, 0) in ({"a"}, {"b"}), "somebody is left to train on"


def test_without_speakers_records_are_drawn():
    for records in ([cut(f"c{i}") for i in range(40)], [cut(f"c{i}", "me") for i in range(40)]):
        trained, held, _ = fed(list_source(records), eval={"dev": HeldOut(share=0.1)})
        assert len(held["dev"]) == 4 and len(trained) == 36


def test_a_stream_is_read_from_its_front_only():
    source = list_source(people(4000, 1), ListStream)
    data = Data(train=[source], eval={"dev": HeldOut(share=0.1, most=20)})
    dataset = train_dataset(data, 0, lambda c: None, print)
    assert source._read < 400
    assert len(list(data.eval["dev"].cuts())) == 20
    held = {c.id for c in data.eval["dev"].cuts()}
    trained = {i.cut.id for items in dataset.batch_sampler(price).epoch(0) for i in items}
    assert not held & trained and 3500 < len(trained) < 3700, "also who came later is not trained on"


def test_the_plan_knows_what_is_held_out():
    def mark(kind, **more):
        return fed(list_source(people(20), kind), eval={"dev": HeldOut(**more)} if more else {})[2].fingerprint()

    for kind in (ListSource, ListStream):
        assert len({mark(kind), mark(kind, share=0.3), mark(kind, share=0.6)}) == 3


def test_what_cannot_be_held_out_is_said():
    with pytest.raises(DataError, match=r"dev: There are too few usable records \(1\) to hold any out"):
        fed(list_source([cut("a")]), eval={"dev": HeldOut()})
    with pytest.raises(DataError, match=r"dev: no speaker of the stream is in this part; raise its `share` \(1e-09\)"):
        fed(list_source(people(3), ListStream), eval={"dev": HeldOut(share=1e-9)})
    with pytest.raises(ConfigError, match=r"only under `data.eval` or `data.test`"):
        list(HeldOut().cuts())
