"""Subtitles of 20 scripts: every one is a slice of the text, and no line divides a letter, a number or a Latin word."""

import random

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.inference.subtitles import cues
from stentor.text.written_words import joined_windows

SPACED = (
    "straße déjà e\u0301clair don't|вечером шёл дождь,|καλημέρα σε όλους.|صباح الخير، كتابٌ|שָׁלוֹם לכולם|नमस्ते क्षत्रिय में।|"
    "আপনি কেমন আছেন।|வணக்கம் நண்பர்களே|నమస్కారం స్నేహితులారా|നമസ്കാരം ക്ഷമിക്കണം|გამარჯობა მეგობრებო|Բարեւ բոլորին։|"
    "ሰላም ለሁሉም።|안녕하세요 여러분, 각"
)
UNSPACED = (
    "今日は、 「テスト」を ゲーム ｶﾞｷﾞ １９９８年|我们在 北京， 二〇二四年 𠮷野家|วันที่ น้ำใจ เก๋ๆ ๒๕๖๗|ສະບາຍດີ ເຈົ້າ ໑໒|"
    "ជំរាបសួរ ខ្ញុំ ១២|မင်္ဂလာပါ သတ္တိ ၁၂၃|བཀྲ་ཤིས་ བདེ་ལེགས།"
)
SCRIPTS = [*((words, [" "]) for words in SPACED.split("|"))]
SCRIPTS += [(words, ["", "", "", " ", "\u3000", "\u200b"]) for words in UNSPACED.split("|")]
FOREIGN = ["", "", "", "1998", "9,999.00", "iPhone 15 Pro", "3.5%", "12\u00a0000", "👩🏽‍🚀", "🇫🇷", "?"]


@st.composite
def texts(draw):
    """The texts of windows: words of a script with others between them."""
    words, spaces = draw(st.sampled_from(SCRIPTS))
    pair = st.tuples(st.sampled_from(words.split()), st.sampled_from(FOREIGN))
    windows = []
    for _ in range(draw(st.integers(1, 3))):
        pieces = [piece for both in draw(st.lists(pair, min_size=1, max_size=20)) for piece in both if piece]
        text = "".join(piece + draw(st.sampled_from(spaces)) for piece in pieces)
        windows.append(text.strip(" \u3000\u200b"))
    return windows


def check(subtitles, text):
    """The lines, with the spaces between them, are the text. Raises AssertionError."""
    ends, at = set(), 0
    for line in "\n".join(cue.text for cue in subtitles).split("\n"):
        start = text.index(line, at)
        assert not text[at:start].strip(" \u3000\u200b")
        at = start + len(line)
        ends |= {start, at}
    assert at == len(text)
    whole = [*regex.finditer(r"\X", text), *regex.finditer(r"\d(?:[\d.,\u00a0]*\d)?|\p{Latin}[\p{Latin}\p{M}']*", text)]
    assert not [m.group() for m in whole if any(m.start() < end < m.end() for end in ends)]


@settings(max_examples=150, deadline=None)
@given(texts(), st.sampled_from([0.03, 0.1, 0.4]), st.sampled_from([0, 0.5, 0.9, 1]), st.integers(0, 99))
def test_the_texts_of_subtitles_are_the_text(windows, speed, known, seed):
    chance = random.Random(seed)
    text, at, segments, words = joined_windows(windows), 0.0, [], []
    for window in windows:
        start = at
        for match in regex.finditer(r"[^\s\u200b]\X?\X?", window):
            if chance.random() < known and match.group().isalnum():  # some words are not known
                words.append({"word": match.group(), "start": at, "end": at + speed})
            at += speed
        segments.append({"start": start, "end": at, "text": window})
        at += 0.3
    transcript = {"duration": at, "language": None, "text": text, "segments": segments}
    check(cues(transcript | ({"words": words} if known else {})), text)


def test_numbers_and_foreign_words_keep_their_form():
    for text in (
        "1998年にiPhone 15 Proが発売。",
        "我在2024年买了iPhone 15 Pro，花了9,999.00元。",
        "วันที่ 12 มกราคม 2567",
    ):
        segments = [{"start": 0.5, "end": 8.0, "text": text}]
        subtitles = cues({"duration": 9.0, "language": "ja", "text": text, "segments": segments})
        check(subtitles, text)
        assert len(subtitles) > 1
