"""Signal-to-noise ratio and bandwidth against a truth that is known, and the fingerprint against what it must bear."""

import io

import numpy as np
import pytest
import soundfile
import soxr

from stentor.audio.fingerprint import Fingerprint, fingerprint, shared
from stentor.audio.quality import LOUDEST_SNR, bandwidth, snr
from stentor.audio.synth import say

TEXTS = (
    "The harbour lights are on and the boats return before the storm arrives.",
    "Nobody knows why the river turned red last summer, not even the fishermen.",
    "Seven small islands lie to the north, and none of them has a name.",
)


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    """Three sentences in three voices, 16 kHz."""
    return [say(text, voice=voice).audio for text, voice in zip(TEXTS, ("en-us", "en+f3", "en+m3"), strict=True)]


def with_noise(audio: np.ndarray, decibels: float, kind: str = "white") -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(len(audio))
    if kind == "pink":
        spectrum = np.fft.rfft(noise)
        noise = np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 1), len(audio))
    power = np.square(audio).mean() / 10 ** (decibels / 10)
    return (audio + noise * np.sqrt(power / np.square(noise).mean())).astype(np.float32)


@pytest.mark.parametrize("kind", ["white", "pink"])
@pytest.mark.parametrize("decibels", [0, 5, 10, 15, 20])
def test_snr_is_within_some_decibels_of_the_truth(clips, decibels, kind):
    for gain in (1.0, 0.02):
        measured = [snr(gain * with_noise(audio, decibels, kind), 16000) for audio in clips]
        assert decibels - (4 if decibels < 20 else 5) < np.mean(measured) < decibels + 3, measured


def test_snr_of_clean_speech_and_of_digital_silence(clips):
    assert all(snr(audio, 16000) > 18 for audio in clips)
    assert snr(np.zeros(16000, np.float32), 16000) == LOUDEST_SNR
    assert snr(np.zeros(10, np.float32), 16000) == LOUDEST_SNR


@pytest.mark.parametrize(("low", "high"), [(8000, 16000), (8000, 48000), (11025, 44100), (16000, 48000)])
@pytest.mark.parametrize("gain", [1.0, 0.01])
def test_bandwidth_of_what_was_sampled_up(clips, low, high, gain):
    """As a file of 16 bits holds it, loud and quiet."""
    for audio in clips:
        narrow = np.rint(soxr.resample(audio, 16000, low) * gain * 32768) / 32768
        assert bandwidth(soxr.resample(narrow, low, high), high) == pytest.approx(low / 2, rel=0.05)


def test_bandwidth_of_a_full_band(clips):
    assert all(bandwidth(audio, 16000) > 7500 for audio in clips)
    assert bandwidth(with_noise(clips[0], 20), 16000) > 7900
    assert bandwidth(np.zeros(16000, np.float32), 16000) == 0


def encoded(audio: np.ndarray, kind: str) -> np.ndarray:
    file = io.BytesIO()
    soundfile.write(file, audio, 16000, format=kind, **({"compression_level": 0.9} if kind == "MP3" else {}))
    file.seek(0)
    return soundfile.read(file, dtype="float32")[0]


@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda a: 0.05 * a, 0.99),
        (lambda a: a[7123:], 0.3),
        (lambda a: a[64:], 0.3),
        (lambda a: encoded(a, "MP3"), 0.3),
        (lambda a: encoded(0.4 * a[5001:], "MP3"), 0.15),
        (lambda a: encoded(a, "OGG"), 0.3),
        (lambda a: soxr.resample(soxr.resample(a, 16000, 8000), 8000, 48000), 0.5),
        (lambda a: with_noise(a, 20), 0.15),
    ],
    ids=["gain", "cut", "shifted", "mp3", "mp3_cut", "vorbis", "telephone", "noise"],
)
def test_a_changed_recording_shares_its_landmarks(clips, change, least):
    changed = [change(audio) for audio in clips]
    rates = [48000 if len(c) > 2 * len(a) else 16000 for a, c in zip(clips, changed, strict=True)]
    prints = [fingerprint(a, 16000) for a in clips] + [fingerprint(*pair) for pair in zip(changed, rates, strict=True)]
    pairs = {(later, earlier): share for later, earlier, share in shared(prints, 0.05)}
    assert set(pairs) == {(3, 0), (4, 1), (5, 2)}
    assert min(pairs.values()) >= least


def test_a_fingerprint_as_bytes_and_of_hardly_anything(clips):
    prints = fingerprint(clips[0], 16000)
    again = Fingerprint.frombytes(prints.tobytes())
    assert np.array_equal(prints.hashes, again.hashes) and np.array_equal(prints.frames, again.frames)
    assert 15 < len(prints.hashes) / (len(clips[0]) / 16000) < 80
    for nothing in (np.zeros(1, np.float32), np.zeros(16000, np.float32)):
        assert len(fingerprint(nothing, 16000).hashes) == 0
    assert list(shared([], 0.1)) == []
    assert list(shared([fingerprint(np.zeros(1, np.float32), 16000)] * 2, 0.1)) == []
