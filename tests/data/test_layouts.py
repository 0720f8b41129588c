import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, audio_path, language_of, speaker_of, text_of
from stentor.data.layouts.recognise import LAYOUTS, encoding_of, recognise
from stentor.data.record_index import build_index
from stentor.errors import DataError
from stentor.sources.base import source_notes
from stentor.text.field_names import FIELD_NAMES


@pytest.fixture
def folder(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / "wavs").mkdir(exist_ok=True)
        soundfile.write(tmp_path / "wavs" / name, np.full(16000, 0.1), 16000)
    return tmp_path


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(folder, content, name="data.txt", **columns):
    """(layout, [(file, text, speaker, language, start, seconds)], notes) of a file with this content."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    spec = "".join(f",columns.{key}={value}" for key, value in columns.items())
    source = parse_source(f"type=jsonl,path={folder / name}{spec}")
    found = list(source.cuts())
    assert not [cut.message for cut in found if isinstance(cut, UnusableRecord)]
    rows = [
        (audio_path(c).rpartition("/")[2], text_of(c), speaker_of(c), language_of(c), c.start, c.duration)
        for c in found
    ]
    notes = source_notes(source, "data")
    return notes[0].partition("read as: ")[2].rstrip(".") if notes else "", rows, " ".join(notes[1:])


ANN = ("a.wav", "one two", "ann", "en", 0.0, 1.0)
ONE = ("a.wav", "one two", None, None, 0.0, 1.0)
TWO = ("b.wav", "two", None, None, 0.0, 1.0)
ASR = {"audio": "wavs/a.wav", "text": "language English<asr_text>one two"}
CHAT = [{"role": "user", "content": "<audio>Write it"}, {"role": "assistant", "content": "one two"}]
PARTS = [{"role": "user", "content": [{"type": "audio", "audio_url": "wavs/a.wav"}, {"type": "text", "text": "?"}]}]
REGION = {"start": 0.25, "end": 0.75}
TASK = {
    "id": 7,
    "data": {"audio": "/data/upload/1/0f3ab12c-a.wav"},
    "annotations": [
        {"result": [], "was_cancelled": True},
        {
            "result": [
                {"id": "x", "type": "labels", "value": {**REGION, "labels": ["ann"]}},
                {"id": "x", "type": "textarea", "value": {**REGION, "text": ["one two"]}},
            ]
        },
    ],
}
CASES = {
    "Qwen3-ASR JSON lines": (lines(ASR), [("a.wav", "one two", None, "en", 0.0, 1.0)]),
    "NeMo manifest": (
        lines({"audio_filepath": "wavs/a.wav", "offset": 0.25, "duration": 0.5, "text": "one", "speaker": 3}),
        [("a.wav", "one", "3", None, 0.25, 0.5)],
    ),
    "chats of ms-swift, LLaMA-Factory or Qwen2-Audio": (
        lines({"messages": CHAT, "audios": ["wavs/a.wav"]}, {"messages": [*PARTS, CHAT[1]]}),
        [ONE, ONE],
    ),
    "FunASR JSON lines": (lines({"key": "u1", "source": "wavs/a.wav", "target": "one two", "source_len": 9}), [ONE]),
    "JSON lines with other keys": (
        lines({"path": "wavs/a.wav", "sentence": "one", "start_ms": 250, "end_ms": 750}),
        [("a.wav", "one", None, None, 0.25, 0.5)],
    ),
    "JSON list": (json.dumps([{"audio": {"path": "wavs/a.wav"}, "transcription": "one two"}]), [ONE]),
    "JSON list in `data`": (json.dumps({"version": 1, "data": [{"wav": "wavs/a.wav", "txt": "one two"}]}), [ONE]),
    "JSON object": (json.dumps({"audio": "wavs/a.wav", "text": "one two"}, indent=1), [ONE]),
    "JSON objects over several lines": (
        "\n".join(json.dumps({"audio": row[0], "text": row[1]}, indent=1) for row in (ONE, TWO)),
        [ONE, TWO],
    ),
    "JSON records by their ids": (json.dumps({"u1": {"wav": "wavs/a.wav", "words": "one two"}}, indent=1), [ONE]),
    "Label Studio": (json.dumps([TASK]), [("a.wav", "one two", "ann", None, 0.25, 0.5)]),
    "Common Voice": ('client_id\tpath\tsentence\tlocale\nann\ta.mp3\t"one two"\ten\n', [ANN]),
    "Coqui": ("audio_file|text|speaker_name\nwavs/a.wav|one two|ann\n", [("a.wav", "one two", "ann", None, 0.0, 1.0)]),
    "SpeechBrain CSV": ("ID,duration,wav,spk_id,wrd\n1,1,wavs/a.wav,ann,one two\n", [(*ANN[:3], None, 0.0, 1.0)]),
    "DeepSpeech CSV": ("wav_filename,wav_filesize,transcript\nwavs/a.wav,9,one two\n", [ONE]),
    "LJSpeech": ("a|1 2|one two\nb|2, two|two\n", [ONE, TWO]),
    "Piper with speakers": ("wavs/a.wav|ann|one two\n", [(*ANN[:3], None, 0.0, 1.0)]),
    "GPT-SoVITS list": ("/other/place/a.wav|ann|EN|one two\n", [ANN]),
    "ZipVoice": ("u1\tone two\twavs/a.wav\n", [ONE]),
    "ZipVoice with times": ("u1\tone\twavs/a.wav\t0.25\t0.75\n", [("a.wav", "one", None, None, 0.25, 0.5)]),
    "Piper or LJSpeech, table with `|` between columns": (
        'a|"one two\n',
        [("a.wav", '"one two', None, None, 0.0, 1.0)],
    ),
    "table with `;` between columns": (
        'file;text;start\r\na.wav;"one ""two""";0,5\r\n',
        [("a.wav", 'one "two"', None, None, 0.5, 0.5)],
    ),
    "table with `,` between columns": (
        'file,text\nA.WAV,"one\ntwo, three"\nb,two\n',
        [("a.wav", "one\ntwo, three", None, None, 0.0, 1.0), TWO],
    ),
    "file and text, table with tabs between columns": ("a\tone two\nb\ttwo\n", [ONE, TWO]),
}  # fmt: skip


@pytest.mark.parametrize("layout", CASES)
def test_a_layout_is_recognised_by_its_content(folder, layout):
    text, rows = CASES[layout]
    assert read(folder, text)[:2] == (layout, rows)


def test_each_known_layout_has_a_case_and_is_in_the_guide():
    known = {name for name in LAYOUTS if not name.startswith("table")} - {"JSON lines"}
    guide = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert known <= CASES.keys() and not [name for name in known if name not in guide]


def test_plain_manifests_are_read_as_they_are(folder):
    row = {"audio_path": "wavs/a.wav", "text": "one two", "file": "x", "offset": 0.5, "source": "radio"}
    (folder / "m.jsonl").write_text(lines(row))
    reading = recognise(folder / "m.jsonl")
    assert [record for record, _ in reading.records()] == [row]
    assert reading.layout == "JSON lines" and "`offset`" in reading.notes[0]


@pytest.mark.parametrize("code", ["utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_text_in_other_encodings(folder, code):
    _, rows, notes = read(folder, "file;text\nwavs/a.wav;zwölf’s\n".encode(code))
    assert rows == [("a.wav", "zwölf’s", None, None, 0.0, 1.0)]
    assert ("Windows-1252" in notes, "UTF-16" in notes) == (code == "cp1252", "16" in code)


def test_damage_is_no_encoding():
    assert encoding_of("grün".encode() + b" gr\xfcn") is None and encoding_of(b"\x81\xff\x00") is None


def test_what_was_done_to_find_audio_is_counted(folder):
    assert (
        "2 records: the audio file was found in the folder wavs/, with its ending added."
        in read(folder, "a|one two\nb|two\n")[2]
    )
    notes = read(folder, "C:\\x\\Wavs\\A.wav|one\nwavs/b.flac|two\n")[2]
    assert "1 record: the audio file was found without the leading folders of its path, in another case" in notes
    assert "1 record: the audio file was found with another ending" in notes


def test_columns_name_what_is_called_otherwise(folder):
    assert read(folder, "Datei,Wortlaut\na,one two\n", audio_path="Datei", text="Wortlaut")[1] == [ONE]
    assert read(folder, "x,a,one two\nx,b,two\n", audio_path=2, text=3)[1] == [ONE, TWO]
    assert read(folder, "file,text,raw\na,1 2,one two\n", audio_path=1, text=3)[1] == [ONE]
    row = {"f": "wavs/a.wav", "t": "one two", "text": "raw", "n": 500}
    assert read(folder, lines(row), audio_path="f", text="t", duration_ms="n")[1] == [(*ONE[:5], 0.5)]


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        ("Datei,Wortlaut\na,one\n", {}, "begins with: Datei,Wortlaut.*columns.audio_path=file.*NeMo manifest"),
        (lines({"sound_file": "a.wav", "said": "one"}), {}, "begins with: sound_file, said"),
        ("a,b\na,one\n", {"audio_path": "c", "text": "b"}, "no `c`"),
        (json.dumps({"train": [ASR], "test": [ASR]}), {}, r"several lists \(`train`, `test`\)"),
        ("a.wav|x\nb.wav|ann|one two\n", {}, "no layout that is known"),
        ("file,text,duration\na.wav,one,soon\n", {}, "txt:2: `duration` must be a number of seconds"),
        ("file,text\na.wav,one, two\n", {}, "txt:2: 3 columns where the table has 2"),
        (lines({"audio": "wavs/a.wav", "text": "one", "duration": 1000}), {}, "duration_ms: duration"),
        ("u1|said before|wavs/a.wav|one two\n", {}, "no layout that is known"),
        ("file,phrase\nwavs/a.wav,one two\n", {}, "no layout that is known"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said(folder, text, columns, says):
    with pytest.raises(DataError, match=says):
        read(folder, text, **columns)


def test_unusual_values_of_known_keys(folder):
    row = {"audio": "/data/local-files/?d=wavs/a.wav", "transcription": ["one", "two"], "words": 2}
    _, rows, notes = read(folder, json.dumps([row]))
    assert rows == [ONE] and "1 record: `words` holds no word times and is not read." in notes
    missing = parse_source(f"type=jsonl,path={folder / 'lj.csv'}")
    (folder / "lj.csv").write_text("a|one two\nb|two\ngone|three\n")
    assert [cut.id for cut in missing.cuts() if isinstance(cut, UnusableRecord)] == ["gone"]


def test_a_milliseconds_column_corrects_the_durations(folder):
    row = {"audio": "wavs/a.wav", "text": "one two", "duration": 500}
    assert read(folder, lines(row), duration_ms="duration")[1] == [(*ONE[:5], 0.5)]


@pytest.mark.parametrize("layout", ["NeMo manifest", "LJSpeech", "Common Voice", "Qwen3-ASR JSON lines"])
def test_an_index_reads_the_same_records(folder, layout):
    (folder / "data.txt").write_text(CASES[layout][0])
    source = parse_source(f"type=jsonl,path={folder / 'data.txt'}")
    listed = list(source.cuts())
    index = build_index(source.path, source.record_filter())
    cuts = sorted(index.cuts(np.arange(len(index))), key=lambda cut: cut.id)
    assert [(c.id, text_of(c), c.duration) for c in cuts] == [(c.id, text_of(c), c.duration) for c in listed]


def test_an_index_needs_records_of_one_line(folder):
    (folder / "data.json").write_text(json.dumps([ASR]))
    with pytest.raises(DataError, match=r"JSON list.*single lines"):
        build_index(folder / "data.json")


def test_the_type_of_a_path_follows_from_its_content(folder):
    cases = {
        "metadata.csv": "jsonl", "list.txt": "jsonl", "train.lst": "jsonl", "x.list": "jsonl", "m.tsv": "jsonl",
    }  # fmt: skip
    for name in cases:
        (folder / name).write_text("wavs/a.wav\tone two\n")
    (folder / "cuts.jsonl").write_text(lines({"type": "MonoCut", "id": "x"}))
    (folder / "shards.lst").write_text("x.tar\t5\n")
    (folder / "x.tar").touch()
    (folder / "meta.lst").write_text("u1|said before|wavs/a.wav|one two\n")
    (folder / "texts.txt").write_text("one two\n")
    cases |= {"shards.lst": "shards", "cuts.jsonl": "manifest", "meta.lst": "speech_list", "texts.txt": "text"}
    assert {name: parse_source(str(folder / name)).type for name in cases} == cases


def test_names_stand_for_one_field_each():
    names = [name for names in FIELD_NAMES.values() for name in names]
    assert len(names) == len(set(names))


def test_a_folder_with_unread_texts_is_refused(folder):
    def says(name, text, answer):
        (folder / name).write_text(text)
        with pytest.raises(DataError, match=answer):
            parse_source(str(folder))
        (folder / name).unlink()

    says(
        "liste.csv", "Datei;Wortlaut\nwavs/a.wav;eins\nwavs/b.flac;zwei\n", "begins with: Datei;Wortlaut.*audio_folder"
    )
    says("wavs/list.tsv", "one two\ta.wav\ntwo\tb.flac\n", "begins with: one two")
    says("wavs/list.csv", "file,text\na.wav,one\n", "give one of .*wavs")
    (folder / "README.txt").write_text("Recordings of two people.\n")
    assert parse_source(str(folder)).type == "audio_folder"


def test_pairs_count_before_packed_copies_and_librispeech_is_read(folder):
    (folder / "wavs" / "a.txt").write_text("one two")
    (folder / "wavs" / "backup.tar").touch()
    assert parse_source(str(folder / "wavs")).type == "audio_folder"
    (folder / "wavs" / "a.txt").unlink()
    (folder / "wavs" / "x.trans.txt").write_text("a ONE TWO\nb TWO\ngone THREE\n")
    gone, *cuts = parse_source(str(folder)).cuts()
    assert {cut.id: text_of(cut) for cut in cuts} == {"wavs/a.wav": "ONE TWO", "wavs/b.wav": "TWO"}
    assert (gone.id, gone.reason) == ("wavs/gone", "no_audio")


def test_columns_by_number_skip_a_line_of_names(folder):
    assert read(folder, "Datei;Wortlaut\na;one two\nb;two\n", audio_path=1, text=2)[1] == [ONE, TWO]


def test_windows_paths_in_manifests(folder):
    assert read(folder, lines({"audio_path": "C:\\x\\wavs\\a.wav", "text": "one two"}))[1] == [ONE]
    reading = recognise(folder / "data.txt")
    assert [record["audio_path"] for record, _ in reading.records()] == ["wavs/a.wav"]
    assert "1 record: the audio file was found without the leading folders" in reading.notes[0]


def results(*more):
    text = {"id": "r", "from_name": "transcription", "value": {"text": ["one two"]}}
    return json.dumps([{"data": {"audio": "wavs/a.wav"}, "annotations": [{"result": [text, *more]}]}])


def test_other_controls_of_label_studio(folder):
    choice = {"id": "c", "from_name": "language", "value": {"choices": ["English"]}}
    note = {"id": "n", "from_name": "comment", "value": {"text": ["noisy"]}}
    _, rows, notes = read(folder, results(choice, note))
    assert rows == [("a.wav", "one two", None, "en", 0.0, 1.0)]
    assert "Not read: the texts of `comment`; those of `transcription` are the transcripts." in notes
    with pytest.raises(DataError, match=r"several controls \(`said`, `comment`\)"):
        read(folder, results(note).replace("transcription", "said"))
    row = {"audio": "wavs/a.wav", "transcription": "one two", "language": {"choices": ["English"]}}
    assert read(folder, json.dumps([row]))[1] == [("a.wav", "one two", None, "en", 0.0, 1.0)]
    _, rows, notes = read(folder, 'audio,transcription\nwavs/a.wav,"[""one"",""two""]"\n')
    assert rows == [ONE] and "1 record: several texts of one recording were joined." in notes


def test_records_of_one_recording_have_places_of_their_own(folder):
    (folder / "m.json").write_text(lines(*({"audio_filepath": "wavs/a.wav", "text": str(n)} for n in range(3))))
    source = parse_source(str(folder / "m.json"))
    ids = [cut.id for cut in source.cuts()]
    assert [source.places(ids)[name].rpartition(":")[2] for name in ids] == ["1", "2", "3"]
