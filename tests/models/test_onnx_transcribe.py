"""The program beside the graphs of a speech LLM: without Stentor and torch, its text, word times and windows."""

import json
import os
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_speech_llm import ENCODERS, build, spoken_for

import stentor
from alone import alone
from stentor.audio.activity import EnergyDetector, speech_with_room
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.data.trained_speech import TrainedSpeech
from stentor.inference.vad import cut

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="ONNX exports need stentor[onnx]")

from stentor.export.onnx.speech_llm import write_graphs  # noqa: E402
from stentor.export.program import load_program, program, write_program  # noqa: E402
from stentor.export.templates import audio as audio_part  # noqa: E402
from stentor.export.templates import recordings, speech_llm, transcribing  # noqa: E402
from stentor.models.speech_llm.boundaries import Scores  # noqa: E402

ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
WHISPER = {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}


def test_it_is_short():
    assert len(program("speech_llm").splitlines()) <= 250


@pytest.mark.slow
def test_it_needs_four_packages_and_times_words(onnx_export, tmp_path):
    """Where the others cannot be imported it gives the words that Stentor gives for the model and file."""
    write(tmp_path / "speech.wav", say("three seven nine").audio, 16000)
    printed = alone(onnx_export[1] / "transcribe.py", tmp_path / "speech.wav", "--words")
    expected = stentor.load(onnx_export[0], "cpu").transcribe(tmp_path / "speech.wav").words
    rows = [line.split(None, 3) for line in printed.splitlines()]
    assert expected and [row[3] for row in rows] == [word["word"] for word in expected]
    times = np.array([[float(row[1]), float(row[2])] for row in rows])
    np.testing.assert_allclose(times, [[w["start"], w["end"]] for w in expected], atol=0.01)


def test_times_and_places_of_words_are_those_of_stentor():
    bundle, mine = spoken_for("whisper"), speech_llm.Recognizer.__new__(speech_llm.Recognizer)
    aligner, rng = bundle.model.aligner, np.random.default_rng(0)
    mine.facts = {"aligner": {"seconds_per_point": aligner.step}, "unspaced": "[\u4e00-\u9fff]"}
    for words, points in ((3, 40), (7, 20), (1, 300), (5, 6)):
        start, end = (torch.from_numpy(rng.normal(0, 3, (1, words, points))).float().log_softmax(-1) for _ in range(2))
        inside = torch.from_numpy(rng.normal(0, 3, (1, words + 1, points))).float()
        scores = Scores(start, end, inside, torch.ones(1, words, dtype=torch.bool), torch.tensor([points]))
        expected = aligner.times(scores)[0][0].numpy()
        found = mine.times(*(s[0].double().numpy() for s in (start, end, inside)))
        np.testing.assert_allclose(found, expected, atol=1e-4)
    text = "one - two, three"
    offsets = bundle.processor.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    found, places = mine.words(text, np.array(offsets))
    ends, parts = bundle.processor.word_tokens(text, [(0, 3), (6, 10), (11, 16)])
    assert found == ["one", "two,", "three"] and places["word_tokens"][0].tolist() == [list(e) for e in ends]
    np.testing.assert_allclose(places["word_parts"][0], parts, atol=1e-6)
    assert mine.words("\u4e00\u4e8c", np.array([(0, 2)]))[0] == ["\u4e00", "\u4e8c"]


ENCODER_KINDS = ("parakeet", "fixed", "window", "wav2vec2-large")
CLIPS = ((0.03, None, None), (1.3, "en", "Anna"), (4.0, "de", None))
"""Seconds, language, context."""


def encoder_of(kind):
    if kind == "fixed":
        return {"log_mel": "fixed", "config": ENCODERS["parakeet"]}
    return {"config": {**WHISPER, "encoder_ffn_dim": 16}, "window": "30s"} if kind == "window" else kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODER_KINDS)
def test_text_is_that_of_torch(kind, tmp_path):
    bundle = build(encoder_of(kind), token_rate=4.0, prompt={"instruction": "Say", "language": True, "context": True})
    for parameter in bundle.model.llm.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    write_graphs(bundle, tmp_path)
    write_program(tmp_path, "speech_llm")
    recognizer = load_program(tmp_path).Recognizer(tmp_path)
    for seconds, language, context in CLIPS:
        noise = (0.1 * np.random.default_rng(0).standard_normal(round(16000 * seconds))).astype(np.float32)
        inputs = bundle.processor.collate([Example("a", noise, None, language, context)], labels=False).inputs
        most = bundle.processor.max_new_tokens(seconds)
        [(ids, *_)] = bundle.model.generate(inputs, most, {bundle.processor.eos_id})
        assert recognizer.decode(noise, language, context) == (bundle.processor.decode(ids), [])


@pytest.mark.parametrize(("longest", "noise"), [(30.0, 0.0), (30.0, 0.001), (4.0, 0.0), (4.0, 0.02)])
def test_windows_are_those_of_stentor(longest, noise):
    rng = np.random.default_rng(1)
    parts = [say(text).audio for text in ("one two three", "four", "when the sun comes out", "nine nine nine")]
    for tail in (0.0, 0.5, 2.5):
        pauses = rng.choice([0.1, 0.4, 1.0, 2.6, 4.0], 12)
        audio = np.concatenate([np.append(parts[i % 4], np.zeros(round(16000 * p))) for i, p in enumerate(pauses)])
        audio = np.append(audio, np.zeros(round(16000 * tail))) + noise * rng.standard_normal(1)
        audio = (audio + noise * rng.standard_normal(len(audio))).astype(np.float32)
        activity = EnergyDetector().activity([audio], 16000)
        assert np.array_equal(recordings.find_speech(recordings.frame_levels(audio)), activity.speech)
        assert recordings.windows(audio, longest, None, None) == [
            (w.start, w.end) for w in cut(activity, 16000, longest)
        ]
        trained = {"padding": 0.2, "silence": 0.35}
        expected = [(w.start, w.end) for w in cut(activity, 16000, longest, **trained)]
        assert recordings.windows(audio, longest, **trained) == expected
        mine, theirs = recordings.with_room(parts[2], 0.2)[0], speech_with_room(parts[2], 16000, 0.2)[0]
        np.testing.assert_array_equal(mine, theirs)
    silence = np.zeros(32000, np.float32)
    assert (
        recordings.windows(silence, longest, None, None) == []
        and recordings.windows(silence[:0], longest, None, None) == []
    )
    spans = recordings.windows(audio, longest, None, None)
    assert all(a <= b for (_, a), (b, _) in pairwise(spans))


def test_windows_know_the_training_clips_as_stentor_does(tmp_path):
    """Also clips without any pause, whose longest is 0."""
    for room, longest, pause in product((None, 0.2), (None, 3.0), (None, 0.0, 0.1, 2.5)):
        speech = {"room": room, "longest": longest, "pause": pause}
        (tmp_path / "onnx_config.json").write_text(json.dumps({"max_seconds": 200.0, "speech": speech}))
        mine, theirs = transcribing.Transcriber(tmp_path), TrainedSpeech(**speech)
        assert (mine.longest, mine.silence) == (theirs.window_seconds(recordings.LONGEST), theirs.pause_limit)


def test_other_rates_are_resampled(tmp_path):
    time = np.arange(44100) / 44100
    write(tmp_path / "a.wav", (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32), 44100)
    audio = audio_part.read(tmp_path / "a.wav")
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(audio[200:-200], expected[200:-200], atol=2e-3)


@pytest.mark.slow
def test_in_an_environment_of_its_own_packages(tmp_path, here):
    """A small model that learned digits, in a virtual environment that has nothing else: its text is Stentor's for
    clips and a long recording, in float32, int8 and float16, whose error rates are close."""
    from stentor.metrics.wer import score

    config = (ROOT / "tests" / "models" / "onnx_small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(config + f"output: {tmp_path / 'runs'}\n")
    here("train", tmp_path / "small.yaml")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = ["numpy", "onnxruntime", "tokenizers", "soundfile"]
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *packages]
    subprocess.run(pip, check=True)
    rng, texts, files, long = np.random.default_rng(0), [], [], []
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for i in range(40):
        texts.append(" ".join(rng.choice(words, rng.integers(2, 7))))
        speech = say(texts[-1], voice=("en-us+f3", "en-us", "en-us+m2")[i % 3])
        files.append(tmp_path / f"{i}.wav")
        write(files[-1], speech.audio, 16000)
        long += [speech.audio, np.zeros(round(16000 * rng.choice([0.3, 1.0, 3.0])), np.float32)]
    files.append(tmp_path / "long.wav")
    write(files[-1], np.concatenate(long), 16000)
    rates = {}
    for kind in ("float32", "int8", "float16"):
        options = [] if kind == "float32" else ["--quantization", kind]
        here("export", tmp_path / "runs" / "small", "--to", tmp_path / kind, "--format", "onnx", *options)
        command = [venv / "bin" / "python", tmp_path / kind / "transcribe.py", *files]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        lines = [line.split(None, 3) for line in done.stdout.splitlines()]
        model = stentor.load(tmp_path / kind, "cpu")
        model.task.checks.on = False
        segments = {str(f): model.transcribe(f).segments for f in files}
        long_starts = [float(start) for name, start, _, _ in lines if name == str(files[-1])]
        # Windows longer than any training clip come out by chance; those of a model that knows them are its clips.
        assert len(long_starts) == len(segments.pop(str(files[-1]))) > 1
        output = {f: [text for name, _, _, text in lines if name == f] for f in segments}
        if kind != "int8":  # activations of a batch are quantized together
            assert output == {f: [s["text"] for s in each] for f, each in segments.items()}
        rates[kind] = score(texts, [" ".join(output[str(f)]) for f in files[:-1]]).value
    assert rates["float32"] < 0.4 and max(rates.values()) - min(rates.values()) < 0.03, rates
