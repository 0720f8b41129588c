"""ONNX exports: onnxruntime gives the texts and times of torch, and an export that does not is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny_speech_llm import build, examples, spoken_for

import stentor
from stentor.audio.synth import say
from stentor.cli import main
from stentor.data.word_units import units
from stentor.errors import ConfigError
from stentor.models.base import Bundle, Family

pytestmark = pytest.mark.long

MISSING = "ONNX exports need stentor[onnx]"
onnx = pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxscript", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)

from stentor.export.onnx import speech_llm as graphs  # noqa: E402
from stentor.export.onnx import trace  # noqa: E402
from stentor.models.speech_llm.export import load_onnx  # noqa: E402

torch.set_num_threads(1)

WINDOWED = {
    "config": {
        "model_type": "whisper",
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
    },
    "window": "30s",
}


def with_words(items):
    for e in items:
        e.extra["words"] = units(e.text, None)
    return items


def same(bundle: Bundle, other: Bundle, seconds) -> None:
    """Times, probabilities, answers of both searches and CTC classes of a batch are those of torch."""
    items = with_words(examples(seconds))
    batch = bundle.processor.collate(items).inputs
    words = batch["word_tokens"][..., 0] >= 0
    with torch.no_grad():
        for mine, theirs in zip(other.model.align(**batch), bundle.model.align(**batch), strict=True):
            torch.testing.assert_close(mine[words], theirs[words], atol=1e-3, rtol=0)
    batch = bundle.processor.collate(items, labels=False).inputs
    for beams in (1, 3):
        options = {"max_new_tokens": [12, 1, 7], "eos_ids": {bundle.processor.eos_id}, "beams": beams}
        mine, theirs = (b.model.generate(batch, **options) for b in (other, bundle))
        assert [ids for ids, *_ in mine] == [ids for ids, *_ in theirs]
        for (_, a, *_), (_, b, *_) in zip(mine, theirs):
            np.testing.assert_allclose(a, b, atol=1e-4)
    if bundle.processor.ctc is not None:
        assert other.model.ctc_classes(**batch) == bundle.model.ctc_classes(**batch)


def test_the_folder_holds_what_a_runner_needs(onnx_export):
    model, folder = onnx_export
    graphs = {f"{name}.onnx" for name in ("features", "encoder", "ctc", "llm", "aligner")}
    kinds = ("onnx_config", "config", "preprocessor_config", "tokenizer", "tokenizer_config", "training_config")
    files = {p.name for p in folder.iterdir()}
    assert files == graphs | {f"{kind}.json" for kind in kinds} | {"README.md", "transcribe.py", "export.json"}
    assert {p.name for p in model.iterdir()} <= {p.name for p in folder.parent.iterdir()}
    facts = json.loads((folder / "onnx_config.json").read_text())
    assert facts["seconds_per_frame"] == 0.02 and facts["aligner"]["seconds_per_point"] == 0.01
    card = (folder / "README.md").read_text()
    assert card.startswith("# A model") and "`aligner.onnx`" in card and "| float32 |" in card


@pytest.mark.parametrize("seconds", [(1.3, 0.6, 0.97), (0.02, 4.0, 2.2)])
def test_answers_are_those_of_torch(onnx_export, seconds):
    model, folder = onnx_export
    same(stentor.load(model, "cpu").bundle, stentor.load(folder, "cpu").bundle, seconds)


def test_transcripts_are_those_of_torch(onnx_export):
    clip = say("three seven nine").audio
    (a, b) = (stentor.load(folder, "cpu").transcribe(clip, 16000) for folder in onnx_export)
    assert a.text == b.text and a.words
    for mine, theirs in zip([*b.words, *b.segments], [*a.words, *a.segments], strict=True):
        assert mine == {k: pytest.approx(v, abs=0.0011) if isinstance(v, float) else v for k, v in theirs.items()}


def test_audio_is_heard_once_for_text_and_times(onnx_export, monkeypatch):
    loaded = stentor.load(onnx_export[1], "cpu")
    calls = []
    encoder = loaded.bundle.model.encoder
    monkeypatch.setattr(loaded.bundle.model, "encoder", lambda **inputs: calls.append(1) or encoder(**inputs))
    loaded.task.predict(loaded.bundle, examples((0.5, 0.7)), checked=False)
    assert len(calls) == 2  # one for each clip


def test_an_export_that_differs_is_kept_apart(onnx_export, tmp_path, monkeypatch, capsys):
    def write(self, model, folder):
        shutil.copytree(onnx_export[1], folder, dirs_exist_ok=True)

    def perfect(self, folder, model, clips):
        return [{"text": clip.text, "words": []} for clip in clips]

    monkeypatch.setattr(graphs.SpeechLLMOnnx, "write", write)
    monkeypatch.setattr(graphs.SpeechLLMOnnx, "run", perfect)
    assert main(["export", str(onnx_export[0]), "--to", str(tmp_path / "new"), "--format", "onnx"]) == 1
    assert "The copy does not do what the model does" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"new-wrong"}


@pytest.mark.parametrize(
    ("encoder", "llm", "kind"),
    [
        pytest.param("parakeet", "llama", "slots", marks=pytest.mark.slow),
        pytest.param(WINDOWED, "qwen3", "attention", marks=pytest.mark.slow),
        pytest.param("wav2vec2-base", "phi", "attention", marks=pytest.mark.slow),
        pytest.param("wavlm", "gpt2", "slots", marks=pytest.mark.slow),
        pytest.param("hubert", "granite", "attention", marks=pytest.mark.slow),
        pytest.param("wav2vec2-large", "cohere", "slots", marks=pytest.mark.slow),
    ],
)
def test_other_parts(encoder, llm, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "ONNX_INLINE", 0)  # weights in files of their own, as large models have them
    bundle = spoken_for(encoder, llm, kind)
    graphs.write_graphs(bundle, tmp_path)
    assert (tmp_path / "llm.onnx.data").exists() and not (tmp_path / "ctc.onnx").exists()
    same(bundle, load_onnx(tmp_path), (1.3, 0.6, 2.1))


@pytest.mark.slow
def test_a_model_without_aligner_and_its_evaluation(tmp_path, corpus, capsys):
    bundle = build(token_rate=1.0)
    bundle.family.save_merged(bundle, tmp_path / "model")
    (tmp_path / "model" / "training_config.json").write_text(
        json.dumps(
            {
                "task": {"type": "transcribe"},
                "data": {"eval": {"gone": {"type": "jsonl", "path": "gone.jsonl"}}},
                "train": {"precision": "fp32"},
            }
        )
    )
    assert main(["export", str(tmp_path / "model"), "--to", str(tmp_path / "onnx"), "--format", "onnx"]) == 0
    assert "25 clips" in capsys.readouterr().out and not (tmp_path / "onnx" / "aligner.onnx").exists()
    texts = []
    for name in ("model", "onnx"):
        out = tmp_path / f"{name}.json"
        data = str(corpus / "dev.jsonl")
        assert main(["evaluate", str(tmp_path / name), "--data", data, "--json", str(out)]) == 0
        texts.append(out.with_suffix(".predictions.jsonl").read_text())
    assert texts[0].count("\n") == 4 and _answers(texts[0]) == _answers(texts[1])


def _answers(lines):
    return [json.loads(line)["output"]["text"] for line in lines.splitlines()]


def test_sliding_windows_are_refused(tmp_path):
    bundle = build(llm="mistral")
    with pytest.raises(ConfigError, match=r"language model \(mistral\) cannot be exported to ONNX.*sliding window"):
        graphs.write_graphs(bundle, tmp_path)


def test_a_part_that_torch_cannot_trace_is_named(tmp_path, monkeypatch):
    bundle = build()

    def untraceable(features, lengths):
        return features if features.sum() > 0 else features * 2

    monkeypatch.setattr(graphs.EncoderGraph, "forward", lambda self, features, lengths: untraceable(features, lengths))
    with pytest.raises(ConfigError, match=r"The audio encoder cannot be exported to ONNX: torch .* does not trace it"):
        graphs.write_graphs(bundle, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "llm.onnx").write_bytes(b"nothing"), r"llm\.onnx is damaged"),
        (lambda f: (f / "aligner.onnx").unlink(), r"aligner\.onnx is missing"),
        (lambda f: edit(f / "onnx_config.json", format=9), r"format 9; .*export the model again"),
        (lambda f: (f / "onnx_config.json").write_text("{"), r"onnx_config\.json cannot be read"),
    ],
)
def test_damaged_folders(onnx_export, tmp_path, change, message):
    folder = shutil.copytree(onnx_export[1], tmp_path / "copy")
    change(folder)
    with pytest.raises(ConfigError, match=message):
        stentor.load(folder)


def edit(path, **facts):
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "tflite"], "--format tflite is not known"),
        (["--quantization", "int8"], "name one with --format"),
        (["--format", "onnx"], "is an export already"),
    ],
)
def test_wrong_use(onnx_export, tmp_path, capsys, options, message):
    assert main(["export", str(onnx_export[1]), "--to", str(tmp_path / "to"), *options]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "to").exists()


def test_it_cannot_be_trained_further(onnx_export):
    with pytest.raises(ConfigError, match="cannot be trained"):
        Family.choices()["speech_llm"].load(onnx_export[1], trainable=True)
