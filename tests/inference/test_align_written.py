"""Texts as they are written, for aligners that hear what is said."""

import numpy as np
import pytest

from stentor.data.word_units import units
from stentor.inference.align.base import Aligned, Word
from stentor.inference.align.engines import clip_of
from stentor.inference.align.written import align_written
from stentor.inference.recording import ArrayRecording


class Seconds:
    """Gives each word that it hears a second; it cannot write Chinese in English, which gets a tenth."""

    rate = 16000

    def align(self, clips, transcribe=False):
        words = [w["word"] for w in units(clips[0].text, clips[0].language)]
        foreign = [clips[0].language == "en" and word > "\u4e00" for word in words]
        return [Aligned([Word(w, i, i + 1 - 0.9 * f, 1 - f, f) for i, (w, f) in enumerate(zip(words, foreign))])]


def align(text, language=None, **options):
    clip = clip_of(ArrayRecording(np.zeros(16000, np.float32), 16000, 16000, "a"), text, language)
    return align_written(Seconds(), [clip], **options)[0]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "I paid $5 million on Jan 5, 2026 ok", "I 1 paid 2 $5 3 million 5 on 6 Jan 7 5, 8 2026 11 ok 12"),
        ("en", "20 % of R&B & more", "20 1 % 2 of 3 R&B 6 & 7 more 8"),
        ("de", "um 5:30 Uhr los", "um 1 5:30 2 Uhr 4 los 5"),
        ("zh", "有16个", "有 1 1 2 6 3 个 4"),
    ],
)
def test_numbers_are_read_aloud_and_keep_their_form(language, text, expected):
    words = align(text, language, normalize=True).words
    assert " ".join(f"{w.word} {w.end:.0f}" for w in words) == expected
    assert all(text[w.at :].startswith(w.word) for w in words)


def test_sounds_in_brackets_are_left_out_unless_asked_for():
    text = "[loud noise] a (he said it loudly) <cough> b *sighs* \u266a la la \u266a 2 * 3 (laughs) c"
    aligned = align(text)
    assert [w.word for w in aligned.words] == ["a", "(he", "said", "it", "loudly)", "b", "2", "3", "c"]
    assert aligned.ignored == ["[loud noise]", "<cough>", "*sighs*", "\u266a la la \u266a", "(laughs)"]
    read = align(text, brackets=True)
    assert [w.word for w in read.words][:3] == ["[loud", "noise]", "a"] and read.ignored == []


def test_words_that_cannot_be_written_share_what_their_neighbours_leave():
    words = align("a \u4e8c \u4e09\u4e09 b \u4e8c", "en").words
    times = [(0, 1), (1, 1 + 1.1 / 3), (1 + 1.1 / 3, 2.1), (3, 4), (4, 4.1)]
    assert np.allclose([(w.start, w.end) for w in words], times)
    assert [w.unwritten for w in words] == [False, True, True, False, True]
