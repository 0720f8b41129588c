"""Whisper, Moonshine and Cohere ASR in onnxruntime, onnx-asr, sherpa-onnx and whisper.cpp: their text is ours."""

import functools
import json
import sys
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models
from tiny_seq2seq import CONFIGS, LORA, build, openai_tokenizer, talking

from alone import alone
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.ggml import WhisperGgml
from stentor.export.onnx.seq2seq import example_inputs, trace_decoder
from stentor.export.sherpa.seq2seq import WhisperEncoder
from stentor.export.table import exporter_of
from stentor.export.whisper import pieces_of, token_bytes, with_times, words_of
from stentor.inference.load import load
from stentor.models.seq2seq import whisper
from stentor.models.seq2seq.config import MODELS

torch.set_num_threads(1)
KINDS = tuple(MODELS)
TEXTS = ("three seven nine", "one", "turn the light in the kitchen off please")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Exports of a model of each kind, made when they are asked for."""
    return functools.cache(lambda kind: talking(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="module")
def openai(tmp_path_factory):
    """A tiny Whisper with OpenAI's vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whisper.Processor, "fresh_tokenizer", classmethod(lambda cls: openai_tokenizer()))
        return talking("whisper", tmp_path_factory.mktemp("openai"), max_target_positions=200)


def clips(language="en"):
    return [Example(text, say(text).audio, text, language) for text in TEXTS]


def texts(model, examples):
    return [o["text"] for o in model.task.predict(model.bundle, examples, checked=False)]


def alike(theirs, ours, least=1.0):
    """Whether texts are the same or, with other features or weights in a few bits, a share of the letters `least`."""
    for a, b in zip(theirs, ours, strict=True):
        assert SequenceMatcher(None, a, b).ratio() >= least and (a or not b), (a, b)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_graphs_write_the_text_of_torch(kind, folders, tmp_path, capsys):
    """In the program of the folder, for clips of the built-in voice; and where nothing else can be imported."""
    assert main(["export", str(folders(kind)), "--to", str(tmp_path / "onnx"), "--format", "onnx"]) == 0
    assert "checked in onnxruntime" in capsys.readouterr().out
    facts = json.loads((tmp_path / "onnx" / "export.json").read_text())
    assert facts["clips"] >= 16 and facts["rows"][1]["differ"] == 0
    program = (tmp_path / "onnx" / "transcribe.py").read_text()
    assert len(program.splitlines()) <= 250
    clip = say("three seven nine").audio
    write(tmp_path / "speech.wav", clip, 16000)
    printed = alone(tmp_path / "onnx" / "transcribe.py", tmp_path / "speech.wav", "--language", "English")
    model = load(folders(kind), "cpu")
    assert printed.rstrip("\n").endswith(texts(model, [Example("a", clip, None, "en")])[0])
    if kind == "whisper":
        _onnx_asr_reads_it(tmp_path, model, clip)


def _onnx_asr_reads_it(folder, model, clip):
    onnx_asr = pytest.importorskip("onnx_asr")
    reader = onnx_asr.load_model("whisper", folder / "onnx")
    for language in ("en", "de", None):
        [ours] = texts(model, [Example("a", clip, None, language)])
        theirs = reader.recognize(folder / "speech.wav", language=language)
        assert len(ours) > 3
        alike([theirs.strip()], [ours], least=0.8)  # it computes its own features


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cohere_asr"])
def test_sherpa_onnx_writes_the_text_of_torch(kind, folders, tmp_path):
    pytest.importorskip("sherpa_onnx")
    model = load(folders(kind), "cpu")
    exporter = exporter_of("sherpa", model.bundle)
    if kind != "whisper":  # sherpa-onnx drops texts that are no UTF-8
        letters = model.bundle.processor.tokenizer.convert_tokens_to_ids([*"abcdefghijklmnopqrstuvwxyz", "Ġ"])
        network = model.bundle.model
        network.suppressed = sorted({*range(network.config.vocab_size)} - {*letters, model.bundle.processor.eos_id})
    exporter.write(model, tmp_path)
    outputs = exporter.run(tmp_path, model, clips())
    theirs = [o["text"] for o in outputs]
    if kind == "whisper":
        alike(theirs, texts(model, clips()))
        for ours, theirs in zip(with_times(model, clips()), outputs):
            pairs = list(zip(ours["words"], theirs["words"]))[:-1]
            assert all(abs(a["start"] - b["start"]) < 0.1 for a, b in pairs if a["word"] == b["word"])
        [detected] = exporter.run(tmp_path, model, clips(None)[:1])
        alike([detected["text"]], texts(model, clips(None)[:1]))
    else:  # at most 15 tokens a second
        alike(theirs, [text[: len(other)] for text, other in zip(texts(model, clips()), theirs)], least=0.7)


def test_silence_behind_sherpas_features_is_that_of_training(folders):
    """Its windows end in zeros; the encoder makes silence of them and fills up the window."""
    model = load(folders("whisper"), "cpu").bundle
    features = model.processor.collate(clips()[:1], labels=False).inputs["features"]
    frames = int((features != features[:, :, -1:]).any(1)[0].nonzero().max()) + 1
    filled = features[:, :, : frames + 1000].clone()
    filled[:, :, frames:] = 0
    encoder = WhisperEncoder(model.model)
    with torch.no_grad():
        for whole, short in zip(encoder(features), encoder(filled)):
            torch.testing.assert_close(short, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quantization", [None, "q8_0", "q5_0"])
def test_whisper_cpp_writes_the_text_of_torch(quantization, openai, tmp_path):
    pytest.importorskip("pywhispercpp")
    model, exporter = load(openai, "cpu"), WhisperGgml()
    assert exporter.refusal(model.bundle) is None
    exporter.convert(model, tmp_path, quantization)
    theirs = [o["text"] for o in exporter.run(tmp_path, model, clips())]
    alike(theirs, texts(model, clips()), least=0.4 if quantization == "q5_0" else 0.7)


@pytest.mark.slow
def test_a_traced_decoder_of_two_layers_keeps_two_caches(tmp_path):
    """torch takes the same tensor in two places for one input; and Moonshine's lengths are no constants."""
    ort = pytest.importorskip("onnxruntime")
    config = {**CONFIGS["moonshine"], "decoder_num_hidden_layers": 2}
    bundle = build(config=config)
    model = bundle.model.eval()
    inputs = example_inputs(bundle.processor)
    with torch.no_grad():
        states, _ = model.encoder_states(inputs["features"], inputs["lengths"])
        outputs, (_, heads, width) = trace_decoder(model, states, tmp_path / "decoder.onnx", padded=False)
        states, tokens = states[:1, :50], [model.start_id, 5, 9]
        hidden = model.decode((states.clone(), None), torch.tensor([tokens])).last_hidden_state
        expected = model.proj_out(hidden)[0].numpy()
    session = ort.InferenceSession(tmp_path / "decoder.onnx")
    past = {n: np.zeros((1, heads, 0, width), np.float32) for n in outputs if n.startswith("present")}
    for token, row in zip(tokens, expected):
        fed = {n.replace("present", "past_key_values"): cache for n, cache in past.items()}
        fed |= {"input_ids": np.array([[token]]), "encoder_hidden_states": states.numpy()}
        given = dict(zip(outputs, session.run(outputs, fed | {"use_cache_branch": np.array([True])})))
        past = {n: given[n] for n in past}
        logits, known = given["logits"][0, -1], np.isfinite(given["logits"][0, -1])
        np.testing.assert_allclose(logits[known], row[known], atol=1e-4)


def test_whisper_cpp_needs_the_vocabulary_and_sizes_of_openai(folders, openai, tmp_path, capsys):
    assert main(["export", str(folders("whisper")), "--to", str(tmp_path / "to"), "--format", "ggml"]) == 2
    assert "this vocabulary is not that of OpenAI. Formats of this model: hf, onnx" in capsys.readouterr().err
    assert main(["export", str(folders("moonshine")), "--to", str(tmp_path / "to"), "--format", "ggml"]) == 2
    assert "--format ggml: whisper.cpp runs Whisper, not Moonshine." in capsys.readouterr().err
    model = load(openai, "cpu")
    model.bundle.model.config.decoder_ffn_dim = 64
    assert "four times" in WhisperGgml().refusal(model.bundle)
    model.bundle.model.config.d_model = 40
    with pytest.raises(ConfigError, match="no multiple of 32"):
        WhisperGgml().convert(model, tmp_path, "q5_0")


def test_cohere_is_refused_for_sherpa(folders, tmp_path, capsys):
    assert main(["export", str(folders("cohere_asr")), "--to", str(tmp_path / "to"), "--format", "sherpa"]) == 2
    assert "sherpa-onnx gives Cohere ASR another prompt" in capsys.readouterr().err


def test_bytes_and_words_of_tokens(folders):
    processor = load(folders("whisper"), "cpu").bundle.processor
    ids = processor.text_ids("für two", "de")
    assert b"".join(token_bytes(processor.tokenizer)[i] for i in ids).decode() == " für two"
    pieces = pieces_of(processor, ids)
    assert "".join(pieces) == " für two" and len(pieces) == len(ids)
    starts = np.arange(len(ids) + 1).tolist()
    assert words_of(pieces, starts[:-1], starts[1:], "de") == [
        {"word": "für", "start": 1, "end": 5},
        {"word": "two", "start": 6, "end": 9},
    ]


def test_adapters_have_the_form_that_vllm_reads(folders, tmp_path):
    """Rules of vLLM 0.18 (lora/peft_helper.py, lora/utils.py, lora/lora_model.py, `packed_modules_mapping` and the
    layers of model_executor/models/whisper.py): keys of adapter_config.json, names and shapes of tensors."""
    from safetensors import safe_open

    bundle = build(**{"from": str(folders("whisper")), "lora": {**LORA, "targets": ["*.q_proj", "*.v_proj", "*.fc1"]}})
    bundle.family.save(bundle, {n: t.detach() for n, t in bundle.model.state_dict().items()}, tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings["peft_type"] == "LORA" and settings["r"] == 2 and settings["lora_alpha"] == 4
    assert settings["bias"] == "none" and not settings["modules_to_save"] and not settings["use_dora"]
    assert isinstance(settings["target_modules"], list)
    layers = {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}
    base = dict(bundle.model.named_parameters())
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as tensors:
        names = list(tensors.keys())
        for name in names:
            start, kind, end = name.rpartition(".lora_")[0], name.split(".")[-2], name.split(".")[-1]
            assert start.startswith("base_model.model.model.") and kind in ("lora_A", "lora_B") and end == "weight"
            module = start.removeprefix("base_model.model.")
            assert module.rpartition(".")[2] in layers and module in settings["target_modules"]
            size = base[f"{module}.base_layer.weight"].shape
            assert list(tensors.get_slice(name).get_shape()) == ([2, size[1]] if kind == "lora_A" else [size[0], 2])
    assert len(names) == 2 * len(settings["target_modules"]) > 0
