"""Transcripts as people have them."""

from dataclasses import replace

import pytest

from stentor.errors import ConfigError, DataError
from stentor.inference.formats import to_srt, to_textgrid, to_vtt
from stentor.studio.dataset import uploads
from stentor.studio.dataset.pairing import pair
from stentor.studio.dataset.uploads import parse as parsed
from stentor.text.transcript_formats import TranscriptEntry, stem

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


def parse(name, data, audio=()):
    return parsed(name, data, audio).entries


def plain(entries):
    return [(e.text, e.file and stem(e.file), e.start, e.end) for e in entries]


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
    text = SHORT.replace('"hello ""x"", there\nyou"', '"""a"" b""\n""\nc"')
    assert plain(parse("b.TextGrid", text.encode())) == [('"a" b" " c', "b", 0.0, 2.5)]
    tier = SHORT.split('"IntervalTier"\n"sentence"')[0].replace('"there"', '"sp"').replace("<exists>\n2", "<exists>\n1")
    assert plain(parse("b.TextGrid", tier.encode())) == [("hello", "b", 0.0, 1.0)]  # a silence is no word


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
    row = '{"file": "a.wav", "text": "one\u2028two\x85three"}\n'  # other separators of Unicode end no line
    assert len(parse("m.jsonl", row.encode())) == 1 and len(parse("t.txt", "one\u2028two\rthree".encode())) == 2
    table = b'file;start;end;sentence\na.wav;1;2.5;hi\nb.wav;;;"x;y"\n'
    assert plain(parse("m.csv", table)) == [("hi", "a", 1.0, 2.5), ("x;y", "b", None, None)]
    assert plain(parse("m.tsv", b"a.wav\thello there\n")) == [("hello there", "a", None, None)]
    rows = b'{"audio_path": "c/a.wav", "text": "x", "start": 1, "duration": 2, "language_id": "fr", "speaker": 7}\n'
    entry = parse("m.jsonl", rows)[0]
    assert (entry.file, entry.start, entry.end, entry.language, entry.speaker) == ("c/a.wav", 1, 3, "fr", "7")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"one,two,three\n1,2,3\n", "It begins with: one,two,three. Write"),
        ("a.csv", b"file,text\nx.wav\n", "a.csv:2: 1 columns where the table has 2"),
        ("a.csv", b"file,text,start\nx.wav,hi,soon\n", "a.csv:2: `start` must be a number of seconds, got 'soon'"),
        ("a.csv", b"file,text,start,end\nx.wav,hi,nan,inf\n", "a.csv:2: start and end must be seconds"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n{\n', "a.jsonl:2: it has no text"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: its lists or objects are nested too deeply"),
        ("a.txt", b"fine\n\xff\xfa\xff\xfa\n", "a.txt:2: this is not UTF-8 text"),
        ("a.txt", b"fine\nMZ\0\0", "a.txt:2: this is not a text file"),
        ("a.txt", b" \n", "a.txt holds no transcript"),
        ("a.txt", b"ok\n" + b"x" * 5001, "a.txt:2: A transcript of 5001 characters"),
        ("a.html", b"<html>hello</html>", "a.html is no transcript that is taken"),
        ("a.csv", b"file,text,locale\na,x,klingonisch\n", "a.csv:2: There is no language 'klingonisch'"),
        ("b.TextGrid", b"hello", "b.TextGrid:1: this is not a Praat TextGrid"),
    ],
)
def test_mistakes_are_told_with_their_line(name, data, message):
    with pytest.raises(DataError) as error:
        parse(name, data)
    assert message in str(error.value)


def test_limits_of_files(monkeypatch):
    with pytest.raises(DataError) as error:
        parse("a.jsonl", b"{\n" * 500)
    assert len(str(error.value).splitlines()) == 20
    with pytest.raises(ConfigError, match="more than 1000000 lines"):
        parse("a.txt", b"\n" * 1_000_001)
    monkeypatch.setattr(uploads, "MOST_TEXT", 10)
    with pytest.raises(ConfigError, match="larger than"):
        parse("a.txt", b"x" * 11)


def of(names, entries, records=()):
    """Texts by recording, texts of records, those that are left, and names that were guessed."""
    pairs = pair(names, records, entries)
    late = [(e.text, r["id"]) for e, r in pairs.of_records]
    return [[e.text for e in texts] for texts in pairs.of_uploads], late, [e.text for e, _ in pairs.left], pairs.guessed


def table(*names):
    return [TranscriptEntry(f"text of {name}", name) for name in names]


@pytest.mark.parametrize(
    ("recording", "written"),
    [
        ("a.wav", "/data/clips/a.mp3"),
        ("New Recording 3.m4a", "New%20Recording%203.m4a"),
        ("ds/wavs/1.wav", "Wav/1"),
        ("a3.wav", "/data/local-files/?d=up/a3.wav"),
        ("v1.5", "v1.5"),
        ("100%.wav", "100%.wav"),
    ],
)
def test_names_that_are_the_same(recording, written):
    texts, _, left, guessed = of(["zz.wav", recording], table(written))
    assert texts == [[], [f"text of {written}"]] and not left and not guessed


@pytest.mark.parametrize(
    ("recording", "written"),
    [("Take 1.wav", "take_1.wav"), ("u\u0308.wav", "\u00fc"), ("a3.wav", "8f2-a3.wav"), ("t.wav", "t.en.srt")],
)
def test_similar_names_are_guesses_and_need_to_be_alone(recording, written):
    assert of([recording], table(written))[0::3] == ([[f"text of {written}"]], {written})
    assert of([recording], table(written, recording))[0] == [[f"text of {recording}"]]
    assert of([recording], table(written, f"x-{written}".upper()))[0] == [[f"text of {written}"]]
    assert of(["take-1.wav"], table("take-bad-1.wav"))[0] == [[]]  # no mark of Label Studio
    rivals = table("TAKE 1.wav", "take-1.wav")
    assert of(["Take 1.wav"], rivals)[0] == [[]] and len(of(["Take 1.wav"], rivals)[2]) == 2


def test_folders_tell_names_apart():
    both = ["x/a.wav", "y/a.wav"]
    assert of(both, table("set/y/a.wav", "x/a.wav"))[0] == [["text of x/a.wav"], ["text of set/y/a.wav"]]
    assert of(both[:1], table(*both))[0] == [["text of x/a.wav"]]
    texts, _, left, _ = of(["a.wav"], table(*both))  # which of them it is, no one can know
    assert texts == [[]] and len(left) == 2
    with pytest.raises(DataError, match=r"Several recordings are named a\.wav: rename"):
        of(both, table("a.wav"))
    texts, _, left, _ = of(["set/x/a.wav", "set/y/b.wav"], table("y/a.wav", "y/b.wav"))
    assert texts == [[], ["text of y/b.wav"]] and left == ["text of y/a.wav"]  # x/a.wav is another one


def test_a_text_file_of_a_recordings_name_may_be_a_table():
    for lines in ("a2.wav\ttwo\na1.wav\tone", "file,text\na2.wav,two\na1.wav,one"):
        entries = parse("a1.txt", lines.encode(), ["a1.wav", "a2.wav"])
        assert [(e.file, e.text) for e in entries] == [("a2.wav", "two"), ("a1.wav", "one")]


def test_texts_without_names_are_paired_in_order():
    assert of(["b.wav", "a.wav"], parse("t.txt", b"first\nsecond"))[0] == [["first"], ["second"]]
    assert of(["talk.mp3"], parse("other.srt", b"00:00:01,000 --> 00:00:02,000\nhi\n"))[0] == [["hi"]]


def test_texts_of_recordings_that_the_data_set_has():
    records = [{"id": "1", "source": "Take-1"}, {"id": "2", "source": "x-a"}]
    records += [{"id": i, "source": "twice"} for i in "34"]
    _, late, left, guessed = of(["new.wav"], table("w/Take 1.wav", "x/a.wav", "twice.wav", "new.wav"), records)
    assert late == [("text of w/Take 1.wav", "1"), ("text of x/a.wav", "2")] and not guessed
    assert left == ["text of twice.wav"]


def test_commas_and_quotes_of_a_sentence_are_kept():
    assert [e.text for e in parse("m.csv", b'file,text\na.wav,"Hello, ""you"""\n')] == ['Hello, "you"']
    for table in (b"file,text\na.wav,Hello, world\n", b"text\nHello, world\n"):
        with pytest.raises(DataError, match=r"m.csv:2: \d columns where the table has \d. Put texts"):
            parse("m.csv", table)
    with pytest.raises(DataError, match=r"m.csv:3: .*quotation mark"):
        parse("m.csv", b'file,text\na.wav,fine\nb.wav,"never closed\n')
    excel = "\ufeffsep=;\r\nfile;text;start;end\r\na.wav;eins, zwei;1,5;2,25\r\n"
    assert plain(parse("m.csv", excel.encode())) == [("eins, zwei", "a", 1.5, 2.25)]
    assert plain(parse("m.csv", excel.encode("utf-16"))) == [("eins, zwei", "a", 1.5, 2.25)]
    tabs = 'path\tsentence\na.mp3\t"No" she said.\nb.mp3\t"a ""b"" c"\nc.mp3\tsay "x\n'
    assert [e.text for e in parse("m.tsv", tabs.encode())] == ['"No" she said.', 'a "b" c', 'say "x']


def test_names_in_front_of_lines():
    """LibriSpeech and Kaldi: the name, a space, the text, also of recordings that are not there. Names may have spaces;
    the longest one counts. A word that is also a recording's name is a name only where all lines begin with one."""
    text = b"84-1-0000 GO ON\n84-1-0001 STAY\n"
    entries = parse("84-1.trans.txt", text, ["84-1-0001.flac", "84-1-0000.flac"])
    assert [(e.file, e.text) for e in entries] == [("84-1-0000", "GO ON"), ("84-1-0001", "STAY")]
    assert parse("x.txt", text, ["84-1-0000.flac"]) == [
        replace(e, where=f"x.txt:{n}") for n, e in enumerate(entries, 1)
    ]
    names = ["New Recording.m4a", "New Recording 3.m4a", "hello.wav"]
    text = b'"New Recording 3.m4a" hello\nNew Recording 3 bye\nnew recording.m4a: so\nother one.mp3\twhat is it\n'
    assert [(e.file, e.text) for e in parse("x.txt", text, names)] == [
        *(("New Recording 3.m4a", "hello"), ("New Recording 3", "bye")),
        *(("new recording.m4a", "so"), ("other one.mp3", "what is it")),
    ]
    assert [(e.file, e.text) for e in parse("x.txt", b"hello world\nso it is\n", names)] == [
        *((None, "hello world"), (None, "so it is"))
    ]


def test_json_of_other_programs():
    whisper = b'{"segments": [{"seek": 0, "start": 0, "end": 1.5, "text": " a"}, {"start": 2, "end": 3, "text": "b"}]}'
    assert plain(parse("talk.json", whisper, ["talk.wav"])) == [("a", "talk", 0, 1.5), ("b", "talk", 2, 3)]
    assert plain(parse("m.json", b'[{"file": "a.wav", "text": "x", "end": 2}]')) == [("x", "a", 0.0, 2)]
    for wrong in (b"[1]", b"{", b'{"text": 3}', b'{"text": "x", "start": 1' + b"0" * 400 + b"}", b"[" * 9999):
        with pytest.raises(DataError, match=r"m\.json"):
            parse("m.json", wrong)


def test_languages_are_codes():
    table = "file,text,locale\na,x,pt-BR\nb,y,Swedish\nc,z,no\nd,w,\n"
    assert [e.language for e in parse("m.csv", table.encode())] == ["pt", "sv", "nb", None]


def test_subtitles_as_they_are_found():
    dense = (
        "1\n00:00:01,000 --> 00:00:02,000\neins\n2\n00:00:02,000 --> 00:00:03,000\n2\n3\n00:00:04 --> 00:00:05\ndrei\n"
    )
    assert [(e.text, e.start) for e in parse("a.srt", dense.encode())] == [("eins", 1.0), ("2", 2.0), ("drei", 4.0)]
    twice = "00:00:01,000 --> 00:00:02,000\n{\\an8}eins\n\n00:00:01,000 --> 00:00:02,000\neins\n"
    assert len(parse("a.srt", twice.encode())) == 1
    web = "WEBVTT\n\n00:01.000 --> 00:02.000\n<00:01.500><c>Tom</c> &amp; &lt;b&gt;\n"
    assert [e.text for e in parse("a.vtt", web.encode())] == ["Tom & <b>"]


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


def test_tables_and_json_have_all_names_of_layouts():
    """A sign of inches opens no quotation; audio may be an object; milliseconds are no seconds."""
    assert [e.text for e in parse("m.csv", b'file,text\na,5" pipe\nb,6" pipe\n')] == ['5" pipe', '6" pipe']
    rows = b'{"audio": {"path": "d/a.wav"}, "transcription": "x", "start_ms": 500, "end_ms": 1500, "json": 1}\n'
    assert plain(parse("m.jsonl", rows)) == [("x", "a", 0.5, 1.5)]
    assert plain(parse("m.csv", b"file,text,duration\na.wav,x,2\n")) == [("x", "a", None, None)]


LAYOUTS = {
    "datei.csv": "Datei;Text;Sprecher\na3.wav;three;ann\na1.wav;one;ann\n",
    "audiofile.csv": "Audio File,Transcript,speaker\na3.wav,three,ann\na1.wav,one,ann\n",
    "french.csv": "le fichier,locuteur,ce qui est dit\na3.wav,ann,three\na1.wav,ann,one\n",
    "coqui.csv": "audio_file|text|speaker_name\nwavs/a3.wav|three|ann\nwavs/a1.wav|one|ann\n",
    "piper.txt": "wav/a3.wav|ann|three\nWav/a1.wav|ann|one\n",
    "sovits.list": "D:\\out\\a3.wav|ann|JP|three\nD:\\out\\a1.wav|ann|all_zh|one\n",
    "nemo.json": '{"audio_filepath": "/d/a3.wav", "duration": 2.0, "text": "three", "speaker": "ann"}\n'
    '{"audio_filepath": "/d/a1.wav", "duration": 2.0, "text": "one", "speaker": "ann"}\n',
    "keys.jsonl": '{"x": "a3", "speaker": "ann", "said": "three"}\n{"x": "a1", "speaker": "ann", "said": "one"}\n',
    "fairseq.tsv": "id\taudio\tn_frames\ttgt_text\tspeaker\nx\ta3.wav\t1\tthree\tann\ny\ta1.wav\t1\tone\tann\n",
    "id.csv": "id,path,speaker,text\n1,a3.wav,ann,three\n2,a1.wav,ann,one\n",
}
"""Tables of the text of a3 and that of a1, by layout."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_column_of_file_names_is_found(name):
    entries = parse(name, LAYOUTS[name].encode(), ["a1.wav", "a2.wav", "a3.wav"])
    assert name != "sovits.list" or [e.language for e in entries] == ["ja", "zh"]
    assert [(stem(e.file), e.text, e.speaker, e.start) for e in entries] == [
        *(("a3", "three", "ann", None), ("a1", "one", "ann", None))
    ]


BY_NAME = ("a2|raw 2|two\na1|raw 1|one\n", "a2 two words\na1 one word\n")
"""Files of one column for commas, whose lines begin with names."""


@pytest.mark.parametrize(
    "text", ["title,text\nx,one\ny,two\n", "x,one\ny,two\n", "n,who,said\n1,ann,one\n2,ben,two\n", *BY_NAME]
)
def test_order_never_counts_beside_another_column(text):
    with pytest.raises(DataError, match=r"which column has the names of the recordings.*begins with: .*Write .file"):
        parse("t.csv", text.encode(), ["a1.wav", "a2.wav"])
    assert [e.file for e in parse("t.csv", b"text,speaker\none,ann\n", ["a1.wav"])] == [None]


def srt(*cues):
    return "".join(
        f"{i}\n00:00:{i:02d},000 --> 00:00:{i + 1:02d},000\n{cue}\n\n" for i, cue in enumerate(cues)
    ).encode()


SPEECH = {
    "sounds": (
        ["[Music]", "&gt;&gt; hi (laughs)", "♪ la ♪", "made (in 1990) here"],
        ["hi", "la", "made (in 1990) here"],
    ),
    "tags": (["th<i>e stage</i>", "<i>hello</i>\n<i>you</i>", "a < b"], ["the stage", "hello you", "a < b"]),
    "cut tags": (["<i>on th</i>\n<b>e stage</b>", "<i>so </i>\n<b>it is</b>"], ["on the stage", "so it is"]),
    "names": (["BEN: hi", "ANNA: Note: so", "Note: it"], ["BEN: hi", "ANNA: Note: so", "Note: it"]),
    "no names": (["Note: this", "is it", "Then: no"], ["Note: this", "is it", "Then: no"]),
    "turns": (["- Hi.", "- Yes -5.", "- No.\n- So?"], ["1: Hi.", "2: Yes -5.", "No. So?"]),
    "rolling": (["a b", "a b\nc d", "c d", "c d\ne f", "e f"], ["a b", "c d", "e f"]),
    "said again": (["No.", "No.", "No."], ["No.", "No.", "No."]),
    "growing": (["so", "so it", "so it is\ngood", "good"], ["so it is good"]),
    "blank": (["one\n\ntwo", "three"], ["one two", "three"]),
}


@pytest.mark.parametrize("case", SPEECH)
def test_subtitles_become_what_is_said(case):
    """With the speaker, where there is one. What is no speech takes no time from what is said beside it."""
    cues, said = SPEECH[case]
    read = parsed("a.srt", srt(*cues))
    assert [f"{e.speaker.removeprefix('speaker ')}: {e.text}" if e.speaker else e.text for e in read.entries] == said
    assert bool(read.remarks) == (case not in ("tags", "cut tags", "said again", "blank"))


def test_rolling_captions_have_the_time_of_their_line():
    """YouTube has lines of one space, words with times and cues of 10 ms; other programs let cues overlap."""
    cue = (
        "00:00:0{}.000 --> 00:00:0{}.990 align:start position:0%\n{}\n{}\n\n00:00:0{}.990 --> 00:00:0{}.000\n{}\n \n\n"
    )
    lines = [cue.format(1, 1, " ", "a<00:00:01.2><c> b</c>", 1, 2, "a b"), cue.format(2, 2, "a b", "c d", 2, 3, "c d")]
    read = parse("a.vtt", f"WEBVTT\nKind: captions\n\n{''.join(lines)}".encode())
    assert [(e.text, e.start, e.end) for e in read] == [("a b", 1.0, 1.99), ("c d", 2.0, 2.99)]
    over = "".join(f"00:00:0{i}.0 --> 00:00:0{i + 2}.0\nline {i}\n\n" for i in range(1, 6))
    assert [(e.start, e.end) for e in parse("a.srt", over.encode())] == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 7)]


def test_conversations_and_other_encodings():
    otter = "Ann  0:03  \nThank you\nall.\n\nUnknown Speaker  1:02  \nYes.\n\nTranscribed by https://otter.ai\n"
    assert plain(parse("a.txt", otter.encode())) == [("Thank you all.", "a", 3, 62), ("Yes.", "a", 62, None)]
    read = parsed("a.srt", srt("Café").decode().encode("cp1252"))
    assert read.entries[0].text == "Café" and read.remarks == (
        "a.srt: its text was read as Windows-1252, by what it holds.",
    )


def test_a_few_recordings_of_a_long_table():
    """LJSpeech's own table and three of its recordings, which are not among the first rows."""
    names = [f"LJ001-{n:04d}" for n in range(300)]
    table = "".join(f'{name}|In 18 "{name}|in eighteen "{name}\n' for name in names).encode()
    read = parsed("metadata.csv", table, [f"{name}.wav" for name in names[200:203]])
    assert [e.file for e in read.entries] == names and read.entries[0].text == 'in eighteen "LJ001-0000'
    assert read.remarks == ("metadata.csv was read as: LJSpeech.",)
