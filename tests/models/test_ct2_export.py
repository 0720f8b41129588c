"""Whisper in the format of CTranslate2: its text is ours, and what is no Whisper is refused with a sentence."""

import importlib.util
import json

import numpy as np
import pytest
import torch

from stentor.cli import main
from stentor.models.base import Family, TaskRequirements
from tiny_configs import QUIET_WAVE, WHISPER

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """The export of a Whisper with shaken weights, which writes something."""
    torch.manual_seed(0)
    config = {**WHISPER, "init_std": 0.02, "max_target_positions": 64}
    bundle = Family.model_validate({"type": "seq2seq", "config": config, "token_rate": 3.0}).build(
        TaskRequirements("transcribe")
    )
    for name, parameter in bundle.model.named_parameters():
        if "embed_positions" not in name:
            parameter.data.add_(0.4 * torch.randn_like(parameter))
    first = bundle.processor.eos_id  # bytes come before it, special tokens and timestamps after it
    bundle.model.generation_config.begin_suppress_tokens = [first]
    bundle.model.generation_config.suppress_tokens = list(range(first + 1, bundle.model.config.vocab_size))
    folder = tmp_path_factory.mktemp("whisper")
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


@pytest.mark.parametrize("quantization", [None, "float16"])
def test_its_text_is_ours(whisper, tmp_path, capsys, quantization):
    ct2 = pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    extra = ["--quantization", quantization] if quantization else []
    assert main(["export", str(whisper), "--to", str(tmp_path / "ct2"), "--format", "ct2", *extra]) == 0
    assert "export checked on 4 clips: WER" in capsys.readouterr().out
    kinds = ("config", "preprocessor_config", "tokenizer", "training_config", "vocabulary")
    assert {p.name for p in (tmp_path / "ct2").iterdir()} == {"model.bin", *(f"{kind}.json" for kind in kinds)}
    assert ct2.models.Whisper(str(tmp_path / "ct2"), device="cpu").n_mels == 80
    assert len(json.loads((tmp_path / "ct2" / "config.json").read_text())["lang_ids"]) > 90
    assert {p.name for p in tmp_path.iterdir()} == {"ct2"}


def test_an_export_that_differs_is_not_handed_over(whisper, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    from stentor.models.seq2seq.config import Seq2Seq

    save_ct2 = Seq2Seq.save_ct2

    def wrong(self, bundle, folder, quantization):
        layer = bundle.model.model.encoder.layer_norm.weight
        before = layer.data.clone()
        layer.data.copy_(torch.randn_like(before))
        save_ct2(self, bundle, folder, quantization)
        layer.data.copy_(before)

    monkeypatch.setattr(Seq2Seq, "save_ct2", wrong)
    assert main(["export", str(whisper), "--to", str(tmp_path / "ct2"), "--format", "ct2"]) == 1
    assert "of 4 clips give another text" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"ct2-wrong"}


def test_faster_whisper_reads_it(whisper, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 exports need stentor[ct2]")
    faster = pytest.importorskip("faster_whisper")
    assert main(["export", str(whisper), "--to", str(tmp_path / "ct2"), "--format", "ct2"]) == 0
    model = faster.WhisperModel(str(tmp_path / "ct2"), device="cpu")
    segments, facts = model.transcribe(np.zeros(16000, np.float32), language="en", max_new_tokens=5)
    assert facts.language == "en" and isinstance("".join(s.text for s in segments), str)


def test_without_the_package_it_says_what_to_install(whisper, tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ctranslate2" else find_spec(name))
    assert main(["export", str(whisper), "--to", str(tmp_path / "ct2"), "--format", "ct2"]) == 2
    assert "pip install 'stentor[ct2]'" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_wrong_use_is_told(whisper, tmp_path, capsys):
    to = ["--to", str(tmp_path / "to")]
    assert main(["export", str(whisper), *to, "--quantization", "int8"]) == 2
    assert "--quantization is for ONNX and CTranslate2" in capsys.readouterr().err
    if importlib.util.find_spec("ctranslate2"):
        assert main(["export", str(whisper), *to, "--format", "ct2", "--quantization", "int3"]) == 2
        assert "--quantization int3 is not known" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_other_families_have_none(tmp_path, capsys):
    bundle = Family.model_validate({"type": "ctc", "config": QUIET_WAVE}).build(
        TaskRequirements("transcribe", ("ctc",), lambda: iter(["one"]))
    )
    bundle.family.save_merged(bundle, tmp_path / "ctc")
    assert main(["export", str(tmp_path / "ctc"), "--to", str(tmp_path / "to"), "--format", "ct2"]) == 2
    assert "CTranslate2 runs no models of the family ctc, only Whisper" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
