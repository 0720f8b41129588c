"""Reading batches: the same from any number of workers, and what goes wrong in a worker is told as it is."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch

from stentor.audio.io import write
from stentor.data.augment import Augment
from stentor.data.batch import Batch, Example
from stentor.data.cut import cut_from_record
from stentor.dataloading.batch_sampler import Item, PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.errors import DataError, StentorError
from stentor.tasks.base import Task


class Listen(Task):
    """Answers a batch with the sum of each clip; `fail` says what to do instead. Not among the known kinds."""

    fail: str = ""

    def example(self, cut, audio, rng):
        return Example(cut.id, audio, rng=rng)

    def collate(self, examples, processor, packed):
        if self.fail == "data" and examples[0].id == "c3":
            raise DataError("clip c3 has no transcript")
        if self.fail == "runtime" and examples[0].id == "c3":
            raise RuntimeError("shapes do not fit")
        if self.fail == "connection" and examples[0].id == "c3":
            raise ConnectionResetError("the storage hung up")
        if self.fail == "die" and examples[0].id == "c3":
            os.kill(os.getpid(), signal.SIGKILL)
        sums = torch.tensor([float(np.abs(e.audio).sum()) for e in examples])
        return Batch({"sums": sums}, {"text": len(examples)}, [e.id for e in examples])


class Ear:
    sample_rate = 16000


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Ten clips of noise, and one file that is none."""
    folder = tmp_path_factory.mktemp("clips")
    rng = np.random.default_rng(0)
    cuts = []
    for i in range(10):
        write(folder / f"c{i}.wav", (0.1 * rng.standard_normal(3200 + 160 * i)).astype(np.float32), 16000)
        cuts.append(cut_from_record({"audio_path": f"c{i}.wav", "id": f"c{i}", "duration": 0.2 + 0.01 * i}, folder, ""))
    (folder / "junk.wav").write_bytes(b"RIFF....WAVEjunk")
    cuts.append(cut_from_record({"audio_path": "junk.wav", "id": "junk", "duration": 0.3}, folder, ""))
    return cuts


@pytest.fixture(scope="module")
def planned(clips):
    return [PlannedBatch([Item(clips[i], 0), Item(clips[(3 * i + 1) % 10], 0, 1)], i, 0, i) for i in range(10)]


NOISY = Augment(gain=(-6, 6), speed=[0.9, 1.1], noise={"builtin": ["white"], "p": 1.0})


def read(planned, workers=0, augment=NOISY, fail="", seed=0):
    reader = BatchDataset(Listen(type="listen", fail=fail), Ear(), augment, seed)
    return list(batches(reader, iter(planned), workers, 2, pin=False))


def test_workers_change_nothing(planned):
    here, there = read(planned), read(planned, workers=2)
    assert [p.index for p, _ in here] == [p.index for p, _ in there] == list(range(10))
    for (_, a), (_, b) in zip(here, there):
        assert a.ids == b.ids and a.inputs["sums"].equal(b.inputs["sums"])


def test_augmentation_is_the_items_own(clips, planned):
    """f(seed, epoch, id, copy): the same in another batch, different in another epoch, copy or under another seed."""

    def audio(item, seed=0, fill=()):
        ((_, batch),) = read([PlannedBatch([*fill, item], 0, 0, 0)], seed=seed)
        return float(batch.inputs["sums"][-1])

    item = Item(clips[0], 0)
    assert audio(item) == audio(item, fill=[Item(clips[5], 0), Item(clips[2], 0)])
    assert len({audio(item), audio(item, seed=1), audio(replace(item, epoch=1)), audio(replace(item, copy=1))}) == 4


def test_evaluation_hears_the_audio_as_it_is(clips, planned):
    from stentor.audio.io import read as read_audio

    ((_, batch),) = read(planned[:1], augment=None)
    expected = np.abs(read_audio(clips[0].recording.sources[0].source, rate=16000)).sum()
    assert float(batch.inputs["sums"][0]) == pytest.approx(float(expected))


def test_speed_is_the_plans(clips):
    reader = BatchDataset(Listen(type="listen"), Ear(), Augment(speed=[0.5, 2.0]), 0)
    examples, _ = reader.examples([Item(clips[0], 0, speed=2.0), Item(clips[0], 0, speed=0.5)])
    assert [len(e.audio) for e in examples] == [1600, 6400]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_is_left_out_and_named(clips, workers):
    junk = Item(clips[10], 0)
    (_, mixed), (_, empty) = read(
        [PlannedBatch([Item(clips[0], 0), junk], 0, 0, 0), PlannedBatch([junk], 1, 0, 1)], workers
    )
    assert mixed.ids == ["c0"] and mixed.counts == {"text": 1}
    assert empty.ids == [] and empty.inputs == {}
    for batch in (mixed, empty):
        ((name, reason, message),) = batch.dropped
        assert name == "junk" and reason == "unreadable" and "junk.wav" in message


def test_cuts_stay_in_the_worker(planned):
    for place, _ in read(planned, workers=1):
        assert place.items == [] and place.batch_in_epoch == place.index
    assert all(p.items for p in planned), "the plan itself is left as it was"


def test_the_plan_is_read_only_a_little_ahead(planned):
    taken = []
    source = (taken.append(p.index) or p for p in planned)
    feed = batches(BatchDataset(Listen(type="listen"), Ear(), None, 0), source, 1, 2, pin=False)
    next(feed)
    assert len(taken) <= 4
    feed.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("fail", "error", "message"),
    [
        ("data", DataError, r"^clip c3 has no transcript$"),
        ("runtime", RuntimeError, "shapes do not fit"),
        ("connection", ConnectionResetError, ""),
    ],
)
def test_a_failure_of_the_reader_keeps_its_sentence_and_is_no_dead_worker(planned, workers, fail, error, message):
    with pytest.raises(error, match=message):
        read(planned, workers, fail=fail)


@pytest.mark.long
def test_a_dead_worker_is_told_with_the_mend(planned):
    with pytest.raises(StentorError, match=r"A data worker process died(.|\n)*run the same command again") as caught:
        read(planned, workers=1, fail="die")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_worker_that_dies_while_it_hands_over_a_batch(planned, monkeypatch, error):
    """Its tensors come through a connection of their own, which may break before the death is known."""

    def breaks(iterator):
        raise error

    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__next__", breaks)
    with pytest.raises(StentorError, match="A data worker process died"):
        read(planned, workers=1)


@pytest.mark.long
def test_a_process_that_leaves_the_batches_half_read_still_ends():
    """Its workers ignore SIGTERM, which is how Python ends them at exit."""
    program = """
        from stentor.dataloading.loader import batches

        class Numbers:
            def __getitem__(self, number):
                return number

        half_read = batches(Numbers(), iter(range(1000)), 1, 2, False)
        print(next(half_read))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")
