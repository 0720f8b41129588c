"""`stentor align`, as a user calls it, and its messages."""

import json
import re

import numpy as np
import pytest

from stentor.commands.align import align_file, read_text
from stentor.commands.recording_options import AlignOptions
from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import Aligned, describe_problem
from stentor.inference.align.engines import clip_of
from stentor.inference.recording import ArrayRecording


@pytest.fixture
def audio(tone):
    return tone("talk.wav", (0.4, None), (1.2, -10), (0.4, None))


def align(model, audio, **options):
    align_file(AlignOptions(**({"model": str(model), "audio": str(audio), "text": "one", "device": "cpu"} | options)))


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
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["talk.TextGrid", "talk.ctm", "talk.srt", "talk.vtt"]
    lines = [line.split() for line in (tmp_path / "out" / "talk.ctm").read_text().splitlines()]
    assert [line[4] for line in lines] == ["one", "two", "three"]


def test_a_text_that_is_not_said_is_aligned_with_a_warning(ctc_export, audio, monkeypatch, capsys):
    from stentor.inference.align import ctc

    monkeypatch.setattr(ctc, "MISMATCH", -1.0)
    align(ctc_export, audio, text="six five")
    out, err = capsys.readouterr()
    assert len(json.loads(out)["words"]) == 2
    assert err == (f"stentor: warning: {audio}: the text does not match the audio, so its times are unreliable.\n")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "elan"}, ConfigError, "Unknown --format elan; known: json, txt, srt, vtt, ctm, textgrid, rttm"),
        ({"format": "srt,ctm"}, ConfigError, "Several formats cannot share standard output: give a folder with --out."),
        ({"text": " "}, ConfigError, "The text is empty: give the words that are spoken."),
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
        read_text(str(tmp_path / "empty.txt"))
    (tmp_path / "sound.wav").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"sound\.wav is not UTF-8 text"):
        read_text(str(tmp_path / "sound.wav"))
    assert read_text("word " * 5000) == ("word " * 5000).strip(), "longer than any path"


def test_a_long_text_that_cannot_be_cut_says_what_was_heard():
    clip = clip_of(ArrayRecording(np.zeros(16000, np.float32), 16000, 16000, "talk"), "one")
    problem = describe_problem(clip, Aligned([], hypothesis="two six", reason="mismatch"))
    assert problem == (
        "talk: the text does not match the audio, so its times are unreliable. The model's transcript: 'two six'."
    )
