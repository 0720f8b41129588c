"""Word times from CTC emissions, with a model that hears tones: every letter has a pitch of its own."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.audio.activity import Activity
from stentor.data.word_units import units
from stentor.inference.align.base import Word
from stentor.inference.align.boundaries import insert_pauses, silence, spread
from stentor.inference.align.ctc import Alphabet, CTCAligner, spelling
from stentor.inference.align.engines import clip_of
from stentor.inference.recording import ArrayRecording
from stentor.losses.base import WILDCARD

RATE, HOP = 16000, 320
LETTERS = "abcdefgh"
LETTER, PAUSE = 0.1, 0.3
"""Seconds of a letter's tone and of the silence after a word."""


def pitch(letter: str) -> float:
    return 300.0 + 150.0 * (ord(letter) - ord("a"))


class Tones:
    """Hears which letter's tone is in each frame; keeps how long the clips were."""

    rate, hop, longest, blank = RATE, HOP, None, 0
    device = torch.device("cpu")

    def __init__(self):
        self.lengths: list[int] = []
        alphabet = Alphabet({c: i for i, c in enumerate(LETTERS, 1)})
        self.spell = alphabet.spell
        time = np.arange(HOP) / RATE
        self.waves = np.stack([np.exp(2j * np.pi * pitch(c) * time) for c in LETTERS])

    def log_probs(self, clips):
        self.lengths += [len(clip) for clip in clips]
        log_probs = []
        for clip in clips:
            frames = clip[: len(clip) // HOP * HOP].reshape(-1, HOP)
            strength = np.abs(frames @ self.waves.T) / HOP
            scores = np.concatenate([np.full((len(frames), 1), 2.0), 40.0 * strength], 1)
            log_probs.append(torch.from_numpy(scores.astype(np.float32)).log_softmax(-1))
        return log_probs

    def decode(self, classes):
        out, last = "", 0
        for c in classes:
            out += LETTERS[c - 1] if c not in (0, last) else ""
            last = c
        return out


def spoken(*words: str, pause: float = PAUSE) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """The words as tones, silence between, before and after; with their times."""
    audio, times, at = [np.zeros(round(pause * RATE))], [], pause
    for word in words:
        for letter in word:
            time = np.arange(round(LETTER * RATE)) / RATE
            audio.append(0.3 * np.sin(2 * np.pi * pitch(letter) * time))
        times.append((at, at + LETTER * len(word)))
        at = times[-1][1] + pause
        audio.append(np.zeros(round(pause * RATE)))
    rng = np.random.default_rng(0)
    waveform = np.concatenate(audio)
    return (waveform + 1e-4 * rng.normal(size=len(waveform))).astype(np.float32), times


def clip(audio: np.ndarray, text: str, language: str | None = None, name: str = "a"):
    return clip_of(ArrayRecording(audio, RATE, RATE, name), text, language)


def align(audio, text, language=None, **options):
    (alignment,) = CTCAligner(Tones()).align([clip(audio, text, language)], **options)
    return alignment


def test_words_are_where_they_were_said():
    audio, times = spoken("abc", "de", "fgh", "a")
    alignment = align(audio, "abc de fgh a")
    assert alignment.reason is None
    assert [w.word for w in alignment.words] == ["abc", "de", "fgh", "a"]
    assert np.abs(np.array([(w.start, w.end) for w in alignment.words]) - times).max() < 0.045
    assert min(w.confidence for w in alignment.words) > 0.5


def test_what_the_model_hears_is_answered_when_asked_for():
    audio, _ = spoken("abc", "de")
    assert align(audio, "abc de", transcribe=True).hypothesis == "abcde"
    assert align(audio, "abc de").hypothesis is None


def test_long_audio_is_heard_in_windows_and_aligned_as_a_whole():
    rng = np.random.default_rng(1)
    words = ["".join(rng.permutation(list(LETTERS))[: rng.integers(1, 5)]) for _ in range(170)]
    audio, times = spoken(*words)
    assert len(audio) > 90 * RATE
    model = Tones()
    (alignment,) = CTCAligner(model).align([clip(audio, " ".join(words))], transcribe=True)
    assert max(model.lengths) <= 30 * RATE
    assert len(model.lengths) > 3
    assert alignment.hypothesis == "".join(words)
    assert np.abs(np.array([(w.start, w.end) for w in alignment.words]) - times).max() < 0.045


def test_together_as_alone():
    items = [("abc", "de"), ("f",), ("ab", "cd", "ef", "gh"), ("hgf", "a")]
    clips = [clip(spoken(*words)[0], " ".join(words), name=str(i)) for i, words in enumerate(items)]
    clips.insert(2, clip(spoken("a")[0], "a b 日"))
    together = CTCAligner(Tones()).align(clips)
    for item, batched in zip(clips, together, strict=True):
        (alone,) = CTCAligner(Tones()).align([item])
        assert [w.as_dict() for w in alone.words] == [w.as_dict() for w in batched.words]
        assert alone.reason == batched.reason


def test_a_word_of_unknown_characters_gets_the_time_that_the_others_leave():
    audio, times = spoken("abc", "dd", "fgh")
    alignment = align(audio, "abc 42 fgh")
    assert alignment.reason is None
    for word, (start, end) in zip(alignment.words, times, strict=True):
        assert abs(word.start - start) < 0.1 and abs(word.end - end) < 0.1
    assert alignment.words[1].confidence == 0.0


def test_languages_without_spaces_are_timed_by_character():
    audio, times = spoken("a", "b", "c")
    alignment = align(audio, "abc", "ja")
    assert [w.word for w in alignment.words] == ["a", "b", "c"]
    assert np.abs(np.array([(w.start, w.end) for w in alignment.words]) - times).max() < 0.045


@pytest.mark.parametrize("text", ["", "  ", "—", "... !"])
def test_nothing_to_say(text):
    alignment = align(spoken("abc")[0], text)
    assert alignment.words == [] and alignment.reason == "no_words"


def test_more_text_than_the_audio_can_hold():
    alignment = align(spoken("abc")[0], "abc " * 200)
    assert alignment.words == [] and alignment.reason == "too_long_text"


def test_another_text_is_noticed():
    words = ["abc", "de", "fgh", "ab", "hg"]
    audio, _ = spoken(*words)
    assert align(audio, " ".join(words)).cost < 0.5
    alignment = align(audio, "gb ch ea ebd hf")
    assert alignment.reason == "mismatch"
    assert len(alignment.words) == 5, "the caller decides what to do with them"


def test_spelling_finds_a_way_for_every_character():
    alphabet = Alphabet({c: i for i, c in enumerate(" 'ABEILSÉ", 1)})
    classes = {c: i for i, c in enumerate(" 'ABEILSÉ", 1)}

    def written(text):
        return [
            ("?" if c == WILDCARD else next(k for k, v in classes.items() if v == c), i)
            for c, i in alphabet.spell(text)
        ]

    assert written("bÉ") == [("B", 0), ("É", 1)], "the other case"
    assert written("ä") == [("A", 0)], "without accents"
    assert written("a’s") == [("A", 0), ("'", 1), ("S", 2)]
    assert written("ßl") == [("S", 0), ("S", 0), ("L", 1)], "one character may be several"
    assert written("a\tb") == [("A", 0), (" ", 1), ("B", 2)]
    assert written("a-7日!") == [("A", 0), ("?", 2), ("?", 3)]


def test_every_word_has_a_label_and_between_words_there_is_one_space():
    class Written:
        spell = staticmethod(Alphabet({c: i for i, c in enumerate(" ab", 1)}).spell)

    text = "  a – b  ,\n♪ 9 b!  "
    labels, owner = spelling(Written, text, units(text, None))
    assert owner == [0, -1, 1, -1, 2, -1, 3]
    assert labels == [2, 1, 3, 1, WILDCARD, 1, 3]


# Boundaries ---------------------------------------------------------------------------------------------------------


def activity(*parts: tuple[float, bool]) -> Activity:
    speech = np.concatenate([np.full(round(100 * seconds), on) for seconds, on in parts])
    return Activity(np.zeros(len(speech), np.float32), speech, 160, 160 * len(speech))


def test_a_pause_ends_and_begins_with_the_silence():
    vad = activity((0.5, True), (0.4, False), (0.6, True))
    words = [Word("a", 0.2, 0.4, 1.0), Word("b", 1.0, 1.4, 1.0)]
    spread(words, vad, 1.5)
    assert (words[0].end, words[1].start) == pytest.approx((0.5, 0.9))


def test_neighbours_share_one_boundary():
    words = [Word("a", 0.2, 0.4, 1.0), Word("b", 0.5, 0.7, 1.0)]
    spread(words, activity((1.0, True)), 1.0)
    assert words[0].end == words[1].start
    assert 0.4 <= words[0].end < 0.5


def test_attended_words_are_parted_by_silence():
    vad = activity((0.2, False), (0.6, True), (0.5, False), (0.7, True), (0.5, False))
    words = [Word("a", 0.0, 1.2, 1.0), Word("b", 1.2, 1.6, 1.0), Word("c", 1.6, 2.4, 1.0)]
    insert_pauses(words, vad, 2.5)
    times = [t for w in words for t in (w.start, w.end)]
    assert times == pytest.approx([0.2, 0.8, 1.3, 1.6, 1.6, 2.0])


def test_silence_is_the_longest_one():
    vad = activity((0.1, False), (0.3, True), (0.2, False), (0.4, True))
    assert silence(vad, 0.0, 1.0, 0.05) == pytest.approx((0.4, 0.6))
    assert silence(vad, 0.45, 0.5, 0.0) == pytest.approx((0.45, 0.5))
    assert silence(vad, 0.45, 0.5, 0.1, extend=True) == pytest.approx((0.4, 0.6))
    assert silence(vad, 0.6, 1.0, 0.05) is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_boundaries_stay_in_order(data):
    marks = sorted(data.draw(st.lists(st.integers(0, 150), min_size=2, max_size=12).filter(lambda m: len(m) % 2 == 0)))
    speech = data.draw(st.lists(st.booleans(), min_size=300, max_size=300))
    vad = Activity(np.zeros(300, np.float32), np.array(speech), 160, 48000)
    labels = [Word("w", 0.02 * a, 0.02 * b, 1.0) for a, b in zip(marks[::2], marks[1::2])]
    spread(labels, vad, 3.0)
    times = [t for w in labels for t in (w.start, w.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 3.0
    bounds = [0.02 * m for m in marks]
    attended = [Word("w", a, b, 1.0) for a, b in itertools.pairwise(bounds)]
    insert_pauses(attended, vad, 3.0)
    times = [t for w in attended for t in (w.start, w.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 3.0
