"""Transcripts as people have them."""

import pytest

from stentor.errors import ConfigError, DataError
from stentor.inference.formats import to_srt, to_textgrid, to_vtt
from stentor.studio.dataset import uploads
from stentor.studio.dataset.uploads import match, parse

TRANSCRIPT = {
    "audio": "a.wav",
    "duration": 6.0,
    "language": "en",
    "text": 'say "hi" now then stop',
    "words": [
        {"word": w, "start": s, "end": s + 0.4}
        for w, s in (("say", 0.1), ('"hi"', 0.6), ("now", 1.1), ("then", 4.0), ("stop", 4.5))
    ],
    "segments": [{"start": 0.1, "end": 1.5, "text": 'say "hi" now'}, {"start": 4.0, "end": 4.9, "text": "then stop"}],
}
SHORT = """File type = "ooTextFile"
"TextGrid"

0
2.5
<exists>
2
"IntervalTier"
"words"
0
2.5
2
0
1
"hello"
1
2.5
"there"
"IntervalTier"
"sentence"
0
2.5
1
0
2.5
"hello ""x"", there
you"
"""


def plain(entries):
    return [(e.text, e.file, e.start, e.end) for e in entries]


def test_our_own_files_are_read_back():
    expected = [('say "hi" now', "a", 0.1, 1.5), ("then stop", "a", 4.0, 4.9)]
    shown = [expected[0], ("then stop", "a", 4.0, 5.0)]  # a subtitle is shown for a second at least
    assert plain(parse("a.srt", to_srt(TRANSCRIPT).encode())) == shown
    assert plain(parse("a.vtt", to_vtt(TRANSCRIPT).encode())) == shown
    assert plain(parse("a.TextGrid", to_textgrid(TRANSCRIPT).encode())) == expected
    assert plain(parse("a.TextGrid", to_textgrid(TRANSCRIPT).encode("utf-16"))) == expected


def test_textgrids_of_praat():
    assert plain(parse("b.TextGrid", SHORT.encode())) == [('hello "x", there you', "b", 0.0, 2.5)]
    cut = SHORT.split('"IntervalTier"\n"sentence"')[0].replace('"there"', "")
    with pytest.raises(DataError, match=r"b.TextGrid:16: interval 2 of the tier words needs xmin, xmax and text"):
        parse("b.TextGrid", cut.encode())
    with pytest.raises(DataError, match=r"b.TextGrid:1: this is not a Praat TextGrid"):
        parse("b.TextGrid", b"hello")


def test_subtitles():
    text = "WEBVTT\n\n00:01.000 --> 00:02.5 align:start\n<v Ann>Hi <i>you</i>, 1 < 2\n\n"
    text += "01:00:00.0 --> 01:00:01.0\n{\\an8}on\n"
    entries = parse("t.vtt", text.encode())
    assert [(e.text, e.start, e.end, e.speaker) for e in entries] == [
        ("Hi you, 1 < 2", 1.0, 2.5, "Ann"),
        ("on", 3600.0, 3601.0, None),
    ]
    with pytest.raises(DataError) as error:
        parse("t.srt", b"1\n00:00:xx --> 1\nno\n\n2\n00:00:02,000 --> 00:00:01,000\nback\n")
    assert [line.split(": ")[0] for line in str(error.value).splitlines()] == ["t.srt:2", "t.srt:6"]


def test_lines_and_tables():
    for text, expected in (
        ("\ufeffeins\r\n\r\nzwei\r\n", [("eins", None), ("zwei", None)]),
        ("a.wav\tone two\nd/b.wav\tthree\n", [("one two", "a"), ("three", "b")]),
        ("LJ001|Dr. 12|Doctor twelve\n", [("Doctor twelve", "LJ001")]),
    ):
        assert plain(parse("x.txt", text.encode())) == [(*entry, None, None) for entry in expected]
    table = b'file;start;end;sentence\na.wav;1;2.5;hi\nb.wav;;;"x;y"\n'
    assert plain(parse("m.csv", table)) == [("hi", "a", 1.0, 2.5), ("x;y", "b", None, None)]
    assert plain(parse("m.tsv", b"a.wav\thello there\n")) == [("hello there", "a", None, None)]
    rows = b'{"audio_path": "c/a.wav", "text": "x", "start": 1, "duration": 2, "language_id": "fr", "speaker": 7}\n'
    entry = parse("m.jsonl", rows)[0]
    assert (entry.file, entry.start, entry.end, entry.language, entry.speaker) == ("a", 1, 3, "fr", "7")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"one,two,three\n1,2,3\n", "a.csv:1: no column is named text"),
        ("a.csv", b"file,text\nx.wav\n", "a.csv:2: 1 columns where the table has 2"),
        ("a.csv", b"file,text,start\nx.wav,hi,soon\n", "a.csv:2: `start` must be a number of seconds, got 'soon'"),
        ("a.csv", b"file,text,start,end\nx.wav,hi,nan,inf\n", "a.csv:2: start and end must be seconds"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n{\n', "a.jsonl:2: it has no `text`"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: its lists or objects are nested too deeply"),
        ("a.txt", b"fine\n\xff\xfa\n", "a.txt:2: this is not UTF-8 text"),
        ("a.txt", b"fine\nMZ\0\0", "a.txt:2: this is not a text file"),
        ("a.txt", b" \n", "a.txt holds no transcript"),
        ("a.txt", b"ok\n" + b"x" * 5001, "a.txt:2: A transcript of 5001 characters"),
    ],
)
def test_mistakes_are_told_with_their_line(name, data, message):
    with pytest.raises(DataError) as error:
        parse(name, data)
    assert message in str(error.value)


def test_at_most_twenty_problems(monkeypatch):
    with pytest.raises(DataError) as error:
        parse("a.jsonl", b"{\n" * 500)
    assert len(str(error.value).splitlines()) == 20
    monkeypatch.setattr(uploads, "MOST_TEXT", 10)
    with pytest.raises(ConfigError, match="larger than"):
        parse("a.txt", b"x" * 11)


def test_matching():
    entries = parse("t.csv", b"file,text\nB.WAV,two\nc.wav,three\n")
    matched, left = match(["A.wav", "x/b.flac"], entries)
    assert [[e.text for e in of] for of in matched] == [[], ["two"]] and [e.text for e in left] == ["three"]
    matched, _ = match(["b.wav", "a.wav"], parse("t.txt", b"first\nsecond"))
    assert [[e.text for e in of] for of in matched] == [["first"], ["second"]]
    with pytest.raises(DataError, match="Several recordings are named A, a: rename"):
        match(["a.wav", "d/A.mp3"], parse("t.csv", b"file,text\na.wav,x\n"))
    [[entry]], _ = match(["talk.mp3"], parse("other.srt", b"00:00:01,000 --> 00:00:02,000\nhi\n"))
    assert entry.text == "hi"


def test_texts_with_other_line_separators_stay_whole():
    """U+2028 and the like may stand in a JSON string and in a sentence; they end no line there."""
    row = '{"file": "a.wav", "text": "one\u2028two\x85three"}\n'
    assert len(parse("m.jsonl", row.encode())) == 1
    assert len(parse("t.txt", "one\u2028two\rthree\r\nfour".encode())) == 3


def test_commas_of_a_sentence_are_never_cut_off():
    assert [e.text for e in parse("m.csv", b'file,text\na.wav,"Hello, ""you"""\n')] == ['Hello, "you"']
    for table in (b"file,text\na.wav,Hello, world\n", b"text\nHello, world\n"):
        with pytest.raises(DataError, match=r"m.csv:2: \d columns where the table has \d. Put texts"):
            parse("m.csv", table)
    with pytest.raises(DataError, match=r"m.csv:3: .*quotation mark"):
        parse("m.csv", b'file,text\na.wav,fine\nb.wav,"never closed\n')
    excel = "\ufeffsep=;\r\nfile;text;start;end\r\na.wav;eins, zwei;1,5;2,25\r\n"
    assert plain(parse("m.csv", excel.encode())) == [("eins, zwei", "a", 1.5, 2.25)]
    assert plain(parse("m.csv", excel.encode("utf-16"))) == [("eins, zwei", "a", 1.5, 2.25)]


def test_quotes_between_tabs_mean_themselves():
    table = 'path\tsentence\na.mp3\t"No" she said.\nb.mp3\t"a ""b"" c"\nc.mp3\tsay "x\n'
    assert [e.text for e in parse("m.tsv", table.encode())] == ['"No" she said.', 'a "b" c', 'say "x']


def test_names_in_front_of_lines():
    """LibriSpeech and Kaldi: the name, a space, the text; only where every line begins with a recording's name."""
    text = b"84-1-0000 GO ON\n84-1-0001 STAY\n"
    entries = parse("84-1.trans.txt", text, ["84-1-0001.flac", "84-1-0000.flac"])
    assert [(e.file, e.text) for e in entries] == [("84-1-0000", "GO ON"), ("84-1-0001", "STAY")]
    assert [e.text for e in parse("x.txt", text, ["84-1-0000.flac"])] == ["84-1-0000 GO ON", "84-1-0001 STAY"]


def test_json_of_other_programs():
    whisper = (
        b'{"text": "a b", "segments": [{"start": 0, "end": 1.5, "text": " a"}, {"start": 2, "end": 3, "text": "b"}]}'
    )
    assert plain(parse("talk.json", whisper)) == [("a", "talk", 0, 1.5), ("b", "talk", 2, 3)]
    assert plain(parse("m.json", b'[{"file": "a.wav", "text": "x", "end": 2}]')) == [("x", "a", 0.0, 2)]
    for wrong in (b"[1]", b"{", b'{"text": 3}', b'{"text": "x", "start": 1' + b"0" * 400 + b"}", b"[" * 9999):
        with pytest.raises(DataError, match=r"m\.json"):
            parse("m.json", wrong)


def test_languages_are_codes():
    table = "file,text,locale\na,x,pt-BR\nb,y,Swedish\nc,z,no\nd,w,\n"
    assert [e.language for e in parse("m.csv", table.encode())] == ["pt", "sv", "nb", None]
    with pytest.raises(DataError, match=r"m.csv:2: There is no language 'klingonisch'"):
        parse("m.csv", b"file,text,locale\na,x,klingonisch\n")


def test_subtitles_as_they_are_found():
    dense = (
        "1\n00:00:01,000 --> 00:00:02,000\neins\n2\n00:00:02,000 --> 00:00:03,000\n2\n3\n00:00:04 --> 00:00:05\ndrei\n"
    )
    assert [(e.text, e.start) for e in parse("a.srt", dense.encode())] == [("eins", 1.0), ("2", 2.0), ("drei", 4.0)]
    twice = "00:00:01,000 --> 00:00:02,000\n{\\an8}eins\n\n00:00:01,000 --> 00:00:02,000\neins\n"
    assert len(parse("a.srt", twice.encode())) == 1
    web = "WEBVTT\n\n00:01.000 --> 00:02.000\n<00:01.500><c>Tom</c> &amp; &lt;b&gt;\n"
    assert [e.text for e in parse("a.vtt", web.encode())] == ["Tom & <b>"]


def test_silences_of_aligners_are_no_words():
    tier = SHORT.split('"IntervalTier"\n"sentence"')[0].replace('"there"', '"sp"').replace("<exists>\n2", "<exists>\n1")
    assert plain(parse("b.TextGrid", tier.encode())) == [("hello", "b", 0.0, 1.0)]


@pytest.mark.parametrize("name", ["a.docx", "a.html", "a.py", "a.pdf"])
def test_other_files_are_no_transcripts(name):
    with pytest.raises(DataError, match="no transcript that is taken"):
        parse(name, b"<html>hello</html>")


MANY = 2**19
HOSTILE = {
    "marks.TextGrid": lambda: '"TextGrid"' + '"' * MANY,
    "letters.TextGrid": lambda: '"TextGrid" ' + "a" * MANY + '"',
    "brackets.TextGrid": lambda: '"TextGrid" ' + "[" * MANY,
    "flags.TextGrid": lambda: '"TextGrid" ' + "<" * MANY,
    "others.TextGrid": lambda: '"TextGrid" ' + ")" * MANY,
    "lines.TextGrid": lambda: '"TextGrid" "' + "\n" * (MANY // 4),
    "voices.srt": lambda: "00:00:01,000 --> 00:00:02,000\n" + "<v " * (MANY // 3),
    "tags.srt": lambda: "00:00:01,000 --> 00:00:02,000\n" + "<i " * (MANY // 3) + "{\\" * 9999,
    "clocks.srt": lambda: "00:" * (MANY // 3) + "-->" * 9,
}
"""Files on which a reader that looks at anything twice never ends: half a megabyte of one line."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_soon(name):
    """Were one of them read in quadratic time, this test would not end."""
    with pytest.raises(DataError):
        parse(name, HOSTILE[name]().encode())


def test_too_many_lines():
    with pytest.raises(ConfigError, match="more than 1000000 lines"):
        parse("a.txt", b"\n" * 1_000_001)


def test_strings_of_textgrids():
    text = SHORT.replace('"hello ""x"", there\nyou"', '"""a"" b""\n""\nc"')
    assert plain(parse("b.TextGrid", text.encode())) == [('"a" b" " c', "b", 0.0, 2.5)]


def test_tables_and_json_have_all_names_of_layouts():
    """A sign of inches opens no quotation; audio may be an object; milliseconds are no seconds."""
    assert [e.text for e in parse("m.csv", b'file,text\na,5" pipe\nb,6" pipe\n')] == ['5" pipe', '6" pipe']
    rows = b'{"audio": {"path": "d/a.wav"}, "transcription": "x", "start_ms": 500, "end_ms": 1500, "json": 1}\n'
    assert plain(parse("m.jsonl", rows)) == [("x", "a", 0.5, 1.5)]
    assert plain(parse("m.csv", b"file,text,duration\na.wav,x,2\n")) == [("x", "a", None, None)]
