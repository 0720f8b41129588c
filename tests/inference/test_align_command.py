"""`stentor align`, as a user calls it, and its messages."""

import json
import re

import numpy as np
import pytest

from stentor.audio.io import read
from stentor.commands.align import align as run_align
from stentor.commands.align import read_lines
from stentor.commands.recording_options import AlignOptions
from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import Aligned, Word, describe_problem, transcript, warnings_of
from stentor.inference.align.engines import clip_of
from stentor.inference.recording import ArrayRecording


@pytest.fixture
def audio(tone):
    return tone("talk.wav", (0.4, None), (1.2, -10), (0.4, None))


def align(model, audio, **options):
    run_align(AlignOptions(**({"model": str(model), "audio": str(audio), "text": "one", "device": "cpu"} | options)))


def test_words_as_json(ctc_export, audio, here):
    answer = json.loads(here("align", ctc_export, audio, "one two, three", "--device", "cpu"))
    assert [w["word"] for w in answer["words"]] == ["one", "two,", "three"]
    assert answer["text"] == "one two, three" and answer["duration"] == 2.0
    times = [t for w in answer["words"] for t in (w["start"], w["end"])]
    assert times == sorted(times) and times[-1] <= 2.0
    assert answer["segments"] == [{"start": times[0], "end": times[-1], "text": "one two, three"}]


def test_a_text_file_and_several_formats(ctc_export, audio, tmp_path):
    text = tmp_path / "talk.txt"
    text.write_text("one two\nthree\n")
    align(ctc_export, audio, text=str(text), format="ctm,textgrid,srt,vtt", out=str(tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == [
        "talk.TextGrid",
        "talk.ctm",
        "talk.srt",
        "talk.vtt",
    ]
    lines = [line.split() for line in (tmp_path / "out" / "talk.ctm").read_text().splitlines()]
    assert [line[4] for line in lines] == ["one", "two", "three"]


def test_rules_of_subtitles(ctc_export, audio, here):
    command = ["align", ctc_export, audio, "one two three", "--device", "cpu", "--format"]
    lines = here(*command, "tsv", "--cues", "words").splitlines()
    assert [line.split("\t")[2] for line in lines] == ["text", "one", "two", "three"]
    assert here(*command, "vtt", "--max-line-width", "5", "--highlight-words").count("<c>") == 3


def test_what_the_model_cannot_write_and_what_is_not_speech_are_named(ctc_export, audio, tmp_path, capsys):
    text = tmp_path / "talk.lab"
    text.write_text("one 二 [noise]\n(laughs)\ntwo three\n")
    align(ctc_export, audio, text=str(text), cues="lines", format="json,srt", out=str(tmp_path / "out"))
    answer, err = json.loads((tmp_path / "out" / "talk.json").read_text()), capsys.readouterr().err
    assert (answer["unwritten"], answer["ignored"]) == (["二"], ["[noise]", "(laughs)"])
    assert "the model cannot write '二': " in err and "brackets are left out: [noise], (laughs)." in err
    one, unwritten, two, three = answer["words"]
    assert unwritten["confidence"] == 0.0 and one["end"] <= unwritten["start"] < unwritten["end"] <= two["start"]
    lines = [(one["start"], unwritten["end"], "one 二 [noise]"), (two["start"], three["end"], "two three")]
    assert [(s["start"], s["end"], s["text"]) for s in answer["segments"]] == lines
    assert re.findall(r"\d\n(\D.*)\n", (tmp_path / "out" / "talk.srt").read_text()) == [
        "one 二 [noise] (laughs)",
        "two three",
    ]


def test_what_text_and_audio_lack_of_each_other_is_reported(tone):
    audio = read(tone("talk.wav", (0.5, None), (1.0, -10), (1.0, None), (2.0, -10), (0.5, None)), 16000)
    clip = clip_of(ArrayRecording(audio, 16000, 16000, "talk"), "one two three")
    words = [Word("one", 0.5, 1.0, 0.9), Word("two", 1.0, 1.5, 0.01, at=4), Word("three", 1.5, 1.5, 0.9, at=8)]
    output = transcript(clip, Aligned(words), "m")
    assert output["not_found"] == {"share": 0.6667, "places": [{"start": 1.0, "end": 1.52, "text": "two three"}]}
    (place,) = output["not_covered"]["places"]
    assert (place["start"], place["end"]) == pytest.approx((2.5, 4.5), abs=0.15)
    assert output["not_covered"]["share"] == pytest.approx(0.66, abs=0.04)
    lost, extra = warnings_of(None, output)
    assert lost == "talk: 67% of the words are not found in the audio: 'two three' at 1.00 s."
    assert re.fullmatch(r"talk: 6\d% of the speech is not in the text: 2\.\d\d to 4\.\d\d s\.", extra)


def test_a_text_that_is_not_said_is_aligned_with_a_warning(ctc_export, audio, monkeypatch, capsys):
    from stentor.inference.align import ctc

    monkeypatch.setattr(ctc, "MISMATCH", -1.0)
    align(ctc_export, audio, text="six five")
    out, err = capsys.readouterr()
    assert len(json.loads(out)["words"]) == 2
    assert err.startswith(f"stentor: warning: {audio}: the text does not match the audio, so its times are unreliable.")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cues": "verses"}, ConfigError, "Unknown --cues verses; known: auto, lines, words."),
        ({"format": "elan"}, ConfigError, "Unknown --format elan; known: json, txt, srt, vtt, ctm, textgrid, rttm"),
        ({"format": "srt,ctm"}, ConfigError, "Several formats cannot share standard output: give a folder with --out."),
        (
            {"format": "ctm", "cue_gap": 0.2},
            ConfigError,
            "--cue-gap: only for subtitles, so add --format srt, vtt, ass,",
        ),
        ({"text": " "}, ConfigError, "The text is empty: give the words that are spoken."),
        ({"text": "[a] (b)"}, DataError, "has no words: --read-brackets aligns what stands in brackets."),
        ({"text": "— !"}, DataError, "The text '— !' has no words: it has no letter and no digit."),
        (
            {"text": "one " * 300},
            DataError,
            "a text of 1,199 characters is too long for 2.00 s of audio: text and audio",
        ),
        ({"engine": "aligner"}, ConfigError, "does not support --engine aligner, only ctc."),
        ({"lag": 0.1}, ConfigError, "--lag is for the attention of Whisper models, not for the engine ctc: leave it"),
        ({"model": "nowhere"}, ConfigError, "There is no model nowhere"),
        ({"audio": "nothing.wav"}, DataError, "nothing.wav"),
    ],
)
def test_what_cannot_be_aligned(ctc_export, audio, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        align(**({"model": ctc_export, "audio": audio} | options))


def test_a_text_file_must_hold_text(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match=r"The file .*empty\.txt is empty"):
        read_lines(str(tmp_path / "empty.txt"))
    (tmp_path / "sound.wav").write_bytes(b"RIFF\xe4")
    with pytest.raises(DataError, match=r"sound\.wav:1: this is not UTF-8 text"):
        read_lines(str(tmp_path / "sound.wav"))
    assert read_lines("word " * 5000) == [("word " * 5000).strip()], "longer than any path"


GRID = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2\n<exists>\n1\n"IntervalTier"\n"text"\n0\n2\n3\n'
GRID += '0\n1\n"say ""one"" für"\n1\n1.5\n""\n1.5\n2\n"two"\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("suffix", "text"), [("lab", 'say  "one" für\r\n\r\ntwo\n'), ("TextGrid", GRID)])
def test_lines_of_texts_and_textgrids_in_any_encoding(tmp_path, suffix, text, encoding):
    path = tmp_path / f"a.{suffix}"
    path.write_text(text, encoding)
    assert read_lines(str(path)) == ['say "one" für', "two"]
    if suffix == "TextGrid":
        path.write_text(text.replace("1.5\n2\n", "1.5\n"), encoding)
        with pytest.raises(DataError, match=r"a\.TextGrid:\d+: interval 3 of the tier text needs xmin, xmax and text"):
            read_lines(str(path))


def test_a_text_file_that_is_missing_is_not_a_text():
    for text in ("no/such.txt", "no/such", "talk.TXT", "my talk.lab", r"C:\talks\one", "./talk.TextGrid"):
        with pytest.raises(ConfigError, match=r"^There is no file .*put them in a text file\.$"):
            read_lines(text)
    for text in ("one", "yes and/or no", "3.5", "Mr. Bean", "one / two", "/", "he said no."):
        assert read_lines(text) == [text]


def test_a_long_text_that_cannot_be_cut_says_what_was_heard():
    clip = clip_of(ArrayRecording(np.zeros(16000, np.float32), 16000, 16000, "talk"), "one")
    problem = describe_problem(clip, Aligned([], hypothesis="two six", reason="mismatch"))
    assert problem == (
        "talk: the text does not match the audio, so its times are unreliable. The model's transcript: 'two six'."
    )
