"""Transducers while one speaks: what greedy decoding writes over the whole clip under the same mask."""

from functools import cache

import pytest
import tiny_transducers
import torch
from tiny_transducers import check_together, noise, words_of

import stentor
from stentor.data.batch import Example
from stentor.data.word_times import LEAST, in_order
from stentor.errors import ConfigError
from stentor.inference.stream.agreement import AgreementRecogniser
from stentor.inference.stream.chunked import TransducerRecogniser
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.inference.stream.stream import Stream
from stentor.models.base import Family, TaskRequirements
from stentor.models.decoding.transducer import greedy, start
from stentor.tasks.decode_checks import word_confidences

KINDS = ("encoder", "parakeet_tdt", "parakeet_rnnt")
REACH = 2.56


@cache
def build(kind):
    torch.manual_seed(0)
    if kind == "encoder":
        config = {"model_type": "parakeet_encoder", **tiny_transducers.ENCODER, "conv_kernel_size": 5}
        section = {"encoder": {"config": config, "streaming": {}}, "predictor": {"hidden": 32}, "times": True}
        section["ctc"] = {"units": "characters"}
        terms = ("rnnt", "ctc", "times")
    else:
        section = {"config": {"model_type": kind, **tiny_transducers.CONFIGS[kind]}, "streaming": {}}
        terms = (kind.removeprefix("parakeet_"),)
    texts = ["one two three", "nine eight", "zero zero seven"]
    bundle = Family.model_validate({"type": "transducer", **section}).build(
        TaskRequirements("transcribe", terms, lambda: iter(texts))
    )
    model = bundle.model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("joint", "predictor", "decoder", "project")):
            parameter.normal_(std=0.6)
    states, frames = model.encode(**bundle.processor.collate([Example("", noise(64_000))], labels=False).inputs)
    head, classes = model.joint.head, len(bundle.processor.tokenizer)  # durations follow
    head.bias[:classes] -= model.joint(states, start(model, 1, states.device)[0]).mean((0, 1))[:classes]
    head.bias[bundle.processor.tokenizer.get_vocab()[" "]] += 5.0
    head.bias[[i for i in bundle.processor.tokenizer.all_special_ids if i != model.blank]] = -99.0
    if model.times_head is not None:  # a word begins a frame before each and ends two frames after it
        model.times_head.weight.zero_()
        model.times_head.bias.copy_(torch.tensor([1.0, 2.0]))
    while len(greedy(model, states, frames, [200])[0].ids) > 120:  # until it writes but a little
        head.bias[model.blank] += 0.5
    return bundle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [0.08, 0.32, 1.0])
def test_the_text_of_its_definition(kind, chunk):
    bundle, audio = build(kind), noise(64_000)
    recogniser = TransducerRecogniser(bundle, chunk, REACH)
    words = words_of(Stream(recogniser, silence=60), audio, [7, 9000, 9100, 50_000])
    inputs = bundle.processor.collate([Example("", audio)], labels=False).inputs
    inputs["chunks"] = torch.tensor([[recogniser.encoder.chunk, recogniser.encoder.reach, 0]])
    with torch.no_grad():
        (path,) = greedy(bundle.model, *bundle.model.encode(**inputs), [10_000])
        spans = bundle.model._token_seconds(inputs, [path.spans])[0]
    text = bundle.processor.decode(path.ids)
    assert [w["word"] for w in words] == text.split() and len(words) > 3
    offline = word_confidences(
        path.ids, path.log_probs, bundle.processor.decode, spans, bundle.model.calibration.tolist()
    )
    for word, expected in zip(words, in_order(offline)):
        assert word["confidence"] == pytest.approx(expected["confidence"], abs=2e-3)
        assert word["end"] <= word["time"]
        # Medians of frames that had not come; words that had no length.
        tolerance = 2 * 0.04 if kind == "encoder" else LEAST
        assert word["start"] == pytest.approx(max(expected["start"], 0), abs=tolerance + 1e-3)
        assert word["end"] == pytest.approx(min(expected["end"], word["time"]), abs=tolerance + 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_recordings_together_are_as_alone(kind):
    check_together(TransducerRecogniser(build(kind), 0.16, REACH))


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_streams_as_before(kind, tmp_path, caplog):
    bundle = build(kind)
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path)
    model = stentor.load(tmp_path, "cpu")
    stream = model.stream(delay=0.32)
    assert isinstance(stream.recogniser, TransducerRecogniser)
    words = words_of(stream, noise(48_000), [])
    assert words == words_of(Stream(TransducerRecogniser(bundle, 0.32, 10.24)), noise(48_000), []) != []
    with pytest.raises(ConfigError, match="trained with chunks"):
        model.stream(delay=0.04)
    model.stream(delay=0.32)
    assert not caplog.records
    model.stream(language="Swedish")
    assert "the language Swedish has no effect" in caplog.text
    with pytest.raises(ConfigError, match="no language 'klingonish'"):
        model.stream(language="klingonish")
    assert isinstance(open_recogniser(model, StreamOptions(delay=0.5, policy="agreement")), AgreementRecogniser)


def test_its_ctc_head_alone(tmp_path):
    bundle, audio = build("encoder"), noise(64_000)
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path / "both")
    recogniser = open_recogniser(stentor.load(tmp_path / "both", "cpu"), StreamOptions(delay=0.32, policy="ctc"))
    words = words_of(Stream(recogniser, silence=60), audio, [7, 9000, 50_000])
    inputs = bundle.processor.collate([Example("", audio)], labels=False).inputs
    inputs["chunks"] = torch.tensor([[recogniser.encoder.chunk, recogniser.encoder.reach, 0]])
    with torch.no_grad():
        hidden, _ = bundle.model.frames(**inputs)
        text = bundle.processor.ctc.decode(bundle.model.ctc_log_probs(hidden)[0].argmax(-1).tolist())
    assert recogniser.policy == "CTC head" and [w["word"] for w in words] == text.split() != []
    bundle = build("parakeet_rnnt")
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path / "bare")
    with pytest.raises(ConfigError, match="has no CTC head"):
        open_recogniser(stentor.load(tmp_path / "bare", "cpu"), StreamOptions(policy="ctc"))
