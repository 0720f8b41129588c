"""Files that hold more than their header declares are read to their ends, and those with less with `partial`."""

import io
import struct

import numpy as np
import pytest
import soundfile

from stentor.audio.io import probe, read
from stentor.audio.selection import Selection
from stentor.errors import AudioError
from stentor.inference.recording import FileRecording

RATE = 16000
PARTIAL = Selection(partial=True)


def clip(kind: str, rate: int = RATE, channels: int = 1, seconds: float = 2.0, **how) -> bytes:
    """A file with noise, which is loud at its beginning."""
    audio = np.random.default_rng(1).normal(0, 0.02, (round(seconds * rate), channels))
    audio[: rate // 10] *= 8
    file = io.BytesIO()
    soundfile.write(file, audio, rate, **{"format": kind, **how})
    return file.getvalue()


def sized(wav: bytes, size: int) -> bytes:
    """A WAV whose header declares so many bytes of audio."""
    at = wav.index(b"data") + 4
    return wav[:at] + struct.pack("<I", size) + wav[at + 4 :]


def stated(flac: bytes, frames: int) -> bytes:
    fields = int.from_bytes(flac[18:26], "big") >> 36 << 36
    return flac[:18] + (fields | frames).to_bytes(8, "big") + flac[26:]


def mp3(**how) -> bytes:
    return clip("MP3", subtype="MPEG_LAYER_III", **how)


WAV, CHUNK = clip("WAV"), b"LIST" + struct.pack("<I", 4000) + bytes(4000)
OPUS = {"format": "OGG", "subtype": "OPUS"}
LONGER = {
    "joined.wav": (WAV + clip("WAV", 8000, 2), 4.0, "2 WAV files were joined"),
    "joined_tags.wav": (3 * (WAV + CHUNK), 6.0, "3 WAV files were joined"),
    "joined_pipes.wav": (2 * sized(WAV, 0), 4.0, "2 WAV files were joined"),
    "joined_endless.wav": (2 * sized(WAV, 2**32 - 1), 4.0, "2 WAV files were joined"),
    "few.wav": (sized(WAV, 3200), 2.0, "declares 0.10 s of audio, 2.00 s are there"),
    "few_tags.wav": (sized(WAV, 3200) + CHUNK, 2.0, "declares 0.10 s"),
    "tags.wav": (WAV + CHUNK, 2.0, None),
    "placeholder.wav": (sized(WAV, 2 * 10**9), 2.0, None),
    "chain.ogg": (clip("OGG") + clip("OGG", 44100, 2), 4.0, "2 Ogg files were joined"),
    "chain.opus": (clip("OGG", **OPUS) + clip("OGG", 48000, 2, **OPUS), 4.0, "2 Ogg files were joined"),
    "few.flac": (stated(clip("FLAC"), 8000), 2.0, "declares 0.50 s of audio, 2.00 s are there"),
    "joined.mp3": (mp3() + mp3(rate=44100, channels=2), 4.05, "bytes of audio"),
    "untagged.mp3": (mp3(bitrate_mode="VARIABLE")[432:], 2.1, None),
}


@pytest.mark.parametrize("name", LONGER)
def test_data_behind_the_declared_end(tmp_path, name):
    content, seconds, note = LONGER[name]
    if name.endswith((".mp3", ".flac")):
        pytest.importorskip("av")
    path = tmp_path / name
    path.write_bytes(content)
    info, audio = probe(path), read(path)
    assert info.duration == pytest.approx(seconds, abs=0.12) and len(audio) == pytest.approx(
        info.duration * RATE, abs=2
    )
    assert any(note in found for found in info.notes) if note else info.notes == ()
    if seconds > 3:
        assert np.abs(audio[-2 * RATE - 2000 :][:4000]).max() > 5 * np.abs(audio[-RATE:]).max() > 0
    recording = FileRecording(path, RATE)
    assert (
        np.abs(np.concatenate(list(recording.blocks())) - audio)[:-100].max() < 0.02 and recording.notes == info.notes
    )
    for start in (0.5, seconds - 1.0):
        piece = read(path, start=start, duration=0.5)
        assert np.abs(piece - audio[round(start * RATE) :][: RATE // 2])[100:-100].max() < 0.02


SHORTER = {
    "double.wav": sized(WAV, 128000),
    "many.flac": stated(clip("FLAC"), 64000),
    "cut.flac": clip("FLAC")[:-5000],
    "cut.mp3": mp3()[:-3000],
    "cut.ogg": clip("OGG")[:-2000],
    "hole.mp3": mp3()[:4000] + bytes(700) + mp3()[4700:],
}


@pytest.mark.parametrize("name", SHORTER)
def test_what_is_there_of_a_damaged_file(tmp_path, name):
    pytest.importorskip("av")
    path = tmp_path / name
    path.write_bytes(SHORTER[name])
    with pytest.raises(AudioError, match=r"is (cut short|damaged): .*--partial reads what is there") as refusal:
        read(path)
    assert refusal.value.reason == "truncated"
    audio, recording = read(path, selection=PARTIAL), FileRecording(path, RATE, PARTIAL)
    assert 0.8 * RATE < len(audio) <= 2.1 * RATE
    assert sum(map(len, recording.blocks())) == pytest.approx(len(audio), abs=2) and recording.notes
    assert probe(path, PARTIAL).duration == pytest.approx(len(audio) / RATE, abs=0.01)
