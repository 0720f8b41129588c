"""SIM-o and UTMOS beside the code that published them, on the same random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from published_judges import random_weights
from stentor.errors import ConfigError
from stentor.metrics.speech import similarity
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips
from tiny_configs import WAVE

# What OmniVoice's ECAPA_TDNN_WAVLM gives for `clips()` with the weights of `random_weights`, its s3prl part standing on
# UniSpeech's WavLM.py: the first numbers of each embedding, their norms, and F.cosine_similarity of the pairs.
EMBEDDINGS = [
    [-5.729961, 11.876958, 6.391389, -6.021611, 16.243925, -12.305577],
    [-2.491059, 10.645797, 5.823382, -7.115139, 13.830478, -10.907506],
    [-3.958688, 13.014756, 5.076079, -7.679569, 16.494009, -11.922837],
]
NORMS = [69.15933990478516, 55.33888244628906, 64.99691009521484]
COSINES = {(0, 1): 0.9918075799942017, (0, 2): 0.9951643347740173, (1, 2): 0.996127724647522}
# What OmniVoice's and SpeechMOS's UTMOS22Strong gives for them.
SCORES = [1.0804449319839478, 1.0529967546463013, 1.5765215158462524]


def clips() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [(0.1 * rng.standard_normal(n)).astype(np.float32) for n in (16000, 12345, 20001)]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    files = {}
    for kind in ("wavlm_ecapa", "utmos"):
        files[kind] = folder / kind / "weights.safetensors"
        files[kind].parent.mkdir()
        save_file(random_weights(kind), files[kind])
    return files


def evaluator(kind: str, source: Path) -> SpeechEvaluator:
    return SpeechEvaluator.model_validate({"type": kind, "from": str(source)})


def test_sim_o_is_upstreams(published):
    vectors = evaluate_clips(evaluator("wavlm_ecapa", published["wavlm_ecapa"]), clips(), 16000)
    assert [len(v) for v in vectors] == [24] * 3
    assert [v[:6] for v in vectors] == pytest.approx(np.array(EMBEDDINGS), abs=5e-5)
    assert [np.linalg.norm(v) for v in vectors] == pytest.approx(NORMS, rel=1e-6)
    for (i, j), cosine in COSINES.items():
        measured = similarity({"synthetic": [vectors[i]], "real": [vectors[j]]}, "real", ["a"], [0])["similarity"]
        assert measured.value == pytest.approx(cosine, abs=5e-7)


def test_a_clip_is_embedded_as_it_is_alone(published, monkeypatch):
    monkeypatch.setenv("HOME", str(published["wavlm_ecapa"].parents[1]))
    embedder = evaluator("wavlm_ecapa", Path("~/wavlm_ecapa"))  # a folder will do
    [alone] = evaluate_clips(embedder, clips()[1:2], 16000)
    assert np.array_equal(alone, evaluate_clips(embedder, clips(), 16000)[1])


def test_utmos_is_upstreams(published):
    measured = evaluate_clips(evaluator("utmos", published["utmos"]), clips(), 16000)
    assert measured == pytest.approx(SCORES, abs=2e-6)


def test_utmos_as_a_network(tmp_path):
    """A network with the sampling rate as its second input: the largest sample plus a thousandth of the rate."""
    import onnx
    from onnx import TensorProto, helper

    wave = helper.make_tensor_value_info("wave", TensorProto.FLOAT, [1, None])
    rate = helper.make_tensor_value_info("sr", TensorProto.INT64, [])
    result = helper.make_tensor_value_info("score", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ReduceMax", ["wave"], ["loudest"], keepdims=0),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rate", "thousandth"], ["share"]),
        helper.make_node("Add", ["loudest", "share"], ["score"]),
    ]
    thousandth = helper.make_tensor("thousandth", TensorProto.FLOAT, [], [0.001])
    graph = helper.make_graph(nodes, "loudest", [wave, rate], [result], [thousandth])
    path = tmp_path / "utmos.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)
    measured = evaluate_clips(evaluator("utmos", path), clips(), 16000)
    assert measured == pytest.approx([16 + clip.max() for clip in clips()], abs=1e-5)
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    with pytest.raises(ConfigError, match="not a network that onnxruntime can load"):
        evaluate_clips(evaluator("utmos", tmp_path / "broken.onnx"), clips(), 16000)


def test_an_x_vector_cosine_is_that_of_transformers(tmp_path):
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    torch.manual_seed(0)
    head = {"tdnn_dim": [32, 32, 32, 32, 96], "xvector_output_dim": 24, "use_weighted_layer_sum": True}
    config = WavLMConfig(**WAVE, **head)
    model = WavLMForXVector(config).eval()
    model.save_pretrained(tmp_path)
    extractor = Wav2Vec2FeatureExtractor(do_normalize=False)
    extractor.save_pretrained(tmp_path)
    long = np.concatenate([*clips(), 0.5 * np.sin(np.arange(150000) / 7).astype(np.float32)])  # 12 s: all is heard
    pair = [clips()[0], long]
    vectors = evaluate_clips(evaluator("xvector", tmp_path), pair, 16000)
    measured = similarity({"synthetic": vectors[:1], "real": vectors[1:]}, "real", ["a"], [0])["similarity"].value
    # As in the documentation of WavLMForXVector.
    with torch.no_grad():
        embeddings = [model(**extractor(clip, sampling_rate=16000, return_tensors="pt")).embeddings[0] for clip in pair]
    a, b = (torch.nn.functional.normalize(e, dim=-1) for e in embeddings)
    assert measured == pytest.approx(torch.nn.CosineSimilarity(dim=-1)(a, b).item(), abs=2e-7)
    assert abs(measured) < 0.9999, "two voices"


def test_weights_that_are_not_those(published, tmp_path):
    pickle, bare, text = (tmp_path / name for name in ("finetune.pth", "bare.safetensors", "text.safetensors"))
    pickle.write_bytes(b"\x80")
    text.write_text("no tensors")
    empty = tmp_path / "empty"
    empty.mkdir()
    save_file({n: t for n, t in random_weights("utmos").items() if n.startswith("wav2vec2.")}, bare)
    for kind, source, message in (
        ("wavlm_ecapa", pickle, "wavlm_ecapa.from: .* cannot be read as a checkpoint of torch"),
        ("utmos", tmp_path / "gone.pth", "there is no file"),
        ("utmos", tmp_path / "gone.safetensors", "there is no file"),
        ("utmos", empty, "has no file"),
        ("wavlm_ecapa", published["utmos"], "is missing"),
        ("utmos", bare, "not a strong learner of UTMOS"),
        ("utmos", text, "cannot be read as safetensors"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_clips(evaluator(kind, source), clips(), 16000)


def test_a_file_of_torch_is_written_as_safetensors_once(tmp_path, monkeypatch):
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    weights, file = random_weights("utmos"), tmp_path / "utmos22_strong.pt"
    for content, zipped in ((weights, False), ({"model": weights, "epoch": 3}, True)):  # no archive before torch 1.6
        torch.save(content, file, _use_new_zipfile_serialization=zipped)
        assert evaluate_clips(evaluator("utmos", file), clips(), 16000) == pytest.approx(SCORES, abs=2e-6)
        SpeechEvaluator.loaded.__globals__["_load_cached"].cache_clear()
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 2, "another file, other tensors"


class Code:
    """Something that runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "zipped", "message"),
    [
        (Code(), True, "holds objects that may run code and are never loaded: builtins.print"),
        (Code(), False, "cannot be read as a checkpoint of torch"),
        ({"model": {"layer.weight": "no tensor"}}, True, "holds more than tensors by their names"),
        ([torch.zeros(2)], True, "holds a list instead of named tensors"),
    ],
)
def test_a_file_of_torch_with_anything_else_is_refused(tmp_path, capsys, content, zipped, message):
    torch.save(content, tmp_path / "finetune.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ConfigError, match=message):
        evaluate_clips(evaluator("wavlm_ecapa", tmp_path / "finetune.pth"), clips(), 16000)
    assert capsys.readouterr().out == "", "no code ran"
