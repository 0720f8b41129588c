"""Cutting at pauses: nothing of the speech lost, nothing twice, no window too long."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.audio.activity import Activity, EnergyDetector
from stentor.errors import ConfigError
from stentor.inference.vad import Endpointer, SileroDetector, cut

RATE = 16000
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
SILERO = SHARED / "weights" / "silero_vad" / "silero_vad.onnx"


def noise(seconds, level, seed=0):
    return (10 ** (level / 20) * np.random.default_rng(seed).standard_normal(round(seconds * RATE))).astype(np.float32)


def voice(seconds, level=-20.0, seed=1):
    """Noise in syllables, four a second, as speech has them."""
    audio = noise(seconds, level, seed)
    return audio * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * np.arange(len(audio)) / RATE)).astype(np.float32)


def blocks(audio, size=7919):
    for at in range(0, len(audio), size):
        yield audio[at : at + size]


def detect(audio):
    return EnergyDetector().activity(blocks(audio), RATE)


def seconds(windows):
    return [(round(w.start / RATE, 2), round(w.end / RATE, 2)) for w in windows]


def assert_sound(windows, activity, longest):
    """Windows are in order, apart, in bounds, not too long, and hold each sample of speech exactly once."""
    times_covered = np.zeros(activity.samples, int)
    last = 0
    for w in windows:
        assert last <= w.start <= w.speech_start < w.speech_end <= w.end <= activity.samples
        assert w.end - w.start <= longest * RATE
        times_covered[w.start : w.end] += 1
        last = w.end
    speech = np.repeat(activity.speech, activity.hop)[: activity.samples]
    assert (times_covered[speech] == 1).all()
    assert times_covered.max(initial=0) <= 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 900)), min_size=1, max_size=40),
    st.integers(0, 159),
    st.sampled_from([5.0, 12.5, 30.0]),
)
def test_speech_is_covered_exactly_once(stretches, odd, longest):
    speech = np.concatenate([np.full(n, on) for on, n in stretches])
    levels = np.where(speech, -20, -60) + np.random.default_rng(len(speech)).normal(0, 3, len(speech))
    activity = Activity(levels.astype(np.float32), speech, 160, len(speech) * 160 - odd)
    windows = cut(activity, RATE, longest)
    assert_sound(windows, activity, longest)
    assert bool(windows) == bool(speech.any())
    shared = cut(activity, RATE, longest, overlap=0.088 * longest)
    assert_sound([replace(w, start=w.speech_start, end=w.speech_end) for w in shared], activity, longest)
    assert all(w.end - w.start <= longest * RATE for w in shared)
    overlaps = [max(0, a.end - b.start) / RATE for a, b in pairwise(shared)]
    assert all(overlap == 0 or 0.07 * longest < overlap < 0.105 * longest for overlap in overlaps)


def test_a_short_recording_is_one_window_as_it_is():
    audio = np.concatenate([noise(1, -70), voice(3), noise(4, -70)])
    windows = cut(detect(audio), RATE)
    assert seconds(windows) == [(0, 8)]
    assert windows[0].speech_start / RATE == pytest.approx(1.0, abs=0.15)
    assert windows[0].speech_end / RATE == pytest.approx(4.0, abs=0.15)


@pytest.mark.parametrize("audio", [np.zeros(40 * RATE, np.float32), np.zeros(RATE, np.float32), noise(40, -80)])
def test_silence_gives_no_window(audio):
    assert cut(detect(audio), RATE) == []


def coloured(seconds, exponent, level=-25):
    """Noise whose power falls with frequency ** `exponent`: 0 white, 1 pink, 2 brown."""
    count = round(seconds * RATE)
    spectrum = np.fft.rfft(np.random.default_rng(exponent).standard_normal(count))
    frequency = np.maximum(np.fft.rfftfreq(count, 1 / RATE), 20)
    audio = np.fft.irfft(spectrum * frequency ** (-exponent / 2), count)
    return (audio / audio.std() * 10 ** (level / 20)).astype(np.float32)


@pytest.mark.parametrize("exponent", [0, 1, 2])
@pytest.mark.parametrize("seconds", [1, 5, 60])
def test_steady_noise_gives_no_window(seconds, exponent):
    assert cut(detect(coloured(seconds, exponent)), RATE) == []


@pytest.mark.parametrize("exponent", [0, 1])
def test_real_speech_in_noise_as_loud_is_not_lost(exponent):
    folder = shared("librispeech/dev.jsonl").parent
    for line in (folder / "dev.jsonl").read_text().splitlines()[:40:5]:
        audio = clip(folder / json.loads(line)["audio_path"])
        level = 10 * np.log10(np.square(audio).mean())
        (window,) = cut(detect(audio + coloured(len(audio) / RATE, exponent, level)), RATE)
        assert window.end - window.start == len(audio)


def test_no_audio_at_all():
    activity = detect(np.zeros(0, np.float32))
    assert activity.samples == 0 and cut(activity, RATE) == []


def test_cut_in_the_middle_of_the_longest_pause():
    # 50 s of speech with pauses of 0.4 s at 17 s, 1.0 s at 22 s and 0.5 s at 28 s: the one at 22 s is taken.
    audio = np.concatenate(
        [voice(17), noise(0.4, -60), voice(4.6), noise(1, -60), voice(5), noise(0.5, -60), voice(21.5)]
    )
    windows = cut(detect(audio), RATE)
    assert len(windows) == 2
    assert windows[0].end == windows[1].start
    assert windows[0].end / RATE == pytest.approx(22.5, abs=0.06)
    assert windows[0].speech_end / RATE == pytest.approx(22.0, abs=0.1)
    assert windows[1].speech_start / RATE == pytest.approx(23.0, abs=0.1)


def test_speech_without_pause_is_cut_where_it_is_quietest():
    audio = voice(50)
    dip = slice(round(24.9 * RATE), round(25.1 * RATE))
    audio[dip] *= 0.4  # not enough for a pause
    windows = cut(detect(audio), RATE)
    assert len(windows) == 2
    assert windows[0].end / RATE == pytest.approx(25.0, abs=0.15)
    assert windows[0].end == windows[1].start


def test_long_silence_is_left_out():
    audio = np.concatenate([noise(5, -65), voice(4), noise(20, -65), voice(6), noise(10, -65)])
    activity = detect(audio)
    windows = cut(activity, RATE)
    assert_sound(windows, activity, 30)
    assert len(windows) == 2
    total_seconds = sum(w.end - w.start for w in windows) / RATE
    assert total_seconds == pytest.approx(10 + 4 * 0.15, abs=0.4)


def test_the_noise_floor_is_followed():
    # The noise grows by 25 dB on the way, above the quiet part's speech threshold; speech stands out of both.
    audio = np.concatenate([noise(40, -65), noise(40, -40, 3)])
    for at, level in ((10, -30), (20, -30), (60, -15), (70, -15)):
        audio[at * RATE : (at + 3) * RATE] += voice(3, level)
    windows = cut(detect(audio), RATE)
    for at in (10, 20, 60, 70):
        assert any(w.speech_start / RATE < at + 0.3 and w.speech_end / RATE > at + 2.7 for w in windows), at
    assert sum(w.end - w.start for w in windows) / RATE < 40


def test_clicks_are_no_speech():
    audio = noise(60, -70)
    for at in (10, 20, 30):
        audio[at * RATE : at * RATE + 80] += 0.5
    assert cut(detect(audio), RATE) == []


def test_hum_is_no_speech():
    hum = 0.1 * np.sin(2 * np.pi * 50 * np.arange(60 * RATE) / RATE).astype(np.float32) + noise(60, -70)
    hum[20 * RATE : 24 * RATE] += voice(4)
    (window,) = cut(detect(hum), RATE)
    assert (window.start / RATE, window.end / RATE) == pytest.approx((20, 24), abs=0.5)


def test_blocks_of_any_size_give_the_same():
    audio = np.concatenate([voice(3), noise(1, -60), voice(2.123)])
    expected = EnergyDetector().activity([audio], RATE)
    for size in (1000, 16000, 37):
        parts = EnergyDetector().activity(blocks(audio, size), RATE)
        np.testing.assert_allclose(parts.levels, expected.levels, atol=1e-3)
        assert (parts.speech == expected.speech).all() and parts.samples == expected.samples == len(audio)


def shared(path):
    if not (SHARED / path).exists():
        pytest.skip(f"real speech is not there: ../shared/data/{path}")
    return SHARED / path


def clip(path):
    import soundfile
    import soxr

    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return soxr.resample(audio.mean(1), rate, RATE) if rate != RATE else audio.mean(1)


def joined(count=24):
    """Real read speech joined to some minutes, with the times of its words."""
    folder = shared("librispeech/dev.jsonl").parent
    audio, words, at = [], [], 0.0
    for line in (folder / "dev.jsonl").read_text().splitlines()[:count]:
        record = json.loads(line)
        part = clip(folder / record["audio_path"])
        words += [(at + w["start"], at + w["end"]) for w in record["words"]]
        audio.append(part)
        at += len(part) / RATE
    return np.concatenate(audio), words


@pytest.mark.parametrize("kind", ["energy", "silero"])
def test_real_speech_is_cut_between_words(kind):
    audio, words = joined()
    detector = EnergyDetector() if kind == "energy" else SileroDetector(str(shared(SILERO.relative_to(SHARED))))
    activity = detector.activity(blocks(audio), RATE)
    windows = cut(activity, RATE)
    assert_sound(windows, activity, 30)
    assert max(w.end - w.start for w in windows) > 15 * RATE
    middles = [round((a + b) / 2 * RATE) for a, b in words]
    inside = [any(w.start <= m < w.end for w in windows) for m in middles]
    assert np.mean(inside) > 0.995
    # Word times are some dozen ms off: a cut counts as inside a word when it is 80 ms from its ends.
    through = [w for w in windows[:-1] if any(a + 0.08 < w.end / RATE < b - 0.08 for a, b in words)]
    assert len(through) <= len(windows) // 10


def test_silero_refuses_other_rates_and_other_files(tmp_path):
    detector = SileroDetector(str(shared(SILERO.relative_to(SHARED))))
    with pytest.raises(ConfigError, match="8 or 16 kHz"):
        detector.activity([np.zeros(100, np.float32)], 22050)
    (tmp_path / "x.onnx").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not a Silero VAD model"):
        SileroDetector(str(tmp_path / "x.onnx"))


def test_speech_ends_with_a_low_threshold_too():
    audio, _ = joined(1)
    activity = SileroDetector(str(shared(SILERO.relative_to(SHARED))), 0.1).activity(
        [np.pad(audio, (0, 3 * RATE))], RATE
    )
    assert not activity.speech[-100:].any()


def test_silero_knows_noise_from_speech():
    detector = SileroDetector(str(shared(SILERO.relative_to(SHARED))))
    audio, _ = joined(2)
    mixed = np.concatenate([noise(10, -25), audio, noise(10, -25)])
    windows = cut(detector.activity(blocks(mixed), RATE), RATE)
    assert windows[0].start > 8 * RATE and windows[-1].end < len(mixed) - 8 * RATE


@pytest.mark.parametrize("rate", [16000, 8000, 24000, 48000])
def test_silero_while_audio_comes(rate):
    """Frame by frame what it says of the whole, as soon as a chunk of 32 ms is there; also of rates that it does not
    know."""
    detector = SileroDetector(str(shared(SILERO.relative_to(SHARED))))
    audio, _ = joined(2)
    resampled = audio if rate == RATE else soxr.resample(audio, RATE, rate)
    live = detector.live(rate)
    frames = resampled[: len(resampled) // live.hop * live.hop].reshape(-1, live.hop)
    speech = np.array([live.add(frame)[0] for frame in frames])
    known = rate if rate in (8000, 16000) else 16000
    whole = detector.activity([audio if known == RATE else soxr.resample(audio, RATE, known)], known).speech
    count = min(len(speech), len(whole)) - 5
    late = [np.mean(speech[shift : count + shift] == whole[:count]) for shift in range(5)]
    assert max(late) > (0.97 if rate in (8000, 16000) else 0.93) and 1 <= np.argmax(late) <= 4


@pytest.mark.parametrize("kind", ["energy", "silero"])
def test_the_end_of_speech_is_found(kind):
    """Once for each utterance with a second of silence behind it."""
    detector = EnergyDetector() if kind == "energy" else SileroDetector(str(shared(SILERO.relative_to(SHARED))))
    audio, _ = joined(3)
    quiet = noise(2, -70)
    endpointer = Endpointer(detector.live(RATE), 1.5)
    recording = np.concatenate([quiet, audio, quiet, audio, quiet])
    ends = [i * 320 / RATE for i in range(len(recording) // 320) if endpointer.add(recording[i * 320 : (i + 1) * 320])]
    expected = [2 + len(audio) / RATE + 1.5, 4 + 2 * len(audio) / RATE + 1.5]
    assert ends == pytest.approx(expected, abs=0.8)
