"""Whisper in the format of CTranslate2: its text and word times are ours, and what is no Whisper is refused."""

import importlib.util
import json

import pytest
import torch
from tiny_seq2seq import talking

from stentor.audio.synth import say
from stentor.cli import main
from stentor.data.batch import Example
from stentor.export.ctranslate2 import WhisperCTranslate2
from stentor.export.whisper import with_times
from stentor.inference.load import load

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return talking("whisper", tmp_path_factory.mktemp("whisper"))


@pytest.mark.parametrize("quantization", [None, pytest.param("float16", marks=pytest.mark.slow)])
def test_its_text_and_word_times_are_ours(folder, tmp_path, capsys, quantization):
    ct2 = pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    # Random weights attend to nothing, so rounding moves the times of their words.
    extra = ["--allow-difference", *(["--quantization", quantization] if quantization else [])]
    to = tmp_path / "ct2"
    assert main(["export", str(folder), "--to", str(to), "--format", "ctranslate2", *extra]) == 0
    assert "checked in ctranslate2" in capsys.readouterr().out
    facts = json.loads((to / "export.json").read_text())
    assert facts["clips"] >= 16 and facts["rows"][1]["differ"] == 0 and facts["rows"][-1]["differ"] <= 4
    assert facts["rows"][1]["times_ms"] is not None
    assert ct2.models.Whisper(str(to), device="cpu").n_mels == 80
    config = json.loads((to / "config.json").read_text())
    assert len(config["lang_ids"]) > 90 and config["alignment_heads"] == [[1, 0], [1, 1]]
    assert {p.name for p in tmp_path.iterdir()} == {"ct2"}


def test_an_export_that_differs_is_not_handed_over(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    write = WhisperCTranslate2.write

    def wrong(self, model, folder):
        weight = model.bundle.model.model.encoder.layer_norm.weight
        before = weight.data.clone()
        weight.data.copy_(torch.randn_like(before))
        write(self, model, folder)
        weight.data.copy_(before)

    monkeypatch.setattr(WhisperCTranslate2, "write", wrong)
    assert main(["export", str(folder), "--to", str(tmp_path / "ct2"), "--format", "ctranslate2"]) == 1
    assert "of 25 clips differ; 0.2 points are allowed" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"ct2-wrong"}


def test_faster_whisper_reads_it_with_word_times(folder, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    faster = pytest.importorskip("faster_whisper")
    model = load(folder, "cpu")
    (tmp_path / "ct2").mkdir()
    WhisperCTranslate2().write(model, tmp_path / "ct2")
    whisper = faster.WhisperModel(str(tmp_path / "ct2"), device="cpu", cpu_threads=1)
    example = Example("a", say("three seven nine").audio, None, "en")
    [ours] = with_times(model, [example])
    options = {"language": "en", "beam_size": 1, "temperature": 0, "without_timestamps": True, "max_new_tokens": 12}
    segments, facts = whisper.transcribe(example.audio, word_timestamps=True, log_prob_threshold=None, **options)
    [segment] = list(segments)[:1]
    assert facts.language == "en" and segment.text.strip() and ours["text"]
    assert segment.words and all(0 <= w.start <= w.end <= 30 for w in segment.words)


def test_without_the_package_it_says_what_to_install(folder, tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ctranslate2" else find_spec(name))
    assert main(["export", str(folder), "--to", str(tmp_path / "ct2"), "--format", "ctranslate2"]) == 2
    assert "pip install 'stentor[ct2]'" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_wrong_use_is_told(folder, tmp_path, capsys):
    to = ["--to", str(tmp_path / "to")]
    assert main(["export", str(folder), *to, "--quantization", "int8"]) == 2
    assert "--quantization is for other formats than hf" in capsys.readouterr().err
    if importlib.util.find_spec("ctranslate2"):
        assert main(["export", str(folder), *to, "--format", "ctranslate2", "--quantization", "int3"]) == 2
        assert (
            "--quantization int3 is not for --format ctranslate2: ctranslate2 knows float32" in capsys.readouterr().err
        )
    assert not any(tmp_path.iterdir())
