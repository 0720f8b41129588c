"""Outputs are never replaced by those of other inputs, options or programs, and made again when something changed."""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.pipeline import progress
from stentor.pipeline.outputs import RECORD


@pytest.fixture
def call(export, tone, tmp_path, run):
    """Transcribes `talk.wav` with more arguments."""
    audio, model = tone("talk.wav", (1, -10)), export()
    return lambda *arguments, out="out": run("transcribe", model, audio, *arguments, "--out", tmp_path / out)


def record(folder):
    return [json.loads(line) for line in (folder / RECORD).read_text().splitlines() if line]


@pytest.mark.parametrize("options", [[], ["--skip-existing"]])
def test_each_channel_has_its_outputs(export, tone, tmp_path, run, options):
    sides = [soundfile.read(tone(f"{level}.wav", (1, -level)))[0] for level in (10, 20)]
    soundfile.write(tmp_path / "call.wav", np.stack(sides, 1), 16000)
    for channel in (0, 1, 1):
        arguments = ["--channel", channel, "--out", tmp_path / "out", *options]
        assert run("transcribe", tmp_path / "model" if channel else export(), tmp_path / "call.wav", *arguments)[0] == 0
    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("[!.]*")}
    assert texts == {"call.channel0.txt": "level 10\n", "call.channel1.txt": "level 20\n"}
    line = record(tmp_path / "out")[-1]["made_with"]
    assert line["source"] == str(tmp_path / "call.wav") and line["channel"] == 1 and "model" in line


def test_what_changed_is_done_again_with_the_reason(call, tone, tmp_path):
    written, model = tmp_path / "out" / "talk.txt", tmp_path / "model" / "config.json"
    call()
    for change, arguments, reason in [
        (lambda: None, [], None),
        (lambda: None, ["--min-speech", 0.1], "min_speech was not given and is 0.1 (1)"),
        (lambda: os.utime(model, (1, 1)), ["--min-speech", 0.1], "model was "),
        (lambda: tone("talk.wav", (1.5, -20)), ["--min-speech", 0.1], "its file changed (1)"),
        (lambda: None, ["--format", "txt,srt", "--min-speech", 0.1], ""),
    ]:
        change()
        before = written.stat().st_mtime_ns
        code, _, err = call("--skip-existing", *arguments)
        assert code == 0 and (reason or "") in err and ("done again" in err) == bool(reason)
        assert ("1 of 1 files have their outputs already" in err) == (reason is None)
        assert (written.stat().st_mtime_ns == before) == (reason is None)
    assert written.read_text() == "level 20\n"


def test_nothing_else_is_replaced_without_force(call, tmp_path, run, tone):
    film = tmp_path / "out" / "talk.srt"
    call()
    film.write_text("made by hand")
    for arguments, message in [
        (["--format", "srt"], "talk.srt would be replaced, but it was not made by this command, or was edited"),
        (["--keep-failed"], "talk.txt would be replaced, but keep_failed was not given and is True"),
    ]:
        code, _, err = call(*arguments)
        assert code == 2 and message in err and "give another --out, or --force" in err
    code, _, err = call("--format", "srt,txt", "--skip-existing")
    assert code == 0 and f"Kept: {film}, as it was not made by this command" in err
    other = tone("other/talk.wav", (1, -30))
    for options in ([], ["--skip-existing"]):
        code, _, err = run("transcribe", tmp_path / "model", other, "--out", tmp_path / "out", *options)
        assert code == 2 and f"source was {tmp_path / 'talk.wav'} and is {other}" in err
    for language, is_there in (("English", False), ("en", True), ("de", False)):  # a language is its code
        err = call("--language", language, "--skip-existing", out="spoken")[2]
        assert ("have their outputs already" in err) is is_there
    assert (film.read_text(), (tmp_path / "out" / "talk.txt").read_text()) == ("made by hand", "level 10\n")
    (tmp_path / "out" / "talk.txt").write_text("corrected by hand\n")
    assert call()[0] == 2 and call("--skip-existing")[0] == 0
    assert (tmp_path / "out" / "talk.txt").read_text() == "corrected by hand\n"
    assert call("--force", "--format", "srt,txt")[0] == 0 and call("--format", "srt,txt")[0] == 0
    assert "level 10" in film.read_text() and (tmp_path / "out" / "talk.txt").read_text() == "level 10\n"


def test_a_kill_leaves_nothing_that_counts_as_done(call, tone, tmp_path, monkeypatch):
    call("--format", "txt,json")
    tone("talk.wav", (1.5, -20))

    def killed(part, path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        assert call("--format", "txt,json", "--skip-existing")[0] == 130
    with (tmp_path / "out" / RECORD).open("a") as file:
        file.write('\n{"files": {"ta')
    code, _, err = call("--format", "txt,json", "--skip-existing")
    assert code == 0 and err == "1 of 1 files are done again: its file changed (1).\n"
    assert (tmp_path / "out" / "talk.txt").read_text() == "level 20\n"
    assert "have their outputs already" in call("--format", "txt,json", "--skip-existing")[2]


def test_speech_of_a_changed_line_is_made_again(talker, tmp_path, run):
    texts, out = tmp_path / "t.jsonl", tmp_path / "out"
    speak = partial(run, "speak", talker, "--out", out, "--from")
    texts.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    speak(texts)
    texts.write_text('{"id": "a", "text": "three four"}\n{"id": "b", "text": "two"}\n')
    before = {path.name: path.read_bytes() for path in out.glob("*.wav")}
    code, printed, err = speak(texts)
    assert code == 0 and "1 of 2 lines are done again: its line changed (1)." in err and "1 kept" in printed
    after = {path.name: path.read_bytes() for path in out.glob("*.wav")}
    assert after["a.wav"] != before["a.wav"] and after["b.wav"] == before["b.wav"]
    (other := tmp_path / "other.jsonl").write_text('{"id": "c", "text": "six"}\n')
    code, _, err = speak(other)
    assert code == 2 and f"{out / 'speech.jsonl'} lists the speech of {texts}: give another --out" in err
    assert run("speak", talker, "one", "--out", tmp_path / "one.wav")[0] == 0
    assert record(tmp_path)[0]["made_with"]["text"] == "one"


def test_alignment_of_a_changed_text(ctc_export, tone, tmp_path, run):
    audio, out = tone("talk.wav", (0.4, None), (1.2, -10), (0.4, None)), tmp_path / "out"
    align = partial(run, "align", ctc_export, audio)
    assert align("one", "--out", out)[0] == align("two", "--out", out)[0] == 0
    assert json.loads((out / "talk.json").read_text())["text"] == "two"
    code, _, err = align("two", "--out", out, "--language", "en")
    assert code == 2 and "language was not given and is en" in err


def test_progress_of_one_long_file(export, tone, run, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    audio = tone("long.wav", *[(20, -10), (4, None)] * 5)  # two minutes
    _, _, err = run("transcribe", export(), audio, "--batch-seconds", 1)
    assert [line.split(",")[0] for line in err.splitlines()] == [
        f"transcribing: {done} of 2.0 min of audio" for done in (0.4, 0.8, 1.2, 1.6)
    ]
    assert err.endswith(" min left\n")
