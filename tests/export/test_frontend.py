"""Features as a graph: what training computes, in onnxruntime."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models
onnxruntime = pytest.importorskip("onnxruntime", reason="needs stentor[onnx]")

import tiny_ctc  # noqa: E402
import tiny_seq2seq  # noqa: E402
import tiny_transducers  # noqa: E402

from stentor.audio.synth import say  # noqa: E402
from stentor.data.batch import Example  # noqa: E402
from stentor.errors import ConfigError  # noqa: E402
from stentor.export.onnx.frontend import frontend, write_frontend  # noqa: E402
from stentor.models.encoders.features import Features  # noqa: E402
from stentor.models.encoders.geometry import Geometry  # noqa: E402
from stentor.models.encoders.inputs import EncoderInputs  # noqa: E402
from stentor.models.transducer.config import KINDS  # noqa: E402
from stentor.models.transducer.pretrained.processor import PretrainedProcessor  # noqa: E402
from stentor.models.transformer.processor import TransformerProcessor  # noqa: E402

SAMPLES = (30, 200, 1601, 21_337, 70_000)
LIMIT = 1e-4
ROUNDED = {"fbank hamming": 2.0, "mfcc": 20.0}
"""Factor of the limit where training's own features in float32 are as far from those in float64: not normalised."""


@cache
def voice():
    """A minute of the built-in voice, with a pause."""
    clip = say("three seven nine one eight two four").audio
    return np.concatenate([clip, np.zeros(5000, np.float32), *[clip] * 30])[: 60 * 16000].astype(np.float32)


def encoder(**geometry):
    return EncoderInputs(None, Geometry(**{"kind": "mel", "convs": ((3, 2, 1),), **geometry}))


def kaldi(**settings):
    return TransformerProcessor(Features(**settings))


def pretrained(kind):
    shape = Geometry("mel", ((3, 2, 1),), mels=40, log_mel="parakeet")
    return PretrainedProcessor(tiny_transducers.processor(kind), shape, KINDS[kind])


def cohere():
    processor = tiny_seq2seq.build("cohere_asr").processor
    processor.extractor.dither = 0.0
    return processor


PROCESSORS = {
    "whisper": lambda: encoder(log_mel="whisper"),
    "whisper 30 s": lambda: encoder(log_mel="whisper", window=480_000),
    "whisper whole": lambda: encoder(log_mel="whisper", window=480_000, whole_window=True),
    "parakeet": lambda: encoder(log_mel="parakeet"),
    "fixed": lambda: encoder(log_mel="fixed"),
    "fixed whisper": lambda: encoder(log_mel="fixed_whisper"),
    "wave": lambda: encoder(kind="wave"),
    "wave normalised": lambda: encoder(kind="wave", normalize=True),
    "parakeet-ctc": lambda: tiny_ctc.build("parakeet").processor,
    "wav2vec2": lambda: tiny_ctc.build("wav2vec2").processor,
    "parakeet_tdt": lambda: pretrained("parakeet_tdt"),
    "nemotron": lambda: pretrained("nemotron_asr_streaming"),
    "seq2seq whisper": lambda: tiny_seq2seq.build("whisper").processor,
    "moonshine": lambda: tiny_seq2seq.build("moonshine").processor,
    "moonshine streaming": lambda: tiny_seq2seq.build("moonshine_streaming").processor,
    "cohere": cohere,
    "fbank": kaldi,
    "fbank joined": lambda: kaldi(normalize="meanvar", stack=7, subsample=3, use_energy=True, snip_edges=True),
    "fbank hamming": lambda: kaldi(normalize="mean", window_type="hamming", remove_dc_offset=False, high_freq=7000),
    "mfcc": lambda: kaldi(type="mfcc", use_energy=True, normalize="none"),
    "spectrogram": lambda: kaldi(type="spectrogram", use_energy=True, preemph_coeff=0.0),
}


GRAPHS = ("whisper 30 s", "parakeet", "fbank joined", "wave normalised")
"""Those that are run in onnxruntime, which takes long to trace."""


def compared(kind, compute, lengths_of_clips):
    """Compare features of clips with those of a batch."""
    processor = PROCESSORS[kind]()
    for samples in lengths_of_clips:
        clip = voice()[5000 : 5000 + samples] + np.float32(0.01)  # with an offset, as cheap microphones have
        features, lengths = compute(clip[None])
        expected, length = wanted(processor, Example("a", clip, "", "en"))
        assert features.shape == expected.shape and lengths.tolist() == [length], samples
        scale = max(1.0, float(np.abs(expected).max())) if kind == "spectrogram" else ROUNDED.get(kind, 1.0)
        np.testing.assert_allclose(features, expected, atol=LIMIT * scale, rtol=0, err_msg=f"{samples} samples")


@pytest.mark.parametrize("kind", PROCESSORS)
def test_it_computes_what_training_does(kind):
    module = frontend(PROCESSORS[kind]())
    longer = (479_700, 480_000, 480_100, 500_000) if kind == "whisper" else (479_990,) if "whisper" in kind else ()
    compared(kind, lambda audio: [t.numpy() for t in module(torch.from_numpy(audio))], (*SAMPLES, *longer))


@pytest.mark.long
@pytest.mark.parametrize("kind", [GRAPHS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in GRAPHS[1:])])
def test_so_does_the_graph(kind, tmp_path):
    facts = write_frontend(PROCESSORS[kind](), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / facts["file"])
    compared(kind, lambda audio: session.run(facts["outputs"], {"audio": audio}), (1601, *SAMPLES))


def wanted(processor, example):
    """Features and length that a batch of the example has."""
    if type(processor) is EncoderInputs:
        features, lengths = processor.features([example])
        return features.numpy(), int(lengths)
    inputs = processor.collate([example], labels=False).inputs
    lengths = inputs.get("lengths")
    return inputs["features"].numpy(), max(1600, len(example.audio)) // 160 if lengths is None else int(lengths)


def test_features_that_have_no_graph_are_named(tmp_path):
    with pytest.raises(ConfigError, match="reads audio at 8000 Hz"):
        write_frontend(kaldi(sampling_rate=8000, high_freq=0.0), tmp_path)
