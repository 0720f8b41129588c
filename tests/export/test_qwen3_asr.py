"""Qwen3-ASR in sherpa-onnx: its texts are ours."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

for package in ("onnx", "onnxscript", "sherpa_onnx"):
    pytest.importorskip(package, reason="needs stentor[sherpa]")
sys.path.insert(0, str(Path(__file__).parent))
import recognisers  # noqa: E402

from stentor.cli import main  # noqa: E402


def export(kind, folder, to, *options):
    """Of a model that writes ASCII alone: sherpa-onnx leaves out halves of characters, and spells special tokens."""
    bundle = recognisers.audio_llm(kind, folder / "source")
    tokenizer, end = bundle.processor.tokenizer, bundle.processor.eos_id
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))} if kind == "qwen3_asr" else {}
    special = {*(tokenizer.added_tokens_decoder if texts else ())} - {end}
    with torch.no_grad():
        bundle.model.lm_head.weight[[i for i, t in texts.items() if i in special or not t.isascii() or "\n" in t]] = 0
    model = recognisers.save(bundle, folder / "model")
    return main(["export", str(model), "--to", str(to), "--format", "sherpa", *options])


@pytest.mark.slow
def test_texts_are_those_of_the_model(tmp_path):
    to = tmp_path / "to"
    assert export("qwen3_asr", tmp_path, to, "--quantization", "float32,float16") == 0
    _, exact, half = recognisers.rows(to)
    assert exact["differ"] <= 1 and half["megabytes"] < exact["megabytes"]
    program = recognisers.snippet(to)
    (to / "speech.wav").rename(to / "float16" / "speech.wav")
    done = subprocess.run([sys.executable, "-c", program], cwd=to / "float16", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_other_audio_language_models_are_refused(tmp_path, capsys):
    assert export("voxtral", tmp_path, tmp_path / "to") == 2
    assert "reads Qwen3-ASR with 128 mel bands alone" in capsys.readouterr().err
