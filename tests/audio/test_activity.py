"""The room around speech: what is cut off, what is filled up, and that noise beside clean speech is no speech."""

import numpy as np
import pytest

from stentor.audio.activity import speech_with_room
from stentor.audio.synth import RATE, say

ROOM = 0.2

UTTERANCE = say("turn on the kitchen light", voice="en-us+f3")
SPEECH = UTTERANCE.audio_at(RATE)
START, END = UTTERANCE.words[0]["start"], UTTERANCE.words[-1]["end"]


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def noise(seconds: float, level: float) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(round(seconds * RATE)) * level).astype(np.float32)


@pytest.mark.parametrize("before", [0.0, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("after", [0.0, 0.3, 2.0])
def test_every_clip_gets_the_same_room(before, after):
    audio, earlier = speech_with_room(np.concatenate([silence(before), SPEECH, silence(after)]), RATE, ROOM)
    assert earlier == pytest.approx(ROOM - START - before, abs=0.08)
    assert len(audio) / RATE == pytest.approx(END - START + 2 * ROOM, abs=0.16)


@pytest.mark.parametrize("level", [1e-3, 1e-2])
def test_noise_beside_clean_speech_is_cut_as_silence_is(level):
    audio, earlier = speech_with_room(np.concatenate([noise(1, level), SPEECH, noise(1, level)]), RATE, ROOM)
    assert earlier == pytest.approx(ROOM - START - 1, abs=0.08)
    assert len(audio) / RATE == pytest.approx(END - START + 2 * ROOM, abs=0.16)


def test_a_clip_without_speech_stays_as_it_is():
    audio = silence(1)
    assert speech_with_room(audio, RATE, ROOM)[0] is audio
    assert len(speech_with_room(silence(0), RATE, ROOM)[0]) == 0
