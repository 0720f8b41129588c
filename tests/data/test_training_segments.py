"""Recordings of any length, which a task is trained on in pieces."""

from dataclasses import replace

import pytest

import data_plans
from data_plans import ids
from stentor.dataloading.dataset import unlimited
from stentor.dataloading.train_dataset import TrainDataset
from stentor.sources.held_out import HeldOut


def halves(cut):
    middle = cut.duration / 2
    for number, start in enumerate((0.0, middle)):
        yield replace(cut, id=f"{cut.id}/{number}", start=start, duration=middle)


def dataset(section, segments=halves, **more) -> TrainDataset:
    return data_plans.dataset(section, segments=segments, **more)


def names(train: TrainDataset) -> list[str]:
    return sorted(ids(train.batch_sampler(lambda cut, seconds: 1).epoch(0)))


@pytest.fixture
def recordings(cut):
    return [cut("short", 8), cut("long", 4000), cut("other", 50)]


@pytest.mark.parametrize("stream", [False, True])
def test_each_piece_is_trained_on_once(recordings, source, data, stream):
    train = dataset(data(source(recordings, stream=stream)))
    assert names(train) == [f"{name}/{i}" for name in ("long", "other", "short") for i in (0, 1)]
    assert not train.dropped.reasons  # however long they are
    uncut = dataset(data(source(recordings, stream=stream)), segments=None)
    assert names(uncut) == ["short"] and uncut.dropped.reasons == {"too_long": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_a_recording_is_refused_as_a_whole_and_a_model_looks_at_pieces(recordings, source, data, stream):
    refuse = lambda c: ("no", c.id) if c.id == "other" else None  # noqa: E731
    train = dataset(data(source(recordings, stream=stream), max_bad=1.0), refuse=refuse)
    train.leave_out(lambda c: ("long_piece", c.id) if c.duration > 100 else None)
    assert names(train) == ["short/0", "short/1"]
    assert train.dropped.reasons == {"no": 1, "long_piece": 2}


def test_what_is_held_out_stays_whole(cut, source, data):
    held = HeldOut(share=0.5)
    section = data(source([cut(f"r{i}", 40) for i in range(8)]), eval={"dev": held})
    train = dataset(section)
    held_ids = {c.id for c in held.records()}
    assert len(held_ids) == 4 and held_ids <= {f"r{i}" for i in range(8)}
    assert names(train) == sorted(f"r{i}/{k}" for i in range(8) for k in (0, 1) if f"r{i}" not in held_ids)


def test_of_a_stream_too(cut, source, data):
    held = HeldOut(share=0.5, most=3)
    train = dataset(
        data(source([cut(f"r{i}", 40) for i in range(20)], stream=True), eval={"dev": held}), segments=halves
    )
    held_ids = {c.id for c in held.records()}
    assert len(held_ids) == 3
    trained = {name.partition("/")[0] for name in names(train)}
    assert trained and not trained & held_ids and all("/" in name for name in names(train))


def test_replayed_recordings_are_cut_too(cut, source, data):
    section = data(
        source([cut(f"r{i}", 40) for i in range(4)]),
        replay={"share": 0.5, "sources": [{"type": "jsonl", "path": "none.jsonl"}]},
    )
    section.replay.sources[0] = source([cut("general", 90)])
    assert {n for n in names(dataset(section)) if n.startswith("general")} == {"general/0", "general/1"}


def test_the_section_is_left_as_it_is(data):
    section = data()
    assert unlimited(section).max_seconds == float("inf") and section.max_seconds == 30
