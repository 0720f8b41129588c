"""Cutting a long text where the windows of its recording are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.data.word_units import units
from stentor.inference.align.base import Aligned, Word
from stentor.inference.align.engines import clip_of
from stentor.inference.align.long_audio import by_windows, divide
from stentor.inference.recording import ArrayRecording


@pytest.mark.parametrize(
    ("text", "windows", "ends", "share"),
    [
        ("abcdefgh", ["abc", "de", "fgh"], [3, 5, 8], 1),
        ("abcdef", ["abx", "yef"], [3, 6], 4 / 6),  # words misheard go by their place
        ("abcd", ["a", "d"], [2, 4], 2 / 4),  # words not heard to either side
        ("ab", ["a", "", "b"], [1, 1, 2], 1),
        ("ab", ["", "ab", ""], [0, 2, 2], 1),
    ],
)
def test_what_was_heard_cuts_the_text(text, windows, ends, share):
    assert divide(list(text), list(map(list, windows))) == (ends, pytest.approx(share))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=1, max_size=5),
)
def test_every_word_is_in_one_window(words, hypotheses):
    ends, share = divide(words, hypotheses)
    assert len(ends) == len(hypotheses) and ends == sorted(ends) and ends[0] >= 0 and ends[-1] == len(words)
    assert 0 <= share <= 1


RATE = 16000
GAP, TONE = 0.5, 0.4


def sayings(count: int) -> tuple[np.ndarray, list[str]]:
    """Tones for words that no one has said before, with pauses."""
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(TONE * RATE)) / RATE)
    audio = np.concatenate([np.zeros(round(GAP * RATE)), tone] * count + [np.zeros(round(GAP * RATE))])
    return audio.astype(np.float32), [f"word{i}" for i in range(count)]


def listener(words: list[str]):
    """Knows which words are in a window, and tells them apart but for every third."""

    def inside(window):
        return [
            i
            for i in range(len(words))
            if window.start <= (i * (GAP + TONE) + GAP) * RATE and (i + 1) * (GAP + TONE) * RATE <= window.end
        ]

    def listen(_clip, window):
        return " ".join(words[i] if i % 3 else "what" for i in inside(window))

    def align(clip, window, text):
        window_words = [u["word"] for u in units(text, None)]
        at = [(i * (GAP + TONE) + GAP - window.start / RATE) for i in inside(window)]
        assert [words[i] for i in inside(window)] == window_words, "each window gets its own words"
        return Aligned([Word(w, t, t + TONE, 1.0) for w, t in zip(window_words, at)])

    return listen, align


def test_a_long_recording_goes_window_by_window():
    audio, words = sayings(100)
    listen, align = listener(words)
    clip = clip_of(ArrayRecording(audio, RATE, RATE), " ".join(words))
    alignment = by_windows(clip, 30.0, align, listen, transcribe=False)
    assert [w.word for w in alignment.words] == words and alignment.reason is None
    at = np.array([w.start for w in alignment.words])
    assert np.abs(at - (np.arange(100) * (GAP + TONE) + GAP)).max() < 0.05


def test_a_long_text_of_another_recording_is_refused():
    audio, words = sayings(100)
    listen, align = listener(words)
    clip = clip_of(ArrayRecording(audio, RATE, RATE), "something else altogether " * 30)
    alignment = by_windows(clip, 30.0, align, listen, transcribe=False)
    assert alignment.words == [] and alignment.reason == "mismatch"
    assert alignment.hypothesis.split()[:3] == ["what", "word1", "word2"]
