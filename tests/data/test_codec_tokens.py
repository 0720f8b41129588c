"""Codec tokens of records: read where they lie, refused with a reason, and given to the task in place of audio."""

from pathlib import Path

import numpy as np
import pytest
import torch

from codec_shards import SumTokens, npy
from stentor.data.augment import Augment
from stentor.data.codec_tokens import AcceptsCodecTokens, codes_at, load_codes, shape_at
from stentor.data.cut import cut_from_record
from stentor.data.feature_cache import FeatureCache
from stentor.data.load_audio import load_audio
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler, Item, PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.dataloading.mixing import BAD
from stentor.engine.evaluate import EvalReader
from stentor.errors import AudioError

CODES = np.arange(24).reshape(4, 6).astype(np.int16)


@pytest.fixture
def place(tmp_path):
    """Writes bytes between others and answers their place."""

    def make(data, name="shard.tar", **more):
        path = tmp_path / name
        path.write_bytes(b"#" * 100 + data + b"#" * 50)
        return {"path": str(path), "offset": 100, "size": len(data), **more}

    return make


@pytest.fixture
def cut(place):
    """A cut as the `shards` source makes it."""

    def make(array=CODES, name="c", **custom):
        record = cut_from_record({"audio_path": "x", "id": name, "duration": 0.24, "text": "one", **custom}, Path(), "")
        record.recording.id, record.recording.sources = f"shard.tar:{name}.npy", []
        record.custom = {**(record.custom or {}), "codes": place(npy(array), f"{name}.tar")}
        return record

    return make


@pytest.mark.parametrize("kind", ["int16", "uint8", "int32", "int64", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_codes_are_read_as_int16(place, kind, order):
    codes = codes_at(place(npy(np.asarray(CODES, kind, order=order))), "a")
    assert codes.dtype == np.int16 and codes.flags.c_contiguous
    assert (codes == CODES).all()


@pytest.mark.parametrize(
    "data, reason, message",
    [
        (npy(CODES.astype(np.float32)), "wrong_type", "holds float32, codec tokens are int16"),
        (npy(np.array([[None]]), allow_pickle=True), "wrong_type", "holds object"),
        (npy(CODES.ravel()), "wrong_shape", r"the shape \[24\]; codec tokens are \[codebooks, frames\]"),
        (npy(CODES[:3]), "wrong_shape", r"the shape \[3, 6\]; the other records of the source have 4 codebooks"),
        (npy(CODES[:, :0]), "empty", "no frames"),
        (npy(CODES)[:-2], "truncated", "fewer codes than its header says"),
        (npy(CODES * 3), "wrong_range", "has the code 69; they must lie between 0 and 63"),
        (npy(CODES - 1), "wrong_range", "has the code -1"),
        (b"RIFF and something else", "unreadable", "not an .npy file"),
        (npy(CODES)[:11], "unreadable", "not an .npy file"),
        (b"\x93NUMPY\x01\x00\x20\x00{'descr': __import__('os')}     ", "unreadable", "its header cannot be read"),
        (npy(CODES).replace(b"(4, 6)", b"(4,-6)"), "unreadable", "its header cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused(place, data, reason, message):
    with pytest.raises(AudioError, match=f"^shard.tar:a.npy .*{message}") as raised:
        codes_at(place(data, codebooks=4), "shard.tar:a.npy", vocabulary=64)
    assert raised.value.reason == reason
    assert reason in BAD


def test_codes_of_large_vocabularies_are_not_cut_to_int16(place):
    """X-codec 2 has one codebook of 65,536 entries."""
    large = np.array([[0, 32767, 32768, 65535]])
    for vocabulary in (65536, None):
        codes = codes_at(place(npy(large.astype(np.int32))), "clip", vocabulary)
        assert codes.dtype == np.int32 and np.array_equal(codes, large)


def test_a_tar_file_that_is_gone_or_shorter_than_it_was(place, tmp_path):
    at = place(npy(CODES), "short.tar")
    (tmp_path / "short.tar").write_bytes(b"#" * 120)
    with pytest.raises(AudioError, match="cut off") as raised:
        codes_at(at, "a")
    assert raised.value.reason == "truncated"
    with pytest.raises(AudioError, match="No such file") as raised:
        codes_at({**at, "path": str(tmp_path / "gone.tar")}, "a")
    assert raised.value.reason == "missing"


def test_a_label_must_say_how_many_frames_there_are(cut):
    assert (load_codes(cut(num_tokens=6), 4, 24) == CODES).all()
    with pytest.raises(AudioError, match="has 6 frames where its label says `num_tokens` 7"):
        load_codes(cut(num_tokens=7))
    with pytest.raises(AudioError, match="has 4 codebooks; this model takes 8"):
        load_codes(cut(), codebooks=8)


def test_the_shape_is_known_from_the_header(place):
    assert shape_at(place(npy(CODES))) == (4, 6)
    assert shape_at(place(b"junk")) == ()


def test_nothing_else_can_hear_codes(cut):
    with pytest.raises(AudioError, match="holds codec tokens and no audio") as raised:
        load_audio(cut())
    assert raised.value.reason == "no_audio" and "no_audio" in BAD


class Reads(AcceptsCodecTokens, FeatureCache):
    sample_rate = 24000
    codebooks, vocabulary = 4, 64

    def cached_features(self, cut):
        raise AssertionError("no audio is asked for")


@pytest.mark.parametrize("workers", [0, 2])
def test_training_and_evaluation_are_given_codes(cut, workers):
    """The same from any number of workers; with what cannot be used by reason."""
    cuts = [cut(CODES + i, f"c{i}", num_tokens=6) for i in range(6)]
    cuts += [cut(CODES * 5, "high"), cut(CODES[:2], "low"), cut(CODES, "long", num_tokens=9)]
    planned = [PlannedBatch([Item(c, 0) for c in cuts[i : i + 3]], i // 3, 0, i // 3) for i in (0, 3, 6)]
    reader = BatchDataset(SumTokens(type="given"), Reads(), Augment(speed=[0.9, 1.1]), seed=0)
    read = [batch for _, batch in batches(reader, iter(planned), workers, 2, pin=False)]
    assert [b.ids for b in read] == [["c0", "c1", "c2"], ["c3", "c4", "c5"], []]
    assert torch.cat([b.inputs["sums"] for b in read[:2]]).tolist() == [int((CODES + i).sum()) for i in range(6)]
    assert [(name, reason) for name, reason, _ in read[2].dropped] == [
        ("high", "wrong_range"),
        ("low", "wrong_shape"),
        ("long", "wrong_shape"),
    ]
    evaluated = EvalReader(SumTokens(type="given"), Reads(), None, seed=0)[planned[0]]
    assert [e.extra["codes"].tolist() for e in evaluated[1]] == [(CODES + i).tolist() for i in range(3)]


def test_speed_is_for_audio_alone(cut):
    plain = cut_from_record({"audio_path": "a.wav", "id": "plain", "duration": 1.0}, Path(), "")
    plan = BatchSampler(
        lambda epoch: [(cut(), 0), (plain, 0)],
        lambda cut, seconds: 1,
        BatchLimits("padded", budget=2, max_items=2),
        seed=0,
        speed=lambda generator: 0.5,
    )
    assert {i.cut.id: i.speed for items in plan.epoch(0) for i in items} == {"c": 1.0, "plain": 0.5}
