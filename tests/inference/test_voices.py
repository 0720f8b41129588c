"""Voices: OmniVoice's voice clone prompts, the voices that travel with a model, and their list."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from speaking import RATE, make_codec, voiced

import stentor
from stentor.audio.io import read, write
from stentor.errors import ConfigError, DataError
from stentor.inference.speak.voice import Voice, load_voice, save_voice
from stentor.inference.speak.voice_clone_prompt import read_prompt
from stentor.models.codecs.base import AudioCodec

CODES = torch.randint(0, 1024, (8, 75), generator=torch.Generator().manual_seed(0))


class Higgs(AudioCodec):
    """What a voice asks of OmniVoice's codec."""

    type, sample_rate, hop, codebooks, vocabulary = "higgs_audio_v2", 24000, 960, 8, 1024


def prompt(path, codes=CODES, text="Hello thère.", rms=0.0625, **changes):
    """A file as VoiceClonePrompt.save of k2-fsa/OmniVoice writes it (omnivoice/models/omnivoice.py)."""
    values = {"format_version": 1, "ref_audio_tokens": codes.detach().cpu(), "ref_text": text, "ref_rms": float(rms)}
    torch.save({**values, **changes}, path)
    return path


@pytest.fixture
def speak(run):
    return partial(run, "speak")


@pytest.fixture
def model(talker, tmp_path):
    """A model with the voice `anna`."""
    folder = shutil.copytree(talker, tmp_path / "model")
    codec = stentor.load(folder).bundle.processor.codec
    codes = codec.encode([voiced(2.0)])[0]
    save_voice(Voice(codes, "one two three", "en", "/home/me/anna.wav"), folder / "voices" / "anna", codec)
    return folder


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_a_prompt_of_omnivoice_is_a_voice(tmp_path, dtype):
    path = prompt(tmp_path / "ann.pt", CODES.to(dtype))
    for name in (path, tmp_path / "ann"):
        voice = load_voice(name, Higgs())
        assert np.array_equal(voice.codes, CODES.numpy()) and voice.codes.dtype == np.int16
        assert (voice.text, voice.rms, voice.language) == ("Hello thère.", 0.0625, None)


def test_a_prompt_may_be_a_view_of_other_numbers(tmp_path):
    """As `audio_codes.squeeze(0)` is, and a transposed tensor, whose numbers lie in another order."""
    batch = torch.stack([CODES, CODES.flip(1)])
    assert np.array_equal(read_prompt(prompt(tmp_path / "a.pt", batch[1]))[0], CODES.flip(1))
    assert np.array_equal(read_prompt(prompt(tmp_path / "b.pt", CODES.T.contiguous().T))[0], CODES)


def test_fewer_codebooks_of_the_codec_take_the_first_ones(tmp_path):
    codec = Higgs()
    codec.codebooks = 4
    assert np.array_equal(load_voice(prompt(tmp_path / "a.pt"), codec).codes, CODES[:4])


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_prompt_is_run(tmp_path):
    with pytest.raises(DataError, match=r"is not a VoiceClonePrompt of OmniVoice \(it asks for posix.mkdir\)"):
        load_voice(prompt(tmp_path / "a.pt", ref_text=Attack(tmp_path / "attacked")), Higgs())
    assert not (tmp_path / "attacked").exists()


def test_damaged_prompts_and_those_of_other_versions(tmp_path):
    codec, path = Higgs(), tmp_path / "a.pt"
    with zipfile.ZipFile(prompt(path)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    intact = path.read_bytes()
    program = next(name for name in files if name.endswith("data.pkl"))
    rng = np.random.default_rng(0)
    for length in (2, 900, 3000, len(intact) - 1):
        path.write_bytes(intact[:length])
        with pytest.raises(DataError, match=r"a\.pt is cut short: copy it again, or create a voice from a recording"):
            load_voice(path, codec)
    place = intact.index(CODES.numpy().tobytes())
    path.write_bytes(intact[:place] + b"\xff" + intact[place + 1 :])
    with pytest.raises(DataError, match=r"a\.pt is damaged: copy it again"):
        load_voice(path, codec)
    for _ in range(200):  # each step of the program may be any other
        broken = bytearray(files[program])
        broken[rng.integers(len(broken))] = rng.integers(256)
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**files, program: bytes(broken)}.items():
                archive.writestr(name, data)
        with contextlib.suppress(DataError):
            assert load_voice(path, codec).frames > 0
    for changes, reason in (
        ({"format_version": 2}, "of format version 2"),
        ({"ref_text": 3}, "of other types"),
        ({"ref_audio_tokens": CODES.float()}, "it asks for torch.FloatStorage"),
    ):
        with pytest.raises(DataError, match=reason):
            load_voice(prompt(path, **changes), codec)
    for value, reason in (([1, 2], "it asks for EMPTY_LIST"), ({"format_version": 1, "ref_text": "a"}, "no ref_audio")):
        torch.save(value, path)
        with pytest.raises(DataError, match=f"is not a VoiceClonePrompt of OmniVoice .*{reason}"):
            load_voice(path, codec)
    torch.save({"a": 1}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(DataError, match="is not a torch file"):
        load_voice(path, codec)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(DataError, match="a zip of other files"):
        load_voice(path, codec)
    far = files[program].replace(b"QK\x00", b"Q\x8a\x10" + (10**30).to_bytes(16, "little"))  # the offset of the numbers
    assert far != files[program]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, program: far}.items():
            archive.writestr(name, data)
    with pytest.raises(DataError, match="is not a VoiceClonePrompt"):
        load_voice(path, codec)
    for codes in (CODES + 1000, CODES[:4]):
        with pytest.raises(DataError, match="its codes do not fit the codec"):
            load_voice(prompt(path, codes), codec)


def test_voices_of_a_model_are_known_by_name(model, speak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert stentor.load(model).voices == ["anna"]
    by_path = stentor.load(model).speak("seven", voice=model / "voices" / "anna")
    assert np.array_equal(stentor.load(model).speak("seven", voice="anna").codes, by_path.codes)
    assert speak(model, "seven", "--voice", "anna", "--out", "a.wav")[0] == 0
    assert np.abs(read(tmp_path / "a.wav") - by_path.audio).max() <= 1 / 32768
    (tmp_path / "t.jsonl").write_text('{"id": "a", "text": "seven", "voice": "anna", "seed": 0}\n')
    assert speak(model, "--from", "t.jsonl", "--out", "out")[0] == 0
    assert (tmp_path / "out" / "a.wav").read_bytes() == (tmp_path / "a.wav").read_bytes()
    code, _, _ = speak(model, "--voice", "anna", "--save-voice", "copy")
    assert (
        code == 0
        and (tmp_path / "copy.safetensors").read_bytes() == (model / "voices" / "anna.safetensors").read_bytes()
    )


def test_the_list_of_voices(model, run, tmp_path):
    prompt(model / "voices" / "ben.pt", text="What Ben says.\nAnd more.")
    code, out, err = run("voices", model)
    assert (code, err) == (0, "") and [line.split() for line in out.splitlines()] == [
        ["voice", "seconds", "language", "codec", "text"],
        ["anna", "2.0", "en", "mel_rvq", "one", "two", "three"],
        ["ben", "3.0", "-", "higgs_audio_v2", "What", "Ben", "says.", "And", "more."],
    ]
    rows = json.loads(run("voices", model / "voices", "--json")[1])
    assert [(row["name"], row["seconds"], row["text"]) for row in rows] == [
        ("anna", 2.0, "one two three"),
        ("ben", 3.0, "What Ben says.\nAnd more."),
    ]
    (model / "voices" / "ben.pt").write_bytes(b"x")
    code, out, err = run("voices", model)
    assert (
        code == 3
        and "anna" in out
        and "ben.pt is not a torch file" in err
        and "1 of 2 voices cannot be read: ben" in err
    )
    (tmp_path / "empty").mkdir()
    assert "There are no voices in" in run("voices", tmp_path / "empty")[1]
    assert run("voices", tmp_path / "nowhere")[0] == 2


def test_voices_go_along_with_a_copy(model, run, tmp_path):
    assert run("export", model, "--to", tmp_path / "merged", "--merge")[0] == 0
    assert stentor.load(tmp_path / "merged").voices == ["anna"]


def test_voices_go_along_to_the_hub_without_paths(model, tmp_path):
    from stentor.publish.model import build

    (model / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    remarks = build(model, tmp_path / "sent")
    assert "Voices go along with the model: anna. Publish only those whose speakers agree to it." in remarks
    assert json.loads((tmp_path / "sent" / "voices" / "anna.json").read_text())["source"] == "anna.wav"
    assert "/home/me" in (model / "voices" / "anna.json").read_text()
    prompt(model / "voices" / "ben.pt")
    with pytest.raises(ConfigError, match=r"ben\.pt may be a pickle.* again with --voice and --save-voice"):
        build(model, tmp_path / "again")


def many_lines(path, count):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]
    lines = [{"id": f"u{i}", "text": " ".join(words[i % 7 : i % 7 + 3])} for i in range(count)]
    lines[2]["text"] = "§§"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def same_folders(one, other):
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}
    assert (one / "speech.jsonl").read_text() == (other / "speech.jsonl").read_text()
    for path in one.glob("*.wav"):
        assert np.abs(read(path) - read(other / path.name)).max() <= 2 / 32768


@pytest.mark.slow
def test_several_processes_share_the_lines(talker, speak, tmp_path):
    texts = many_lines(tmp_path / "t.jsonl", 6)
    answers = [
        speak(talker, "--from", texts, "--out", tmp_path / f"by{n}", "--processes", n, "--device", "cpu")
        for n in (1, 2)
    ]
    for code, out, err in answers:
        assert code == 3 and "5 spoken" in out and "1 of 6 lines could not be spoken: line 3" in err
    same_folders(tmp_path / "by1", tmp_path / "by2")
    assert answers[0][2].replace("by1", "") == answers[1][2].replace("by2", "")


@pytest.mark.slow
def test_lines_on_a_cluster_are_those_of_this_machine(talker, speak, tmp_path, ray_cluster):
    texts = many_lines(tmp_path / "t.jsonl", 6)
    for name, more in (("here", []), ("ray", ["--ray", ray_cluster])):
        code, out, err = speak(talker, "--from", texts, "--out", tmp_path / name, "--device", "cpu", *more)
        assert code == 3 and "5 spoken" in out and "1 of 6 lines could not be spoken: line 3" in err
    same_folders(tmp_path / "here", tmp_path / "ray")


@pytest.mark.slow
def test_a_kill_loses_no_line(talker, speak, tmp_path):
    texts, out = many_lines(tmp_path / "t.jsonl", 40), tmp_path / "killed"
    arguments = [talker, "--from", texts, "--out", out, "--processes", 2, "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stentor", "speak", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 300
    while not list(out.glob("u*.wav")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "speech.jsonl").exists() and list(out.glob("u*.wav"))
    time.sleep(1)  # its processes end when it has
    for part in out.glob(".*.part"):
        part.unlink()
    code, printed, _ = speak(*arguments)
    assert code == 3 and "kept as they are" in printed
    speak(talker, "--from", texts, "--out", tmp_path / "once")
    same_folders(tmp_path / "once", out)


def test_the_level_of_the_reference_is_remembered(tmp_path):
    codec = make_codec()
    from stentor.inference.speak.reference import make_voice

    write(tmp_path / "quiet.wav", 0.1 * voiced(2.0), RATE)
    voice = make_voice(tmp_path / "quiet.wav", codec, "one")
    level = np.sqrt(np.square(0.1 * voiced(2.0)).mean())
    assert voice.rms == pytest.approx(level, rel=0.05)
    save_voice(voice, tmp_path / "quiet", codec)
    assert load_voice(tmp_path / "quiet", codec).rms == voice.rms
