"""The program beside the graphs of an ONNX export: without Stentor and torch, the text and the windows of Stentor."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_speech_llm import ENCODERS, build

import stentor
from stentor.audio.activity import EnergyDetector, speech_with_room
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.commands.export import onnx_graphs
from stentor.commands.export.onnx_graphs import quantize
from stentor.commands.export.probe import Tolerance
from stentor.data.batch import Example
from stentor.inference.vad import cut
from stentor.publish.onnx import PROGRAM, add_usage

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="ONNX exports need stentor[onnx]")

ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
GUARD = """\
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"stentor", "torch", "transformers", "scipy", "soxr", "lhotse", "librosa", "onnx"}:
            raise AssertionError(f"transcribe.py needs {name}")
sys.meta_path.insert(0, Guard())
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program in which the packages that it must do without cannot be imported."""
WHISPER = {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("onnx_transcribe", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported(folder, encoder, **options):
    """An untrained model whose language model is shaken, so that it says something, and its graphs."""
    bundle = build(encoder, token_rate=4.0, **options)
    for parameter in bundle.model.llm.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    bundle.model.requires_grad_(False).eval()
    folder.mkdir()
    bundle.family.save_onnx(bundle, folder)
    add_usage(folder, "not at all")
    return bundle


@pytest.fixture(scope="module")
def small(onnx_export):
    return onnx_export[1]


@pytest.mark.slow
def test_it_is_short_and_needs_four_packages(small, tmp_path):
    """Where the others cannot be imported it gives the text that Stentor gives for the same folder and file."""
    clip = say("three seven nine").audio
    write(tmp_path / "speech.wav", clip, 16000)
    assert len(PROGRAM.read_text().splitlines()) < 200
    command = [sys.executable, "-c", GUARD, str(small / "transcribe.py"), str(tmp_path / "speech.wav")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    model = stentor.load(small, "cpu")
    model.task.checks.on = False
    [segment] = model.transcribe(tmp_path / "speech.wav").segments
    line = f"{tmp_path / 'speech.wav'} {0:8.2f} {len(clip) / 16000:8.2f}  {segment['text']}\n"
    assert segment["text"] and done.stdout == line


ENCODER_KINDS = ("parakeet", "log_mel", "window", "wav2vec2-large")
CLIPS = ((0.03, None, None), (1.3, "en", "Anna"), (4.0, "de", None), (29.995, None, "Bo"))
"""Seconds, language, context."""


def encoder_of(kind):
    if kind == "log_mel":
        return {"log_mel": "whisper", "config": ENCODERS["parakeet"]}
    return {"config": {**WHISPER, "encoder_ffn_dim": 16}, "window": "30s"} if kind == "window" else kind


def noise(seconds):
    return (0.1 * np.random.default_rng(0).standard_normal(round(16000 * seconds))).astype(np.float32)


@pytest.mark.parametrize("kind", ENCODER_KINDS)
def test_features_and_prompt_are_those_of_stentor(kind, program, tmp_path):
    processor = build(encoder_of(kind), prompt={"instruction": "Say", "language": True, "context": True}).processor
    processor.save(tmp_path)
    recognizer = program.Recognizer.__new__(program.Recognizer)  # without graphs
    recognizer.settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    recognizer.tokenizer = program.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for seconds, language, context in CLIPS:
        clip = noise(seconds)
        features, lengths = processor.features([Example("a", clip)])
        mine, steps = recognizer.features(np.pad(clip, (0, max(0, 1600 - len(clip)))))
        assert steps == int(lengths[0])
        np.testing.assert_allclose(mine, features[0].numpy(), atol=2e-3)
        assert recognizer.words_before(language, context) == processor.ids(processor.prefix(language, context))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODER_KINDS)
def test_text_is_that_of_torch(kind, tmp_path, program):
    prompt = {"instruction": "Say", "language": True, "context": True}
    bundle = exported(tmp_path / "onnx", encoder_of(kind), prompt=prompt)
    recognizer = program.Recognizer(tmp_path / "onnx")
    for seconds, language, context in CLIPS[:3]:
        example = Example("a", noise(seconds), None, language, context)
        inputs = bundle.processor.collate([example], labels=False).inputs
        most = bundle.processor.max_new_tokens(seconds)
        [(ids, *_)] = bundle.model.generate(inputs, most, {bundle.processor.eos_id})
        assert recognizer.decode(noise(seconds), language, context) == bundle.processor.decode(ids)


@pytest.mark.parametrize(("longest", "noise"), [(30.0, 0.0), (30.0, 0.001), (4.0, 0.0), (4.0, 0.02)])
def test_windows_are_those_of_stentor(longest, noise, program):
    rng = np.random.default_rng(1)
    parts = [say(text).audio for text in ("one two three", "four", "when the sun comes out", "nine nine nine")]
    for tail in (0.0, 0.5, 2.5):
        pauses = rng.choice([0.1, 0.4, 1.0, 2.6, 4.0], 12)
        audio = np.concatenate([np.append(parts[i % 4], np.zeros(round(16000 * p))) for i, p in enumerate(pauses)])
        audio = np.append(audio, np.zeros(round(16000 * tail))) + noise * rng.standard_normal(1)
        audio = (audio + noise * rng.standard_normal(len(audio))).astype(np.float32)
        activity = EnergyDetector().activity([audio], 16000)
        assert np.array_equal(program.find_speech(program.frame_levels(audio)), activity.speech)
        assert program.windows(audio, longest, None, None) == [(w.start, w.end) for w in cut(activity, 16000, longest)]
        trained = {"padding": 0.2, "silence": 0.35}
        expected = [(w.start, w.end) for w in cut(activity, 16000, longest, **trained)]
        assert program.windows(audio, longest, **trained) == expected
        recognizer = program.Recognizer.__new__(program.Recognizer)
        recognizer.room, recognizer.limit = 0.2, None
        np.testing.assert_array_equal(recognizer.with_room(parts[2]), speech_with_room(parts[2], 16000, 0.2)[0])
    silence = np.zeros(32000, np.float32)
    assert (
        program.windows(silence, longest, None, None) == [] and program.windows(silence[:0], longest, None, None) == []
    )
    spans = program.windows(audio, longest, None, None)
    assert all(a <= b for (_, a), (b, _) in pairwise(spans))


def test_other_rates_are_resampled(tmp_path, program):
    time = np.arange(44100) / 44100
    write(tmp_path / "a.wav", (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32), 44100)
    audio = program.read(tmp_path / "a.wav")
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(audio[200:-200], expected[200:-200], atol=2e-3)


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_quantized_graphs_run_and_state_their_error_rate(kind, small, tmp_path, monkeypatch):
    """Untrained; how much of a trained model's text changes is measured by the slow test below."""
    folder = shutil.copytree(small, tmp_path / "onnx")
    quantize(folder, kind)
    monkeypatch.setattr(onnx_graphs, "COARSE", Tolerance(1.0, 99.0, 1.0))  # untrained, it is never sure
    model = stentor.load(small, "cpu")
    assert "export checked on 4 clips: WER" in str(onnx_graphs.compare_quantized(model, folder, kind))
    facts = json.loads((folder / "onnx_config.json").read_text())
    assert facts["quantization"] == kind and set(facts["quantized"]["wer"]) == {"model", "export"}
    sizes = [sum(f.stat().st_size for f in each.glob("*.onnx")) for each in (small, folder)]
    assert sizes[1] < sizes[0]
    add_usage(folder, "so", kind)
    assert {"int8": "in 8 bits", "float16": "in float16"}[kind] in (folder / "README.md").read_text()


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
        here("export", tmp_path / "runs" / "small", "--to", tmp_path / kind, "--onnx", *options)
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
