"""Text that seems made up, and the options of voice activity detection."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stentor.inference.load import load

RATE = 16000
SILERO = Path(__file__).parents[2] / ".." / "shared" / "data" / "weights" / "silero_vad" / "silero_vad.onnx"


@pytest.fixture
def run(run):
    """Runs `stentor transcribe ...`."""
    return partial(run, "transcribe")


@pytest.fixture
def unsure(meter, monkeypatch):
    """Models of the family are unsure of what is at -25 dB or less, however hot they sample."""
    import torch

    def load_unsure(folder, trainable=False):
        bundle = original(folder, trainable)
        generate = bundle.model.generate

        def answers(inputs, **options):
            quiet = (inputs["level"] <= -25).tolist()
            results = generate(inputs, **options)
            return [(ids, [-3.0] * len(ids) if low else scores) for (ids, scores), low in zip(results, quiet)]

        bundle.model.generate = answers
        return bundle

    original = meter.load
    monkeypatch.setattr(meter, "load", staticmethod(load_unsure))
    return torch


@pytest.fixture
def partly(tone):
    """Three stretches that are a minute apart; a model of `unsure` is unsure of the second."""
    return tone("partly.wav", (3, -10), (60, None), (4, -30), (60, None), (3, -20))


def test_failed_text_is_left_out_of_every_format_and_counted(export, unsure, partly, tmp_path, run):
    out = tmp_path / "out"
    formats = "txt,srt,vtt,ctm,textgrid,json"
    code, _, err = run(export(task="words"), partly, "--words", "--format", formats, "--out", out)
    assert code == 0
    assert "1 segment (4." in err and "mean_log_prob 1" in err and "--keep-failed" in err
    for suffix in ("txt", "srt", "vtt", "ctm", "TextGrid"):
        text = (out / f"partly.{suffix}").read_text()
        assert "10" in text and "20" in text and "level 30" not in text and '"30"' not in text
    transcript = json.loads((out / "partly.json").read_text())
    assert transcript["text"] == "level 10 level 20"
    assert [w["word"] for w in transcript["words"]] == ["level", "10", "level", "20"]
    assert [s["text"] for s in transcript["segments"]] == ["level 10", "level 20"]
    (failed,) = transcript["failed"]
    assert (failed["text"], failed["reason"]) == ("level 30", "mean_log_prob")
    assert (failed["start"], failed["end"]) == pytest.approx((63, 67), abs=0.1)


def test_keep_failed_keeps_it(export, unsure, partly, tmp_path, run):
    out = tmp_path / "out"
    code, _, err = run(export(), partly, "--keep-failed", "--format", "srt,json", "--out", out)
    assert (code, err) == (0, "")
    assert "level 30" in (out / "partly.srt").read_text()
    transcript = json.loads((out / "partly.json").read_text())
    assert [s.get("failed") for s in transcript["segments"]] == [None, ["mean_log_prob"], None]
    assert "failed" not in transcript


def test_thresholds_of_a_call(export, unsure, partly, run):
    model = load(export())
    assert model.transcribe(partly).failed[0]["text"] == "level 30"
    assert model.transcribe(partly, log_prob_threshold=-4).failed == []
    assert model.transcribe(partly, keep_failed=True).text == "level 10 level 30 level 20"
    strict = model.transcribe(partly, compression_ratio_threshold=1.0001, log_prob_threshold=-0.01)
    assert strict.text == "" and len(strict.failed) == 3
    code, out, _ = run(export(Path(partly).parent / "again"), partly, "--log-prob-threshold", "-4")
    assert (code, out) == (0, "level 10 level 30 level 20\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log-prob-threshold", "1"], "a number below 0"),
        (["--compression-ratio-threshold", "0.5"], "a number above 1"),
        (["--no-speech-threshold", "0.5"], "has no no-speech probability"),
        (["--vad-threshold", "-3"], "dB above the noise floor"),
        (["--vad", "silero", "--vad-threshold", "6"], "a probability between 0 and 1"),
        (["--vad", "silero"], "needs silero_vad"),
    ],
)
def test_impossible_thresholds(export, tone, run, options, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "silero_vad", None)
    code, out, err = run(export(), tone("a.wav", (1, -10)), *options)
    assert (code, out) == (2, "") and message in err and len(err.strip().splitlines()) == 1


def windows_of(model, path, **options):
    """Seconds of each window that the model is given."""
    del model.bundle.model.batches[:]
    model.transcribe(path, **options)
    return sorted(round(n / RATE, 1) for batch in model.bundle.model.batches for n in batch)


def test_silence_and_short_speech_are_not_given_to_the_model(export, tone):
    model = load(export())
    path = tone("a.wav", (2, None), (3, -10), (1, None), (0.5, -10), (1, None), (5, -10), (2, None))
    assert windows_of(model, path) == [1.5, 5.5, 7.5, 14.5]  # the text is too short for the speech: its pieces, too
    assert windows_of(model, path, min_silence=0.5, speech_pad=0.2) == pytest.approx([0.9, 3.4, 5.4], abs=0.15)
    assert windows_of(model, path, min_silence=0.5, speech_pad=0.0) == pytest.approx([0.5, 3.0, 5.0], abs=0.15)
    assert windows_of(model, path, min_silence=0.5, min_speech=1) == pytest.approx([3.3, 5.3], abs=0.15)
    assert windows_of(model, path, min_silence=1.5) == pytest.approx([1.5, 3.7, 5.7, 10.8], abs=0.15)


@pytest.mark.parametrize("pad", [0.3, 3.0])
def test_padding_never_gives_audio_twice(export, tone, pad):
    model = load(export())
    path = tone("a.wav", (3, -10), (0.6, None), (3, -10), (0.6, None), (5, -10))
    lengths = windows_of(model, path, min_silence=0.3, speech_pad=pad)
    assert len(lengths) == 3 and sum(lengths) == pytest.approx(12.2, abs=0.2)


def test_the_energy_threshold_is_in_decibels_above_the_noise(export, tone):
    model = load(export())
    noise = 10 ** (-50 / 20) * np.random.default_rng(0).standard_normal(10 * RATE)
    noise[3 * RATE : 6 * RATE] *= 10 ** (8 / 20) * (0.75 - 0.25 * np.cos(np.arange(3 * RATE) * 8 * np.pi / RATE))
    assert model.transcribe(noise, RATE, vad_threshold=3.0).segments
    assert model.transcribe(noise, RATE, vad_threshold=12.0).segments == []


def test_silero_comes_from_its_package(export, tmp_path, monkeypatch, run):
    if not SILERO.exists():
        pytest.skip("Silero's weights are not there: ../shared/data/weights/silero_vad")
    package = tmp_path / "silero_vad"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')")
    (package / "data" / "silero_vad.onnx").symlink_to(SILERO.resolve())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    noise = 0.05 * np.random.default_rng(0).standard_normal(5 * RATE)
    swelling = noise * (0.55 - 0.45 * np.cos(np.arange(len(noise)) * 8 * np.pi / RATE))
    model = load(export())
    assert model.transcribe(swelling, RATE).text  # to the energy detector these are syllables
    assert model.transcribe(swelling, RATE, vad="silero", vad_threshold=0.6).text == ""


def test_noise_and_silence_print_nothing(export, tmp_path, run):
    import soundfile

    rng = np.random.default_rng(0)
    files = []
    for name, audio in (
        ("noise5", 0.05 * rng.standard_normal(5 * RATE)),
        ("noise60", 0.05 * rng.standard_normal(60 * RATE)),
        ("silence20", np.zeros(20 * RATE)),
    ):
        files.append(tmp_path / f"{name}.wav")
        soundfile.write(files[-1], audio, RATE)
    for file in files:
        assert run(export(tmp_path / file.stem), file) == (0, "\n", "")
