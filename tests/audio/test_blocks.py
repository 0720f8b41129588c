"""Recordings that cannot be entered in the middle: decoded once, forward, and spooled; formats without a header."""

import errno
import sys
import tempfile

import numpy as np
import pytest
import soundfile

from stentor.audio import blocks
from stentor.audio.io import read
from stentor.errors import AudioError
from stentor.inference.recording import DecodedRecording, FileRecording, open_recording

RATE = 16000


@pytest.fixture
def long_mp3(tmp_path):
    path = tmp_path / "long.mp3"
    noise = np.random.default_rng(0).normal(0, 0.1, 75 * RATE)
    soundfile.write(path, noise * np.linspace(0, 1, len(noise)), RATE)
    return path


@pytest.mark.parametrize("with_av", [True, False])
def test_a_long_mp3_is_decoded_once_and_nothing_is_printed(long_mp3, monkeypatch, capfd, with_av):
    if not with_av:
        monkeypatch.setitem(sys.modules, "av", None)
    whole, passes, forward = read(long_mp3), [], blocks.FileBlocks._forward
    monkeypatch.setattr(blocks.FileBlocks, "_forward", lambda self: passes.append(self) or forward(self))
    recording = FileRecording(long_mp3, RATE)
    assert np.array_equal(np.concatenate(list(recording.blocks())), whole)
    windows = [recording.read(at * RATE, (at + 5) * RATE) for at in (70, 3, 41)]
    assert all(np.array_equal(window, whole[at * RATE :][: 5 * RATE]) for window, at in zip(windows, (70, 3, 41)))
    assert np.array_equal(np.concatenate(list(recording.blocks())), whole) and len(passes) == 1
    part = read(long_mp3, start=70.0, duration=1.0)  # as training reads it
    assert np.abs(part - whole[70 * RATE : 71 * RATE]).max() < 1e-6
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["a.wav", "a.gsm", "a.vox"])
def test_formats_that_cannot_be_sought_in(tmp_path, name):
    audio = 0.3 * np.sin(np.arange(70 * 8000) * 0.2)
    kind = {"format": "RAW"} if name != "a.wav" else {}
    path = tmp_path / name
    soundfile.write(path, audio, 8000, subtype="VOX_ADPCM" if name == "a.vox" else "GSM610", **kind)
    recording = FileRecording(path, 8000)
    decoded = np.concatenate(list(recording.blocks()))
    assert len(decoded) == pytest.approx(len(audio), abs=320) and np.corrcoef(decoded[: len(audio)], audio)[0, 1] > 0.9
    assert np.array_equal(recording.read(1000, 2000), decoded[1000:2000])
    assert np.array_equal(read(path, 8000, 2.0, 1.0), decoded[16000:24000])


@pytest.mark.parametrize("name", ["a.al", "a.ul", "a.sw", "a.raw"])
def test_the_sampling_rate_of_bare_samples_is_not_guessed(tmp_path, name):
    (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(9000))
    with pytest.raises(AudioError, match="has no header with its sampling rate: convert it") as error:
        read(tmp_path / name)
    assert error.value.reason == "unreadable"


def test_a_full_disk_is_one_sentence(long_mp3, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    for work, name in ((FileRecording, r"long\.mp3"), (DecodedRecording.of_file, "talk")):
        said = f"There is no space for the audio of .*{name} in the temporary folder .*TMPDIR"
        with pytest.raises(AudioError, match=said) as error:
            list(work(long_mp3, RATE if work is FileRecording else name).blocks())
        assert error.value.reason == "no_space"


def test_a_stream_at_another_rate(tmp_path):
    soundfile.write(tmp_path / "a.wav", 0.3 * np.sin(np.arange(RATE) * 0.2), RATE)
    recording = open_recording((tmp_path / "a.wav").read_bytes(), RATE)
    other = recording.at(8000)
    assert len(np.concatenate(list(other.blocks()))) == 8000 and other.name == recording.name == "bytes"
    assert len(np.concatenate(list(recording.blocks()))) == RATE and len(other.read(100, 200)) == 100
