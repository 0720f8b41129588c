"""Kaldi's features: equal to lhotse's, whatever the settings."""

import pickle

import numpy as np
import pytest
from pydantic import ValidationError

from stentor.audio.kaldi import KaldiFeatures
from stentor.audio.synth import say
from stentor.errors import AudioError

RATE = 16000


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return say("one two three four five six seven eight", "en-us+f3").audio


def by_lhotse(section: KaldiFeatures, audio: np.ndarray) -> np.ndarray:
    """The same features by lhotse 1.33, which fails on a lifter of 0 and on mfcc with energy."""
    from lhotse import Fbank, FbankConfig, Mfcc, MfccConfig, Spectrogram, SpectrogramConfig

    names = (
        "sampling_rate",
        "preemph_coeff",
        "remove_dc_offset",
        "frame_length",
        "frame_shift",
        "window_type",
        "snip_edges",
    )
    common = {name: getattr(section, name) for name in names} | {"dither": 0.0}
    mel = {"num_filters": section.num_mel_bins, "low_freq": section.low_freq, "high_freq": section.high_freq}
    energy = {"use_energy": section.use_energy}
    if section.type == "fbank":
        return Fbank(FbankConfig(**mel, **energy, **common)).extract(audio, section.sampling_rate)
    spectrum = Spectrogram(SpectrogramConfig(**energy, **common)).extract(audio, section.sampling_rate)
    if section.type == "spectrogram":
        return spectrum
    ceps = {"num_ceps": section.num_ceps, "cepstral_lifter": max(1, section.cepstral_lifter)}
    cepstra = Mfcc(MfccConfig(**ceps, **mel, **common)).extract(audio, section.sampling_rate)
    if section.use_energy:
        cepstra[:, 0] = spectrum[:, 0]
    return cepstra


@pytest.mark.filterwarnings("ignore:.*snip_edges")
@pytest.mark.parametrize("kind", ["fbank", "mfcc", "spectrogram"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_mel_bins": 40, "use_energy": True},
        {"frame_length": 0.03},
        {"frame_length": 0.032},
        {"frame_shift": 0.02},
        {"frame_shift": 0.025},
        {"preemph_coeff": 0.0},
        {"window_type": "hanning"},
        {"window_type": "hamming"},
        {"snip_edges": True},
        {"remove_dc_offset": False},
        {"low_freq": 100.0},
        {"high_freq": 7000.0},
        {"high_freq": 0.0},
        {"sampling_rate": 8000},
        {"num_ceps": 20},
        {"cepstral_lifter": 0},
    ],
    ids=str,
)
def test_equal_to_lhotse(speech, kind, settings):
    section = KaldiFeatures(type=kind, **settings)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    clips = [
        speech,
        speech[:12345] + np.float32(0.05),
        noise * 0.1,
        noise[: section.length],
        np.zeros(5000, np.float32),
    ]
    for clip in clips:
        ours, theirs = section.extract(clip), by_lhotse(section, clip)
        assert ours.dtype == np.float32 and ours.shape == theirs.shape == (section.count(len(clip)), section.bins)
        # In float32 either is off by up to 1e-3 in a quiet bin beside loud ones; cepstra are scaled up to 12 times.
        off = np.abs(ours - theirs) / (np.maximum(1, np.abs(theirs)) if kind == "spectrogram" else 1)
        most, mean = {"fbank": (2e-3, 1e-5), "mfcc": (4e-3, 3e-4), "spectrogram": (1e-4, 1e-5)}[kind]
        assert off.max() < most and off.mean() < mean


def test_as_near_to_exact_as_lhotse(speech):
    """Against the definition in float64."""
    section = KaldiFeatures()
    size, hop, count = section.length, section.shift, section.count(len(speech))
    left = (size - hop) // 2
    right = (count - 1) * hop + size - left - len(speech)
    signal = np.concatenate([speech[:left][::-1], speech, speech[len(speech) - right :][::-1]]).astype(np.float64)
    frames = np.stack([signal[i * hop : i * hop + size] for i in range(count)])
    frames -= frames.mean(1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    power = np.abs(np.fft.rfft(frames * np.hanning(size) ** 0.85, 512)) ** 2

    def mel(hertz):
        return 1127 * np.log(1 + hertz / 700)

    edges = np.linspace(mel(20), mel(7600), 82)
    bins = mel(np.arange(257) * RATE / 512)[:, None]
    up, down = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    exact = np.log(np.maximum(power @ np.maximum(0, np.minimum(up, down)), np.finfo(np.float32).eps))
    assert np.abs(section.extract(speech) - exact).mean() <= np.abs(by_lhotse(section, speech) - exact).mean()
    again = pickle.loads(pickle.dumps(section))
    assert again == section and np.array_equal(again.extract(speech), section.extract(speech))


def test_dither_is_drawn_by_the_item():
    section = KaldiFeatures(dither=0.1)
    audio = np.zeros(RATE, np.float32)
    first, again, other = (section.extract(audio, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(section.extract(audio), section.extract(audio))
    assert not np.array_equal(section.extract(audio), first)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"type": "plp"}, "fbank"),
        ({"window_type": "blackman"}, "povey"),
        ({"high_freq": 9000.0}, "8000"),
        ({"low_freq": 7900.0}, "low_freq 7900"),
        ({"type": "mfcc", "num_ceps": 100}, "num_mel_bins"),
        ({"frame_shift": 0.03}, "must not exceed frame_length"),
        ({"mel_bins": 80}, "mel_bins"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValidationError, match=message):
        KaldiFeatures(**settings)


def test_audio_shorter_than_a_frame():
    with pytest.raises(AudioError) as error:
        KaldiFeatures().extract(np.zeros(399, np.float32))
    assert error.value.reason == "too_short"
    assert KaldiFeatures().count(399) == 0
    assert len(KaldiFeatures().extract(np.ones(400, np.float32))) == KaldiFeatures().count(400) == 3
