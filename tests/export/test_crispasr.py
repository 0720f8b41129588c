"""GGUF files run in CrispASR and write what the models write."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("crispasr", reason="needs stentor[gguf]")

sys.path.insert(0, str(Path(__file__).parent))
import recognisers
import tiny_transducers

from stentor.cli import main
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.gguf.exporter import CrispASRExporter, run_session
from stentor.export.gguf.names import CONFORMER, WAVE, gguf_name
from stentor.tasks.base import Task

QUICK = ("wav2vec2", "parakeet")
"""The kinds of CTC models that differ most."""


def export(folder, to, *options):
    return main(["export", str(folder), "--to", str(to), "--format", "gguf", *options])


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in recognisers.CTC]
)
def test_ctc_models_write_the_same(kind, tmp_path):
    folder = recognisers.save(recognisers.ctc(kind), tmp_path / "model")
    assert export(folder, tmp_path / "to", "--quantization", "f16", "--allow-difference") == 0
    model, exact, half = recognisers.rows(tmp_path / "to")
    # ggml's GELU is a table in float16, which decides where two classes are as good.
    assert exact["differ"] <= 6 and half["differ"] <= 7 and abs(exact["score"] - model["score"]) < 0.002
    assert half["megabytes"] < exact["megabytes"]
    if kind != "parakeet":  # CrispASR takes each of its letters for a word
        assert exact["times_ms"][0] < 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "options"),
    [("parakeet_tdt", ()), ("parakeet_rnnt", ("--quantization", "q8_0,q4_0", "--allow-difference"))],
)
def test_transducers_write_the_same(kind, options, tmp_path):
    bundle = recognisers.transducer(kind, tmp_path / "source", max_symbols_per_step=10)
    assert export(recognisers.save(bundle, tmp_path / "model"), tmp_path / "to", *options) == 0
    _, exact, *others = recognisers.rows(tmp_path / "to")
    assert exact["differ"] <= 3 and len(others) == (2 if options else 0)
    if options:
        assert (tmp_path / "to" / "q8_0" / "model.gguf").is_file()
        sizes = [exact["megabytes"], *(row["megabytes"] for row in others)]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_nemotron_hears_the_context_of_crispasr(tmp_path, capsys):
    """Other contexts are refused, as CrispASR would give the model the same."""
    for frames, code in ((57, 0), (71, 2)):
        encoder = tiny_transducers.CONFIGS["nemotron_asr_streaming"]["encoder_config"] | {"sliding_window": frames}
        with pytest.MonkeyPatch.context() as patch:
            settings = tiny_transducers.CONFIGS["nemotron_asr_streaming"] | {"encoder_config": encoder}
            patch.setitem(tiny_transducers.CONFIGS, "nemotron_asr_streaming", settings)
            source = tmp_path / f"source{frames}"
            bundle = recognisers.transducer("nemotron_asr_streaming", source, max_symbols_per_step=10)
        to = tmp_path / f"to{frames}"
        assert export(recognisers.save(bundle, tmp_path / f"model{frames}"), to) == code
    assert recognisers.rows(tmp_path / "to57")[1]["differ"] == 0
    assert "56 frames before and 3 ahead" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["qwen3_asr", "voxtral"])
def test_audio_language_models_begin_the_same(kind, tmp_path):
    """Random weights repeat themselves, which CrispASR shortens, and nothing ends Voxtral's answers."""
    bundle = recognisers.audio_llm(kind, tmp_path / "source")
    model = SimpleNamespace(bundle=bundle, task=None)
    clips = [Example(str(i), tiny_transducers.noise(n, n), "one", "en") for i, n in enumerate((20_000, 9_000, 64_000))]
    folder = tmp_path / "gguf"
    folder.mkdir()
    CrispASRExporter().write(model, folder)
    theirs = [re.sub(r"<SPECIAL_\d+>", "", o["text"]) for o in CrispASRExporter().run(folder, model, clips)]
    ours = [Task.model_validate("transcribe").predict(bundle, [clip])[0]["text"] for clip in clips]
    begins = [" ".join(a.split())[:4] == " ".join(b.split())[:4] for a, b in zip(ours, theirs, strict=True)]
    assert all(ours) and sum(begins) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["granite_speech", "granite_speech_plus"])
def test_granite_speech_writes_the_same(kind, tmp_path):
    folder = recognisers.save(recognisers.granite(kind, tmp_path / "source"), tmp_path / "model")
    assert export(folder, tmp_path / "to", "--quantization", "f16,q8_0") == 0
    facts = json.loads((tmp_path / "to" / "export.json").read_text())
    assert facts["clips"] >= 16 and facts["rows"][1]["differ"] <= 3


def test_what_crispasr_cannot_run_of_granite_is_a_sentence(tmp_path):
    refusal = CrispASRExporter().refusal
    assert "prompt of version 4" in refusal(recognisers.audio_llm("granite_speech", tmp_path / "other"))
    bundle = recognisers.granite("granite_speech_plus", tmp_path / "source")
    assert refusal(bundle) is None
    bundle.model.config.encoder_config.num_layers = 2
    assert "middle layer" in refusal(bundle)
    bundle.model.config.encoder_config.conv_expansion_factor = 3
    assert "conv_expansion_factor 2" in refusal(bundle)
    translator = SimpleNamespace(bundle=bundle, task=Task.model_validate({"type": "transcribe", "translate": True}))
    with pytest.raises(ConfigError, match="this one translates"):
        CrispASRExporter().write(translator, tmp_path)


@pytest.mark.long
def test_the_program_of_the_readme_runs(tmp_path):
    folder = recognisers.save(recognisers.ctc("wav2vec2"), tmp_path / "model")
    assert export(folder, tmp_path / "to", "--allow-difference") == 0
    program = recognisers.snippet(tmp_path / "to")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "to", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("kind", "reason"), [("wavlm", "relative positions"), ("mms", "language adapters"), ("parakeet", "one of eight")]
)
def test_what_crispasr_cannot_run_is_a_sentence(kind, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(recognisers.CTC, "parakeet", None)  # the one with a quarter of the frames
    folder = recognisers.save(recognisers.ctc(kind), tmp_path / "model")
    assert export(folder, tmp_path / "to") == 2
    message = capsys.readouterr().err
    assert reason in message and "Formats of this model: hf" in message


def test_an_old_c_library_is_refused(tmp_path, capsys, monkeypatch):
    folder = recognisers.save(recognisers.ctc("wav2vec2"), tmp_path / "model")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    assert export(folder, tmp_path / "to") == 2
    assert "needs glibc 2.35 or newer, not 2.31" in capsys.readouterr().err


def test_a_damaged_file_is_one_sentence(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF but damaged")
    with pytest.raises(ConfigError, match=r"CrispASR cannot run model\.gguf here"):
        run_session(tmp_path / "model.gguf", [[0.0] * 16000])


def test_names_of_tensors():
    assert gguf_name("encoder.layers.3.attention.q_proj.bias", WAVE) == "enc.3.attn.q.bias"
    assert gguf_name("encoder.subsampling.layers.5.weight", CONFORMER) == "encoder.pre.conv.5.weight"
    assert gguf_name("encoder.layers.0.self_attn.bias_u", CONFORMER) == "encoder.layers.0.attn.pos_bias_u"
    assert gguf_name("encoder.layers.1.conv.norm.num_batches_tracked", CONFORMER) is None
    with pytest.raises(KeyError):
        gguf_name("encoder.layers.0.unknown.weight", WAVE)
