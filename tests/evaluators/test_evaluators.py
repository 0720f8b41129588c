"""Second models that listen: recognisers of Stentor's and of transformers, embedders, and a plug-in's quality."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_seq2seq
import torch
from tiny_families import save

from stentor.errors import ConfigError
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips, evaluator_for
from stentor.tasks.speak.evaluator_scores import evaluate_items, scores, table
from tiny_configs import WAVE


def noise(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * rate))).astype(np.float32)


def plain(kind: str, folder: Path) -> Path:
    """A recogniser as plain transformers writes it."""
    save(tiny_seq2seq.build(kind), folder)
    (folder / "stentor.json").unlink()
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Path:
    return plain("whisper", tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def ctc(tmp_path_factory) -> Path:
    """A wav2vec 2.0 with a CTC head, as plain transformers writes it."""
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC
    from transformers import Wav2Vec2Processor as Both

    folder = tmp_path_factory.mktemp("ctc")
    letters = {c: i for i, c in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGH"])}
    (folder / "vocab.json").write_text(json.dumps(letters))
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=len(letters), pad_token_id=0, **WAVE))
    torch.nn.init.normal_(model.lm_head.weight, std=2.0)
    with torch.no_grad():
        model.lm_head.bias[1:4] = -1e4  # no special tokens
    model.save_pretrained(folder)
    Both(Wav2Vec2FeatureExtractor(), Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))).save_pretrained(folder)
    return folder


def test_a_whisper_of_transformers_hears_what_transformers_hears(whisper):
    from stentor.data.batch import Example
    from stentor.inference.load import load

    clips = [noise(1.0), noise(2.5, seed=1)]
    transcripts = evaluate_clips(evaluator_for(str(whisper), "text"), clips, 16000, ["en", "de"])
    model = load(whisper, "cpu")
    alone = [
        model.task.predict(model.bundle, [Example("x", clip, language=language)])[0]["text"]
        for clip, language in zip(clips, ["en", "de"])
    ]
    assert transcripts == alone and all(transcripts)


def test_a_language_that_the_recogniser_does_not_know_is_heard_by_itself(whisper):
    [text] = evaluate_clips(evaluator_for(str(whisper), "text"), [noise(1.0)], 16000, ["tlh"])
    assert text == evaluate_clips(evaluator_for(str(whisper), "text"), [noise(1.0)], 16000)[0]


@pytest.mark.slow
def test_clips_longer_than_the_recogniser_takes(whisper):
    swell = 0.75 - 0.25 * np.cos(2 * np.pi * 4 * np.arange(20 * 16000) / 16000)  # as syllables do
    loud = np.concatenate([noise(20.0) * swell, np.zeros(16000, np.float32), noise(20.0, seed=2) * swell])
    [text] = evaluate_clips(evaluator_for(str(whisper), "text"), [loud], 16000, ["en"])
    assert text


def test_a_ctc_model_of_transformers(ctc):
    from transformers import AutoModelForCTC, AutoProcessor

    clips = [noise(1.0), noise(0.7, seed=3)]
    transcripts = evaluate_clips(evaluator_for(str(ctc), "text"), clips, 16000)
    model, processor = AutoModelForCTC.from_pretrained(ctc).eval(), AutoProcessor.from_pretrained(ctc)
    for clip, text in zip(clips, transcripts):
        with torch.no_grad():
            logits = model(**processor(clip, sampling_rate=16000, return_tensors="pt")).logits
        [expected] = processor.batch_decode(logits.argmax(-1))
        assert text.upper().split() == expected.split() and text


def test_any_other_recogniser_of_transformers(tmp_path, monkeypatch):
    from transformers import AutoProcessor, MoonshineForConditionalGeneration

    plain("moonshine", tmp_path)
    monkeypatch.setattr("stentor.inference.evaluators.recognizer.Family.choices", dict)  # as one that is no family here
    clips = [noise(1.0), noise(2.0, seed=1)]
    transcripts = evaluate_clips(evaluator_for(str(tmp_path), "text"), clips, 16000)
    model = MoonshineForConditionalGeneration.from_pretrained(tmp_path).eval()
    processor = AutoProcessor.from_pretrained(tmp_path)
    for clip, seconds, text in zip(clips, (1, 2), transcripts, strict=True):
        inputs = processor(clip, sampling_rate=16000, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=16 + 25 * seconds, do_sample=False)[0]
        assert text == processor.decode(ids, skip_special_tokens=True).strip() and text


def test_audio_is_resampled_and_the_shortest_are_padded(ctc):
    [low] = evaluate_clips(evaluator_for(str(ctc), "text"), [noise(1.0, rate=24000)], 24000)
    assert isinstance(low, str)
    assert evaluate_clips(evaluator_for(str(ctc), "text"), [np.zeros(0, np.float32)], 24000) == evaluate_clips(
        evaluator_for(str(ctc), "text"), [np.zeros(4000, np.float32)], 16000
    )
    assert evaluate_clips(evaluator_for(str(ctc), "text"), [], 24000) == []


def test_no_recogniser(tmp_path):
    bert = '{"model_type": "bert", "architectures": ["BertModel"]}'
    for source, config, message in (
        ("nowhere", bert, "There is no model nowhere"),
        (tmp_path, bert, "is not a recogniser, neither"),
        (tmp_path, "{", "is not JSON"),
    ):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ConfigError, match=message):
            evaluate_clips(evaluator_for(str(source), "text"), [noise(1)], 16000)


def test_no_x_vector_model(tmp_path):
    with pytest.raises(ConfigError, match=r"xvector\.from: the folder .* does not exist"):
        evaluate_clips(evaluator_for(str(tmp_path / "none"), "voice"), [noise(1)], 16000)


@pytest.fixture(scope="module")
def spoken() -> tuple[list[np.ndarray], list[str]]:
    """Digit strings in four built-in voices."""
    from stentor.audio.synth import say

    rng = np.random.default_rng(0)
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    voices = ["en-us", "en-us+f3", "en-us+m3", "en-us+f2"]
    clips = [
        (say(" ".join(rng.choice(digits, rng.integers(2, 6))), voice, 165, 50).audio, voice)
        for voice in voices
        for _ in range(10)
    ]
    return [clip for clip, _ in clips], [voice for _, voice in clips]


def test_the_built_in_embedding_tells_the_built_in_voices_apart(spoken):
    clips, voices = spoken
    swapped = clips[10:] + clips[:10]
    rows = evaluate_items(
        [evaluator_for("cepstra", "voice")], {"real": clips, "synthetic": swapped}, 16000, [None] * 40
    )
    measured = scores(rows, [""] * 40, [None] * 40, voices, [None] * 40, relative=True)
    assert measured["voice_accuracy_real"].value >= 0.9
    assert measured["voice_accuracy"].value <= 0.1, "each in another voice"
    assert rows[0]["voice"]["real"].shape == (78,)


def test_the_built_in_embedding_does_not_hear_the_level(spoken):
    loud, soft = evaluate_clips(evaluator_for("cepstra", "voice"), [spoken[0][0], 0.5 * spoken[0][0]], 16000)
    assert np.abs(loud - soft).max() < 1e-3 < np.abs(loud).max()


@pytest.fixture(scope="module")
def loudness(tmp_path_factory) -> Path:
    """A network in ONNX: the largest sample of a clip."""
    import onnx
    from onnx import TensorProto, helper

    entry = helper.make_tensor_value_info("audio", TensorProto.FLOAT, [1, None])
    result = helper.make_tensor_value_info("score", TensorProto.FLOAT, [1, 1])
    node = helper.make_node("ReduceMax", ["audio"], ["score"], keepdims=1)
    graph = helper.make_graph([node], "loudness", [entry], [result])
    path = tmp_path_factory.mktemp("network") / "loudness.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)
    return path


def test_a_quality_of_a_plug_in(loudness, tmp_path):
    from stentor.config.plugins import load_plugins

    load_plugins([Path(__file__).parents[2] / "examples" / "evaluator" / "predicted_mos.py"])
    sounds = {
        "synthetic": [np.full(8000, 0.5, np.float32), np.full(8000, 0.1, np.float32)],
        "real": [np.full(8000, 1.0, np.float32), None],
    }
    mos = SpeechEvaluator.model_validate({"type": "predicted_mos", "path": str(loudness), "rate": 8000})
    measured = scores(evaluate_items([mos], sounds, 8000, [None, None]), ["", ""], [None, None], [None, None])
    assert measured["predicted_mos"].value == pytest.approx(0.3) and measured["predicted_mos_real"].value == 1.0
    assert "predicted_mos_codec" not in measured
    gone = SpeechEvaluator.model_validate({"type": "predicted_mos", "path": str(tmp_path / "gone.onnx")})
    with pytest.raises(ConfigError, match="there is no file"):
        evaluate_items([gone], sounds, 8000, [None, None])


def test_scores_and_their_table(ctc):
    rows = [
        {"text": {"synthetic": "one two", "real": "one two"}, "quality": {"mos": {"synthetic": 3.0}}},
        {"text": {"synthetic": "one", "real": "one three"}, "quality": {"mos": {"synthetic": 4.0}}},
    ]
    measured = scores(rows, ["one two", "one three"], [None] * 2, ["a", "b"], normalizer="none")
    assert list(measured) == ["wer", "wer_real", "cer", "cer_real", "mos"]
    head, wer, _, mos = table(measured)
    assert head.split() == ["synthetic", "real"]
    assert wer.split()[:3] == ["wer", "25.00", "%"] and wer.split()[-2:] == ["0.00", "%"]
    assert mos.split()[:2] == ["mos", "3.5"] and mos.endswith("–")


def test_sections_say_what_is_wrong():
    with pytest.raises(Exception, match="from"):
        SpeechEvaluator.model_validate({"type": "recognizer"})
    with pytest.raises(Exception, match="unknown type"):
        SpeechEvaluator.model_validate({"type": "utmost"})
