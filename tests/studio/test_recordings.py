"""What the studio says of a recording that was just made."""

import numpy as np
import pytest

from stentor.studio.dataset.recordings import REMARKS, Remark, listen

RATE = 16000


@pytest.fixture(scope="module")
def speech():
    from stentor.audio.synth import say

    audio = say("one two three four", voice="en-us", speed=150, pitch=50).audio_at(RATE)
    pause = np.zeros(RATE // 3, np.float32)
    return 0.5 * np.concatenate([pause, audio / np.abs(audio).max(), pause])


def noise(audio, level):
    return (10 ** (level / 20) * np.random.default_rng(0).standard_normal(len(audio))).astype(np.float32)


def keys(audio, rate=RATE):
    return [remark.key for remark in listen(audio, rate).remarks]


def test_a_good_recording_is_passed_in_silence(speech):
    levels = listen(speech + noise(speech, -60), RATE)
    assert levels.remarks == []
    assert -6.5 < levels.peak < -5.5 and levels.above > 25 and levels.level < levels.peak


def test_each_fault_is_told(speech):
    quiet = speech + noise(speech, -60)
    assert keys(np.clip(8 * quiet, -1, 1)) == ["clipped"]
    assert keys(quiet * 0.01) == ["quiet"]
    assert keys(speech + noise(speech, -28)) == ["noise"]
    assert keys(noise(speech, -30)) == ["no_speech"]
    assert "silent" in keys(np.zeros(RATE)) and "silent" in keys(noise(speech, -80))
    assert "short" in keys(quiet[6000:12000])
    assert keys(np.zeros(0, np.float32)) == ["empty"]


def test_sentences_carry_their_figures(speech):
    remark = listen(np.clip(8 * speech, -1, 1), RATE).remarks[0]
    assert remark.sentence.startswith(f"{remark.values['share']:.2%} of it is clipped")
    remark = listen(speech + noise(speech, -28), RATE).remarks[0]
    assert f"only {remark.values['above']:.0f} dB above it, 20 are needed" in remark.sentence
    assert [r.key for r in listen(np.zeros(RATE), RATE).remarks] == ["silent"]
    figures = {"level": 1.0, "seconds": 1.0, "limit": 1.0, "share": 0.5, "above": 1.0}
    assert all("{" not in Remark(key, figures).sentence for key in REMARKS)


def test_speech_without_a_pause_is_no_noise(speech):
    """Who reads fast leaves no pause to measure the background in."""
    loud = np.flatnonzero(np.abs(speech) > 0.02)
    read = (speech + noise(speech, -60))[loud[0] : loud[-1]]
    assert keys(read) == [] and listen(read, RATE).above > 25


def test_too_long_for_most_models_is_told(speech):
    assert keys(np.tile(speech + noise(speech, -60), 20)) == ["long"]
