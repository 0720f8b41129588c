"""Word times through the whole product: a tiny speech LLM with its alignment module, from export to subtitles."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import stentor
from stentor.cli import main

RATE = 16000


@pytest.fixture(scope="module")
def tiny_speech_llm():
    path = Path(__file__).parents[1] / "models" / "tiny_speech_llm.py"
    spec = importlib.util.spec_from_file_location("tiny_speech_llm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tiny_speech_llm, tmp_path_factory):
    """The export of an untrained model of the task `words`."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    bundle = tiny_speech_llm.build(aligner={"width": 16, "heads": 2}, freeze=["aligner.*"], token_rate=1.0)
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(
        json.dumps({"task": {"type": "words", "checks": {"on": False}}, "train": {"precision": "fp32"}})
    )
    return folder


@pytest.fixture
def spoken(monkeypatch):
    """The model writes two or three words, by the length of what it hears; the word times are its own."""
    from stentor.tasks.transcribe import Transcribe

    texts = ["one two three", "nine eight.", "– zero zero seven"]

    def decode(self, bundle, examples, temperature, ctc=False):
        outputs = [texts[len(e.audio) % 3] for e in examples]
        return [{"text": text, "words": [], "log_prob": -0.1, "failed": []} for text in outputs]

    monkeypatch.setattr(Transcribe, "_decode", decode)


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """Seventy seconds at 24 kHz: a tone that swells as syllables do, with a pause of a second every ten."""
    time = np.arange(70 * 24000) / 24000
    audio = 0.3 * np.sin(2 * np.pi * 440 * time) * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))
    for at in range(9, 70, 10):
        audio[at * 24000 : (at + 1) * 24000] = 0
    path = tmp_path_factory.mktemp("audio") / "long talk.flac"
    soundfile.write(path, audio, 24000)
    return path


def test_three_lines_of_python(model, spoken, long_file):
    transcript = stentor.load(model).transcribe(long_file)
    words = transcript.words
    assert len(words) >= 2 * len(transcript.segments)
    times = [t for w in words for t in (w["start"], w["end"])]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= transcript["duration"] == 70.0
    assert all(0 <= w["confidence"] <= 1 and set(w) == {"word", "start", "end", "confidence"} for w in words)
    # Every window's words lie in the window.
    remaining = iter(words)
    for segment in transcript.segments:
        for text in segment["text"].replace("–", "").split():
            word = next(remaining)
            assert word["word"] == text
            assert segment["start"] - 1.1 <= word["start"] <= word["end"] <= segment["end"] + 1.1
    assert len(transcript.segments) > 2


def test_words_of_arrays_and_files_are_the_same(model, spoken, long_file):
    loaded = stentor.load(model)
    audio, rate = soundfile.read(long_file, dtype="float32", stop=20 * 24000)
    short = long_file.with_name("short.wav")
    soundfile.write(short, audio, rate, subtype="FLOAT")
    assert loaded.transcribe(audio, rate).words == loaded.transcribe(short).words


def test_times_count_from_the_clip_and_not_from_the_room_before_it(model):
    from stentor.audio.synth import say
    from stentor.data.batch import Example
    from stentor.data.trained_speech import TrainedSpeech, with_room

    loaded = stentor.load(model)
    processor, clip = loaded.bundle.processor, Example("a", say("one two three").audio_at(RATE), text="one two three")
    processor.trained_speech = TrainedSpeech(room=0.5)
    (roomy,), (earlier,) = with_room(processor.trained_speech, processor, [clip])
    (words,) = loaded.task.align(loaded.bundle, [clip])
    processor.trained_speech = TrainedSpeech()
    (later,) = loaded.task.align(loaded.bundle, [roomy])
    within = [min(max(word["end"] - earlier, 0.0), len(clip.audio) / RATE) for word in later]
    assert earlier > 0.3 and [word["end"] for word in words] == pytest.approx(within, abs=2e-3)
    assert max(within) > 0


def test_every_format_from_the_command_line(model, spoken, long_file, tmp_path, capsys):
    formats = "json,txt,srt,vtt,ctm,textgrid"
    code = main(["transcribe", str(model), str(long_file), "--words", "--format", formats, "--out", str(tmp_path)])
    assert code == 0, capsys.readouterr().err
    transcript = json.loads((tmp_path / "long talk.json").read_text())
    ctm = [line.split() for line in (tmp_path / "long talk.ctm").read_text().splitlines()]
    assert [(row[0], row[4]) for row in ctm] == [("long_talk", w["word"]) for w in transcript["words"]]
    grid = (tmp_path / "long talk.TextGrid").read_text()
    assert grid.count("text = ") > len(transcript["words"]) and "xmax = 70\n" in grid
    srt, vtt = ((tmp_path / f"long talk.{kind}").read_text() for kind in ("srt", "vtt"))
    assert srt.count("-->") == vtt.count("-->") >= len(transcript["segments"]) - 1
    for segment in transcript["segments"]:  # with the signs that are not spoken
        assert all(part in srt for part in segment["text"].split())
