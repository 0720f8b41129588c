"""Golden files of every format, and the reading rules of subtitles."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.errors import ConfigError
from stentor.inference.formats import WRITERS, file_names, to_ctm, to_json, to_srt, to_textgrid, to_txt, to_vtt
from stentor.inference.subtitles import LINE, cues, wrap

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
        "1\n00:00:00,500 --> 00:00:03,467\nmister quilter <is> the\napostle of the middle\n\n"
        "2\n00:00:03,467 --> 00:00:06,500\nclasses and we are glad\nto welcome his gospel.\n\n"
        "3\n01:01:01,250 --> 01:01:02,000\nyes\n\n"
    )


def test_vtt():
    assert to_vtt(TRANSCRIPT) == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:03.467\nmister quilter &lt;is&gt; the\napostle of the middle\n\n"
        "00:00:03.467 --> 00:00:06.500\nclasses and we are glad\nto welcome his gospel.\n\n"
        "01:01:01.250 --> 01:01:02.000\nyes\n\n"
    )


def test_subtitles_with_word_times_follow_them():
    assert to_srt(WORDS) == (
        '1\n00:00:00,100 --> 00:00:00,950\nsay "hello"\n\n2\n00:00:02,000 --> 00:00:02,500\nnow\n\n'
    )


def test_json_and_txt():
    assert json.loads(to_json(TRANSCRIPT)) == TRANSCRIPT
    assert to_txt(TRANSCRIPT) == TRANSCRIPT["text"] + "\n"
    assert to_txt(WORDS) == 'A: say "hello" now\n'


def test_ctm():
    assert to_ctm(WORDS) == (
        'a_b 1 0.100 0.300 say 0.980\na_b 1 0.400 0.550 "hello" 0.500\na_b 1 2.000 0.500 now 1.000\n'
    )


def test_textgrid():
    assert (
        to_textgrid(WORDS)
        == """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 3
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "A"
        xmin = 0
        xmax = 3
        intervals: size = 6
        intervals [1]:
            xmin = 0
            xmax = 0.1
            text = ""
        intervals [2]:
            xmin = 0.1
            xmax = 0.4
            text = "say"
        intervals [3]:
            xmin = 0.4
            xmax = 0.95
            text = \"\"\"hello\"\"\"
        intervals [4]:
            xmin = 0.95
            xmax = 2
            text = ""
        intervals [5]:
            xmin = 2
            xmax = 2.5
            text = "now"
        intervals [6]:
            xmin = 2.5
            xmax = 3
            text = ""
""".replace('\\"', '"')
    )


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


TEXT = st.lists(st.text(st.sampled_from("abcdefg今日は"), min_size=1, max_size=60), min_size=1, max_size=60).map(
    " ".join
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TEXT, st.integers(1, 30_000), st.integers(0, 5000)), min_size=1, max_size=4))
def test_subtitles_can_be_read_and_lose_no_letter(parts):
    at, segments = 0.0, []
    for text, length, gap in parts:
        start = at + gap / 1000
        at = start + max(length / 1000, len(text) / 40)
        segments.append({"start": round(start, 3), "end": round(at, 3), "text": text})
    found = cues({"segments": segments})
    last = 0.0
    for cue in found:
        assert last <= cue.start < cue.end <= segments[-1]["end"] + 1e-6
        last = cue.end
        lines = wrap(cue.text).split("\n")
        assert len(lines) <= 2 and max(map(len, lines)) <= LINE
        assert "".join(lines).replace(" ", "") == cue.text.replace(" ", "")
    said = "".join(s["text"] for s in segments).replace(" ", "")
    assert "".join(cue.text for cue in found).replace(" ", "") == said


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text("abcdefgh", min_size=1, max_size=20), st.integers(0, 1500)), min_size=1, max_size=80))
def test_timed_subtitles_hold_whole_words_and_stay_7_seconds_at_most(items):
    at, words = 0.0, []
    for word, gap in items:
        start = at + gap / 1000
        at = start + 0.3
        words.append({"word": word, "start": start, "end": at})
    transcript = {"segments": [{"start": 0.0, "end": at, "text": " ".join(w for w, _ in items)}], "words": words}
    found = cues(transcript)
    assert " ".join(cue.text for cue in found).split() == [w for w, _ in items]
    starts, ends = {round(w["start"], 3) for w in words}, {round(w["end"], 3) for w in words}
    for cue in found:
        assert cue.start in starts and cue.end in ends
        assert cue.end - cue.start <= 7.0 + 1e-6
        assert len(wrap(cue.text).split("\n")) <= 2


def test_speakers_at_the_same_time_keep_their_subtitles():
    words = [
        {"word": "yes", "start": 1.0, "end": 2.0, "speaker": "A"},
        {"word": "no", "start": 1.0, "end": 1.5, "speaker": "B"},
        {"word": "well", "start": 2.0, "end": 2.5, "speaker": "A"},
    ]
    segments = [{"start": 1.0, "end": 2.5, "speaker": s, "text": ""} for s in "AB"]
    assert [(c.start, c.end, c.text) for c in cues({"segments": segments, "words": words})] == [
        (1.0, 1.5, "no"), (1.0, 2.5, "yes well")
    ]  # fmt: skip
    without = [{**segments[0], "text": "yes well"}, {**segments[1], "end": 1.5, "text": "no"}]
    assert [c.text for c in cues({"segments": without})] == ["no", "yes well"]


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
    found = file_names(paths)
    assert len({name.lower() for name in found}) == len(paths)
    assert not any("/" in name for name in found)
    if names:
        assert found == names
