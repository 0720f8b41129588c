"""Golden files of every format."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.data.word_times import LEAST
from stentor.errors import ConfigError
from stentor.inference.formats import WRITERS, file_names, to_ctm, to_json, to_srt, to_textgrid, to_txt, to_vtt
from stentor.inference.options import SubtitleOptions

TRANSCRIPT = {
    "audio": "talks/a b.wav",
    "duration": 3725.5,
    "language": "en",
    "text": "mister quilter <is> the apostle of the middle classes and we are glad to welcome his gospel. yes",
    "segments": [
        {
            "start": 0.5,
            "end": 6.5,
            "text": "mister quilter <is> the apostle of the middle classes and we are glad to welcome his gospel.",
        },
        {"start": 3661.25, "end": 3662.0, "text": "yes"},
    ],
    "model": "runs/x",
}
WORDS = {
    **TRANSCRIPT,
    "duration": 3.0,
    "segments": [{"start": 0.1, "end": 2.5, "speaker": "A", "text": 'say "hello" now'}],
    "words": [
        {"word": "say", "start": 0.1, "end": 0.4, "confidence": 0.98, "speaker": "A"},
        {"word": '"hello"', "start": 0.4, "end": 0.95, "confidence": 0.5, "speaker": "A"},
        {"word": "now", "start": 2.0, "end": 2.5, "confidence": 1.0, "speaker": "A"},
    ],
}


def test_srt():
    assert to_srt(TRANSCRIPT) == (
        "1\n00:00:00,500 --> 00:00:03,417\nmister quilter ＜is>\nthe apostle of the middle\n\n"
        "2\n00:00:03,500 --> 00:00:06,500\nclasses and we are glad\nto welcome his gospel.\n\n"
        "3\n01:01:01,250 --> 01:01:02,250\nyes\n\n"
    )


def test_vtt():
    assert to_vtt(TRANSCRIPT) == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:03.417\nmister quilter &lt;is&gt;\nthe apostle of the middle\n\n"
        "00:00:03.500 --> 00:00:06.500\nclasses and we are glad\nto welcome his gospel.\n\n"
        "01:01:01.250 --> 01:01:02.250\nyes\n\n"
    )


def test_subtitles_with_word_times_follow_them():
    # The first stays for a second, so that it can be read; in the silence after it there is time for that.
    assert to_srt(WORDS) == (
        '1\n00:00:00,100 --> 00:00:01,100\nsay "hello"\n\n2\n00:00:02,000 --> 00:00:03,000\nnow\n\n'
    )
    assert to_srt(WORDS, SubtitleOptions(cues="words")) == (
        "1\n00:00:00,100 --> 00:00:00,400\nsay\n\n"
        '2\n00:00:00,400 --> 00:00:00,950\n"hello"\n\n3\n00:00:02,000 --> 00:00:02,500\nnow\n\n'
    )


def test_json_and_txt():
    assert json.loads(to_json(TRANSCRIPT)) == TRANSCRIPT
    assert to_txt(TRANSCRIPT) == TRANSCRIPT["text"] + "\n"
    assert to_txt(WORDS) == 'A: say "hello" now\n'


def test_ctm():
    assert to_ctm(WORDS) == (
        'a_b 1 0.100 0.300 say 0.980\na_b 1 0.400 0.550 "hello" 0.500\na_b 1 2.000 0.500 now 1.000\n'
    )
    assert to_ctm(WORDS, channel="A").startswith("a_b A 0.100 ")


def test_textgrid():
    words = [*WORDS["words"][1:2], {"word": "now", "start": 2.0, "end": 3.0, "speaker": "A"}]
    intervals = [("0", "0.4", ""), ("0.4", "0.95", '""hello""'), ("0.95", "2", ""), ("2", "3", "now")]
    assert to_textgrid({**WORDS, "words": words}) == (
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 3\ntiers? <exists>\nsize = 1\n'
        "item []:\n"
        '    item [1]:\n        class = "IntervalTier"\n        name = "A"\n        xmin = 0\n        xmax = 3\n'
        "        intervals: size = 4\n"
    ) + "".join(
        f'        intervals [{i}]:\n            xmin = {a}\n            xmax = {b}\n            text = "{text}"\n'
        for i, (a, b, text) in enumerate(intervals, 1)
    )


def read_textgrid(text):
    """The tiers of a TextGrid in Praat's long format: name to (xmin, xmax, text) of its intervals."""
    tokens = iter(re.findall(r'"(?:[^"]|"")*"|<exists>|[-\d.]+(?=\s|$)', text))

    def number():
        return float(next(tokens))

    def string():
        return next(tokens)[1:-1].replace('""', '"')

    assert (string(), string()) == ("ooTextFile", "TextGrid")
    bounds = (number(), number())
    assert next(tokens) == "<exists>"
    tiers = {}
    for _ in range(int(number())):
        assert string() == "IntervalTier"
        name = string()
        assert (number(), number()) == bounds
        tiers[name] = [(number(), number(), string()) for _ in range(int(number()))]
    assert next(tokens, None) is None
    return bounds[1], tiers


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Z")), min_size=1, max_size=5),
            st.integers(0, 9),
            st.integers(0, 900),
            st.integers(0, 900),
            st.sampled_from("AB"),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_textgrid_read_back_is_complete_and_has_every_word(items, speakers):
    words, at = [], {"A": 0, "B": 0}
    for text, confidence, gap, length, speaker in items:
        voice = speaker if speakers else "A"
        start = at[voice] + gap
        at[voice] = start + length
        entry = {"word": text, "start": start / 1000, "end": at[voice] / 1000, "confidence": confidence / 10}
        words.append(entry | ({"speaker": voice} if speakers else {}))
    words.sort(key=lambda w: w["start"])
    duration = max(at.values()) / 1000 + 0.02
    end, tiers = read_textgrid(to_textgrid({**TRANSCRIPT, "duration": duration, "words": words}))
    assert end == pytest.approx(duration)
    assert set(tiers) == ({w["speaker"] for w in words} if speakers and words else {"words"})
    for name, intervals in tiers.items():
        tier_words = [w for w in words if w.get("speaker", "words") == name]
        edges = [0.0, *(b for _, b, _ in intervals)]
        assert [a for a, _, _ in intervals] == edges[:-1] and edges[-1] == pytest.approx(duration)
        assert all(b > a for a, b, _ in intervals)
        assert [t for _, _, t in intervals if t] == [w["word"] for w in tier_words]
        silence = sum(b - a for a, b, t in intervals if not t)
        assert silence <= duration - sum(w["end"] - w["start"] for w in tier_words) + 1e-6
        # Words keep their times, but for those that are too short, which move others by what they lack.
        short = sum(max(0.0, LEAST - (w["end"] - w["start"])) for w in tier_words)
        for word, (a, b, _) in zip(tier_words, [i for i in intervals if i[2]], strict=True):
            assert abs(a - word["start"]) <= short + 1e-9 and abs(b - word["end"]) <= short + 1e-9


def test_textgrid_of_long_recordings_keeps_milliseconds():
    late = {"word": "x", "start": 3600.123, "end": 3600.456}
    text = to_textgrid({**TRANSCRIPT, "words": [late]})
    assert "xmin = 3600.123" in text and "xmax = 3600.456" in text


@pytest.mark.parametrize("name", ["ctm", "textgrid"])
def test_word_formats_without_words_say_so(name):
    with pytest.raises(ConfigError, match=f"{name} format lists word times.*--words"):
        WRITERS[name](TRANSCRIPT)


def test_nothing_said():
    empty = {**TRANSCRIPT, "text": "", "segments": []}
    assert (to_srt(empty), to_vtt(empty), to_txt(empty)) == ("", "WEBVTT\n\n", "\n")


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.wav", "b.flac"], ["a", "b"]),
        (["x/a.wav", "y/a.wav", "b.wav"], ["x_a", "y_a", "b"]),
        (["p/x/a.wav", "q/x/a.wav"], ["p_x_a", "q_x_a"]),
        (["a.wav", "a.mp3"], ["a_wav", "a_mp3"]),
        (["a.wav", "a.wav"], ["a", "a-2"]),
        (["x/a.wav", "x/a.mp3", "y/a.wav"], ["x_a_wav", "x_a_mp3", "y_a"]),
        (["A.wav", "x/a.wav"], None),
        (["x_a.wav", "x/a.wav", "y/a.wav"], None),
    ],
)
def test_file_names_are_told_apart(tmp_path, monkeypatch, paths, names):
    monkeypatch.chdir(tmp_path)
    stems = file_names(paths)
    assert len({name.lower() for name in stems}) == len(paths)
    assert not any("/" in name for name in stems)
    if names:
        assert stems == names
