"""Audio that is encoded piece by piece, as programs read it."""

import io

import numpy as np
import pytest
import soundfile

from stentor.audio.blocks import FileBlocks
from stentor.audio.encoder import KINDS, Encoder
from stentor.errors import ConfigError

RATE = 24000


def sound(seconds: float = 3.0, rate: int = RATE) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * (200 * time + 150 * time**2))).astype(np.float32)


def encoded(kind: str, audio: np.ndarray, rate: int = RATE, **options) -> tuple[list[bytes], Encoder]:
    encoder = Encoder(kind, rate, **options)
    parts = np.array_split(audio, 3)
    return [encoder.add(part, part is parts[-1]) for part in parts], encoder


def decoded(content: bytes, kind: str, tmp_path) -> np.ndarray:
    path = tmp_path / f"a.{'ogg' if kind == 'opus' else kind}"
    path.write_bytes(content)
    return np.concatenate(list(FileBlocks(path, RATE)))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pcm"])
def test_every_kind_is_read_back(kind, at_once, tmp_path):
    if kind == "aac":
        pytest.importorskip("av")
    audio = sound()
    parts, _ = encoded(kind, audio, at_once=at_once)
    assert [bool(part) for part in parts] == [not (at_once or kind == "flac")] * 2 + [True]
    back = decoded(b"".join(parts), kind, tmp_path)
    if kind in ("flac", "wav"):
        assert np.abs(back - audio).max() <= 1 / 32768 and len(back) == len(audio)
        return
    assert abs(len(back) - len(audio)) < 0.15 * RATE
    # Encoders begin with a little silence.
    shifts = np.correlate(np.pad(back, 4000)[: len(audio) + 8000], audio[8000:24000], "valid")
    at = int(shifts.argmax()) - 4000
    assert abs(at - 8000) < 4000 and np.corrcoef(back[at : at + 16000], audio[8000:24000])[0, 1] > 0.98


def test_the_sizes_of_a_wav():
    streamed, _ = encoded("wav", sound())
    assert streamed[0][4:8] == streamed[0][40:44] == b"\xff" * 4
    parts, _ = encoded("wav", sound(), at_once=True)
    content = b"".join(parts)
    assert int.from_bytes(content[4:8], "little") == len(content) - 8
    assert int.from_bytes(content[40:44], "little") == len(content) - 44
    assert content[44:] == b"".join(streamed)[44:]


def test_pcm_has_one_rate():
    audio = sound(rate=16000)
    parts, encoder = encoded("pcm", audio, 16000)
    samples = np.frombuffer(b"".join(parts), "<i2") / 32768
    assert encoder.rate == RATE and len(samples) == len(audio) * 3 // 2
    assert np.abs(samples[100:-100] - sound()[100:-100]).max() < 1e-3
    same, _ = encoded("pcm", sound())
    assert np.abs(np.frombuffer(b"".join(same), "<i2") / 32768 - sound()).max() <= 1 / 32768


@pytest.mark.parametrize(("kind", "rate", "coded"), [("opus", 44100, 48000), ("mp3", 96000, 48000), ("mp3", 800, 8000)])
def test_rates_that_a_kind_does_not_have(kind, rate, coded):
    parts, encoder = encoded(kind, sound(1.0, rate), rate)
    audio, _ = soundfile.read(io.BytesIO(b"".join(parts)))
    assert encoder.rate == coded and abs(len(audio) / soundfile.info(io.BytesIO(b"".join(parts))).samplerate - 1) < 0.3


def test_aac_without_its_library(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"stentor\[av\]"):
        Encoder("aac", RATE)
