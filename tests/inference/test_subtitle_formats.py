"""The formats of subtitles: escapes, highlighted words, and what FFmpeg reads of them."""

import io
import re

import pytest

from stentor.inference.formats import SUBTITLES, render
from stentor.inference.options import SubtitleOptions

AWKWARD = "go x-->y {\\pos(1,1)}a\\Nb [00:09.00] <i>x</i>\tR&D <v y> end"
HIGHLIGHT = SubtitleOptions(highlight_words=True)


def transcript(text, seconds=0.5):
    times = [1 + i * seconds for i in range(len(text.split()) + 1)]
    words = [{"word": w, "start": a, "end": b} for w, a, b in zip(text.split(), times, times[1:])]
    segments = [{"start": 1.0, "end": times[-1], "text": text}]
    return {"duration": 60.0, "language": "en", "text": text, "segments": segments, "words": words}


SPOKEN = transcript("one two three")


@pytest.mark.parametrize(
    ("format", "rules", "text"),
    [
        ("lrc", None, "[00:01.00]one two three\n"),
        ("lrc", HIGHLIGHT, "[00:01.00]<00:01.00>one <00:01.50>two <00:02.00>three\n"),
        ("tsv", None, "start\tend\ttext\n1000\t2500\tone two three\n"),
        ("vtt", HIGHLIGHT, "<c>one</c> <00:00:01.500><c>two</c> <00:00:02.000><c>three</c>\n\n"),
        ("vtt", SubtitleOptions(highlight_words=True, max_line_width=5), "<c>one</c>\n<00:00:01.500><c>two</c>\n\n"),
        ("ass", None, "Dialogue: 0,0:00:01.00,0:00:02.50,Default,,0,0,0,,one two three\n"),
        ("ass", HIGHLIGHT, ",,{\\k50}one {\\k50}two {\\k50}three\n"),
        ("ass", SubtitleOptions(max_line_width=5), ",,one\\Ntwo\n"),
    ],
)
def test_each_format(format, rules, text):
    assert text in render(SPOKEN, format, rules)


def test_a_format_does_not_read_a_text_as_its_own_signs():
    source = transcript(AWKWARD, 1.0)
    formats = {name: render(source, name) for name in SUBTITLES}
    assert "go x--＞y ｛\\pos(1,1)}a＼Nb" in formats["srt"] and "[00:09.00] ＜i>x＜/i> R&D ＜v y> end" in formats["srt"]
    assert "go x--&gt;y {\\pos(1,1)}a\\Nb" in formats["vtt"] and "&lt;/i&gt; R&amp;D &lt;v y" in formats["vtt"]
    assert "go x-->y ｛＼pos(1,1)｝a＼Nb" in formats["ass"]
    assert "]go x--＞y {\\pos(1,1)}a\\Nb" in formats["lrc"] and "］ ＜i＞x＜/i＞" in formats["lrc"]
    assert all(row.count("\t") == 2 for row in formats["tsv"].splitlines())
    signs = {"srt": " --> ", "vtt": " --> ", "ass": "Dialogue:", "lrc": "\n", "tsv": "\n"}
    assert [formats[name].count(sign) for name, sign in signs.items()] == [2, 2, 2, 2, 3]


def test_speakers_are_named_where_another_one_begins():
    turns = [("A", "one"), ("A", "two"), ("B", "three")]
    segments = [{"start": 2.0 * i, "end": 2.0 * i + 1, "speaker": s, "text": t} for i, (s, t) in enumerate(turns)]
    source = {"duration": 9.0, "language": None, "text": "one two three", "segments": segments}
    assert render(source, "lrc") == "[00:00.00]A: one\n[00:02.00]two\n[00:04.00]B: three\n"
    assert [row.split("\t")[2] for row in render(source, "tsv").splitlines()] == ["text", "A: one", "two", "B: three"]
    assert re.findall(r"Default,(\w*),0,", render(source, "ass")) == ["A", "A", "B"]


@pytest.mark.parametrize("rules", [None, HIGHLIGHT])
@pytest.mark.parametrize("format", ["srt", "vtt", "ass", "lrc"])
def test_ffmpeg_reads_the_texts_and_the_times(format, rules):
    av = pytest.importorskip("av")
    source = transcript(
        "so {this} is x-->y & two. " + "and a second sentence that is long enough for two lines of it. " * 2
    )
    file = io.BytesIO(render(source, format, rules).encode())
    with av.open(file, format={"vtt": "webvtt"}.get(format, format)) as container:
        packets = [packet for packet in container.demux(container.streams.subtitles[0]) if packet.size]
    spoken = [float(row.split("\t")[0]) / 1000 for row in render(source, "tsv").splitlines()[1:]]
    assert [float(p.pts * p.time_base) for p in packets] == pytest.approx(spoken, abs=0.01) and len(spoken) > 2
    assert "sentence" in b" ".join(map(bytes, packets)).decode()
