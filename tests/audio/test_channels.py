"""Channels: the mean, one of them, and channels that cancel each other out, from files, arrays and sources."""

import json

import numpy as np
import pytest
import soundfile

from stentor.audio.channels import to_mono
from stentor.audio.io import read
from stentor.audio.selection import Selection
from stentor.data.cut import record_from_cut
from stentor.data.load_audio import load_audio, load_record
from stentor.errors import AudioError
from stentor.inference.recording import ArrayRecording, FileRecording
from stentor.sources.base import Source

RATE = 16000


def sides(seconds=2.0):
    """The two speakers of a telephone call: [samples, 2]."""
    time = np.arange(round(seconds * RATE)) / RATE
    return np.stack([0.3 * np.sin(2 * np.pi * 300 * time), 0.1 * np.sin(2 * np.pi * 700 * time)], 1).astype(np.float32)


@pytest.fixture
def call(tmp_path):
    path = tmp_path / "call.wav"
    soundfile.write(path, sides(), RATE, subtype="FLOAT")
    return path


def records(text):
    return "".join(json.dumps(record) + "\n" for record in text)


@pytest.mark.parametrize("channel", [0, 1])
def test_one_channel_of_a_file(call, channel):
    np.testing.assert_array_equal(read(call, RATE, selection=Selection(channel)), sides()[:, channel])
    recording = FileRecording(call, RATE, Selection(channel))
    np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), sides()[:, channel])
    np.testing.assert_array_equal(recording.at(RATE).read(100, 300), sides()[100:300, channel])
    np.testing.assert_allclose(read(call, RATE), sides().mean(1), atol=1e-7)


def test_a_channel_that_is_not_there(call):
    with pytest.raises(AudioError, match=r"call\.wav has 2 channels, counted from 0: there is no channel 2") as error:
        read(call, RATE, selection=Selection(2))
    assert error.value.reason == "no_channel"


def test_real_stereo_files(shared_data):
    folder = shared_data / "formats"
    for name in ("stereo.mp3", "stereo.opus", "stereo_8k.wav", "stereo.sph"):
        audio, rate = soundfile.read(folder / name, always_2d=True, dtype="float32")
        assert audio.shape[1] == 2
        for channel in (0, 1):
            one = read(folder / name, rate, check_silence=False, selection=Selection(channel))
            np.testing.assert_allclose(one, audio[:, channel], atol=1e-5)  # two decoders of MP3 round differently


@pytest.mark.long
def test_a_long_file_that_only_ffmpeg_reads(tmp_path):
    av = pytest.importorskip("av")
    audio = np.tile(sides(5.0), (16, 1))
    path = tmp_path / "call.m4a"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=RATE, layout="stereo", options={"b": "192000"})
        for at in range(0, len(audio), 1024):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(audio[at : at + 1024].T), format="fltp", layout="stereo"
            )
            frame.sample_rate, frame.pts = RATE, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for channel, level in ((0, 0.3), (1, 0.1)):
        decoded = np.concatenate(list(FileRecording(path, RATE, Selection(channel)).blocks()))
        assert len(decoded) > 75 * RATE and decoded[RATE:-RATE].std() == pytest.approx(level / 2**0.5, rel=0.1)


def test_arrays_as_soundfile_and_as_torchaudio_read_them():
    for audio in (sides(), sides().T):
        np.testing.assert_allclose(ArrayRecording(audio, RATE, RATE).audio, sides().mean(1), atol=1e-7)
        np.testing.assert_array_equal(ArrayRecording(audio, RATE, RATE, selection=Selection(1)).audio, sides()[:, 1])
    with pytest.raises(AudioError, match=r"\[samples, channels\]"):
        ArrayRecording(np.zeros((100, 200)), RATE, RATE)
    with pytest.raises(AudioError, match=r"\[2, 3, 4\]"):
        ArrayRecording(np.zeros((2, 3, 4)), RATE, RATE)


@pytest.mark.parametrize("gain", [-1.0, -0.9])
def test_channels_that_cancel_each_other_out_are_not_silent(tmp_path, caplog, gain):
    one = sides()[:, 0]
    path = tmp_path / "upside_down.wav"
    soundfile.write(path, np.stack([one, gain * one], 1), RATE, subtype="FLOAT")
    for _ in range(2):
        np.testing.assert_array_equal(read(path, RATE), one)
    assert [r.message.count("only channel 0 is used") for r in caplog.records] == [1]  # told once
    assert "upside_down.wav" in caplog.text


@pytest.mark.parametrize(
    "audio",
    [
        np.stack([sides()[:, 0], np.zeros(2 * RATE)], 1),  # one silent side
        np.random.default_rng(0).standard_normal((RATE, 2)),  # nothing in common
        np.zeros((RATE, 2)),
        np.zeros((0, 2)),
    ],
)
def test_other_channels_are_averaged(audio, caplog):
    np.testing.assert_allclose(to_mono(audio, "x"), audio.mean(1))
    assert not caplog.records


def test_channels_of_records_and_of_sources(call):
    manifest = call.with_name("calls.jsonl")
    manifest.write_text(
        records(
            [
                {"audio_path": "call.wav", "text": "a", "channel": 0},
                {"audio_path": "call.wav", "text": "b", "channel": 1, "start": 0.5, "duration": 1.0},
                {"audio_path": "call.wav", "text": "c", "duration": 2.0},
                {"audio_path": "call.wav", "text": "d", "id": "d", "channel": "radio", "duration": 2.0},
            ]
        )
    )
    expected = [sides()[:, 0], sides()[8000:24000, 1], sides().mean(1), sides().mean(1)]
    cuts = list(Source.model_validate({"type": "jsonl", "path": manifest}).cuts())
    assert [cut.id for cut in cuts] == ["call.wav#0", "call.wav@0.5#1", "call.wav", "d"]
    for cut, audio in zip(cuts, expected, strict=True):
        np.testing.assert_allclose(load_audio(cut), audio, atol=1e-7)
        np.testing.assert_allclose(load_record(record_from_cut(cut)), audio, atol=1e-7)
    second = list(Source.model_validate({"type": "jsonl", "path": manifest, "channel": 1}).cuts())
    np.testing.assert_array_equal(load_audio(second[0]), sides()[:, 0])  # the record's own comes first
    np.testing.assert_array_equal(load_audio(second[2]), sides()[:, 1])
    only = Source.model_validate({"type": "jsonl", "path": manifest, "where": {"channel": 1}})
    assert [cut.id for cut in only.cuts()] == ["call.wav@0.5#1"]


def test_channels_of_embedded_audio_and_of_lhotse(call, tmp_path):
    from lhotse import CutSet, Recording

    from stentor.data.embedded_audio import load_at

    data = call.read_bytes()
    (tmp_path / "x.tar").write_bytes(data)
    location = {"path": str(tmp_path / "x.tar"), "offset": 0, "size": len(data)}
    np.testing.assert_array_equal(load_at(location, "x", RATE, channel=1), sides()[:, 1])
    CutSet.from_cuts([Recording.from_file(call).to_cut()]).to_file(tmp_path / "cuts.jsonl")
    for channel in (0, 1):
        source = Source.model_validate({"type": "manifest", "path": tmp_path / "cuts.jsonl", "channel": channel})
        (cut,) = source.cuts()
        np.testing.assert_allclose(load_audio(cut), sides()[:, channel], atol=1e-6)


def test_both_sides_joined_keep_their_channels(call):
    from stentor.data.layouts.cuts import read_cuts
    from stentor.data.layouts.recognise import recognise

    manifest = call.with_name("two.jsonl")
    manifest.write_text(records({"audio_path": "call.wav", "text": "a", "channel": c, "duration": 2.0} for c in (0, 1)))
    first, second = read_cuts(recognise(manifest))
    joined = first.append(second)
    expected = np.concatenate([sides()[:, 0], sides()[:, 1]])
    np.testing.assert_allclose(load_audio(joined), expected, atol=1e-7)
    np.testing.assert_allclose(load_record(record_from_cut(joined)), expected, atol=1e-7)


def test_a_published_side_of_a_call_is_a_file_of_its_own(call, tmp_path):
    from stentor.publish.dataset import _write

    record = {"audio_path": call.name, "text": "b", "id": "b", "channel": 1}
    _, (row,) = _write([(record, call.parent, "calls.jsonl:1")], tmp_path / "set", flac=False, link=False)
    assert "channel" not in row
    np.testing.assert_allclose(read(tmp_path / "set" / row["file_name"], RATE), sides()[:, 1], atol=1e-4)
