"""Encoders that hear chunk by chunk: the same for any pieces of the audio, and what a pass under the mask gives."""

import copy
from functools import cache

import numpy as np
import pytest
import tiny_speech_llm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stentor.audio.features import WhisperMel
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from stentor.models.encoders.encode import encode
from stentor.models.encoders.features import Features, fixed_whisper_mel
from stentor.models.encoders.streaming.chunks import Streaming, chunk_mask
from stentor.models.encoders.streaming.encoder_stream import AudioStream, FeatureStream, encode_chunks
from stentor.models.transformer.build import assemble, finish, processor_for
from stentor.models.transformer.config import Transformer
from stentor.models.transformer.processor import TransformerProcessor

LAYERS = {"d_model": 32, "layers": 3, "conv_kernel": 5, "macaron": True, "qk_norm": True}
FEATURES = {"normalize": "fixed", "stack": 4, "subsample": 4, "num_mel_bins": 40}
PARAKEET = {
    **tiny_speech_llm.ENCODERS["parakeet"],
    "num_mel_bins": 40,
    "num_attention_heads": 4,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 5,
    "layerdrop": 0.0,
}
WHISPER = {**tiny_speech_llm.ENCODERS["whisper"], "num_mel_bins": 40, "max_source_positions": 50}
ENCODERS = ("transformer", "transducer", "ctc", "whisper")


@cache
def build(kind="transformer", **streaming):
    """An untrained model whose frames are 40 ms long, those of Whisper 20 ms, with positions that come round each
    second."""
    torch.manual_seed(0)
    if kind == "transformer":
        family = Transformer.model_validate(
            {"kind": "encoder", "streaming": streaming, "features": FEATURES, "encoder": LAYERS}
        )
        bundle = finish(assemble(family, processor_for(family, None, "abc "), None), False)
    elif kind in ("transducer", "whisper"):
        encoder = {"config": WHISPER if kind == "whisper" else PARAKEET, "streaming": streaming}
        section = {"type": "transducer", "encoder": encoder, "predictor": {"hidden": 16}}
        bundle = Family.model_validate(section).build(TaskRequirements("transcribe", ("rnnt",), lambda: ["abc "]))
    elif kind == "speech_llm":
        bundle = tiny_speech_llm.build({"config": PARAKEET, "streaming": streaming})
    else:
        config = {"model_type": "parakeet_ctc", "encoder_config": PARAKEET}
        family = Family.model_validate({"type": kind, "config": config, "streaming": streaming})
        bundle = family.build(TaskRequirements("transcribe", ("ctc",), lambda: ["abc "]))
    bundle.model.eval()
    for name, parameter in bundle.model.named_parameters():
        if "lookahead" in name or "bias_" in name:
            torch.nn.init.normal_(parameter)
    return bundle


def masked(bundle, audio, chunk, reach):
    """Hidden states of a clip as a whole, under the mask of chunks and a reach of so many frames."""
    model, processor, mask = bundle.model, bundle.processor, torch.tensor([[chunk, reach, 0]])
    with torch.no_grad():
        if isinstance(processor, TransformerProcessor):
            return model.encode(*processor.audio_inputs([Example("", audio)]), mask)[0][0]
        return encode(model.encoder, model.shape, *processor.features([Example("", audio)]), mask)[0][0]


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def chunks(bundle, chunk, reach):
    """Its encoder with chunks and a reach of so many frames."""
    step = 1 / bundle.model.shape.frame_rate if hasattr(bundle.model, "shape") else 0.04
    return bundle.model.chunk_encoder(bundle.processor, (chunk * step, reach * step))


def encode_pieces(bundle, audio, ends, chunk, reach):
    """Hidden states of audio that comes in pieces up to these ends."""
    recording, states = AudioStream(chunks(bundle, chunk, reach)), []
    for piece in np.split(audio, ends):
        recording.add(piece)
        while recording.ready:
            states += encode_chunks([recording])
    recording.finish()
    while recording.ready:
        states += encode_chunks([recording])
    return torch.cat(states)


@pytest.mark.parametrize(("stack", "subsample"), [(1, 1), (4, 4), (7, 4), (3, 2), (1, 4)])
@pytest.mark.parametrize("snip_edges", [False, True])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(samples=st.integers(1, 9000), data=st.data())
def test_features_of_any_pieces(stack, subsample, snip_edges, samples, data):
    features = Features(normalize="fixed", stack=stack, subsample=subsample, snip_edges=snip_edges)
    audio = noise(samples)
    ends = sorted(data.draw(st.lists(st.integers(0, samples), max_size=6)))
    parts = []
    for cuts in (ends, []):
        stream = FeatureStream(features, 12, 8)
        parts.append(np.concatenate([*(stream.add(piece) for piece in np.split(audio, cuts)), stream.finish()]))
    assert np.array_equal(*parts)
    whole = features.joined(features.normalized(features.raw(audio)))
    assert parts[0].shape == whole.shape and np.abs(parts[0] - whole).max() < 1e-3


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("lookahead", [0.0, 0.16])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(samples=st.integers(1, 40_000), chunk=st.integers(1, 9), reach=st.integers(1, 40), data=st.data())
def test_states_of_any_pieces(kind, lookahead, samples, chunk, reach, data):
    bundle, audio = build(kind, lookahead=lookahead if kind != "ctc" else 0.0), noise(samples)
    ends = sorted(data.draw(st.lists(st.integers(0, samples), max_size=6)))
    states = encode_pieces(bundle, audio, ends, chunk, reach)
    assert torch.equal(states, encode_pieces(bundle, audio, [], chunk, reach))
    together = masked(bundle, audio, chunk, reach)
    assert together.shape == states.shape
    assert torch.allclose(together, states, atol=2e-4)


@pytest.mark.parametrize(("stack", "subsample"), [(1, 1), (4, 4), (7, 4), (1, 4)])
def test_features_come_as_soon_as_they_can(stack, subsample):
    """Joined ones, too, which see frames behind their own."""
    features = Features(normalize="fixed", stack=stack, subsample=subsample, snip_edges=True)
    seen = max(0, stack + (subsample - stack) // 2 - subsample)
    samples = (12 * subsample + seen - 1) * features.shift + features.length
    for short, ready in ((0, 12), (1, 0)):
        stream = FeatureStream(features, 12 * subsample, 8 * subsample)
        assert len(stream.add(noise(samples - short))) == ready
    assert len(stream.add(noise(1))) == 12 and len(stream.add(noise(8 * subsample * features.shift))) == 8


@pytest.mark.parametrize("kind", [*ENCODERS[:2], "whisper"])
def test_a_chunk_waits_for_what_it_sees_and_no_more(kind):
    """Long chunks with a short lookahead do not wait for another chunk."""
    bundle = build(kind, lookahead=0.08)
    encoder = chunks(bundle, 8, 16)
    recording = AudioStream(encoder)
    features = round(encoder.rate * 0.025)  # those of the last frame reach so far beyond it
    recording.add(noise(round((8 + encoder.ahead) * encoder.frame_seconds * encoder.rate) + features))
    assert 0 < encoder.ahead < 8 and recording.ready and len(encode_chunks([recording])[0]) == 8


@pytest.mark.parametrize("kind", ["transducer", "ctc", "whisper"])
def test_encoders_in_bfloat16(kind):
    """Parameters alone, as a frozen encoder is held: statistics of norms stay float32."""
    bundle = copy.deepcopy(build(kind))
    exact = encode_pieces(bundle, noise(16_000), [], 4, 8)
    for parameter in bundle.model.parameters():
        parameter.data = parameter.data.bfloat16()
    states = encode_pieces(bundle, noise(16_000), [700], 4, 8)
    assert states.dtype == torch.bfloat16 and (states - exact).abs().mean() < 0.05 * exact.abs().mean()


@pytest.mark.parametrize("kind", [*ENCODERS[:2], "whisper"])
def test_recordings_together_are_as_alone(kind):
    bundle = build(kind, lookahead=0.08)
    audio = [noise(n, n) for n in (9000, 16_000, 12_345)]
    encoder = chunks(bundle, 4, 8)
    recordings = [AudioStream(encoder) for _ in audio]
    states = [[] for _ in audio]
    for recording, samples in zip(recordings, audio):
        recording.add(samples)
        recording.finish()
    while ready := [i for i, recording in enumerate(recordings) if recording.ready]:
        for i, hidden in zip(ready, encode_chunks([recordings[i] for i in ready])):
            states[i].append(hidden)
    for parts, samples in zip(states, audio):
        assert torch.allclose(torch.cat(parts), encode_pieces(bundle, samples, [], 4, 8), atol=1e-5)
    for tensor in (t for group in recordings[0].states for t in group):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # and not that of all that were encoded with it


@pytest.mark.parametrize("kind", [*ENCODERS[:2], "whisper"])
def test_a_recording_holds_no_more_however_long_it_is(kind):
    bundle = build(kind)
    recording = AudioStream(chunks(bundle, 4, 8))

    def held():
        return sum(t.numel() for state in recording.states for t in state) + sum(
            x.size for x in (recording._frames, recording._stream._signal, recording._stream._rows)
        )

    sizes = []
    for second in range(24):
        recording.add(noise(16_000, second))
        while recording.ready:
            encode_chunks([recording])
        sizes.append(held())
    assert max(sizes[12:]) == max(sizes[:12])


def test_whispers_encoder_hears_as_pretrained_but_one_step_later():
    streaming = build("whisper")
    section = {"type": "transducer", "encoder": {"config": WHISPER, "log_mel": "fixed"}, "predictor": {"hidden": 16}}
    plain = Family.model_validate(section).build(TaskRequirements("transcribe", ("rnnt",), lambda: ["abc "]))
    plain.model.eval().load_state_dict(streaming.model.state_dict())
    features, lengths = plain.processor.features([Example("", noise(16_000))])
    features[:, :, -1] = 0  # which would be beyond the end
    later = torch.nn.functional.pad(features, (1, -1))
    with torch.no_grad():
        causal, _ = encode(streaming.model.encoder, streaming.model.shape, features, lengths)
        shifted, _ = encode(plain.model.encoder, plain.model.shape, later, lengths)
    assert causal.shape == (1, 50, 32) and torch.allclose(causal, shifted, atol=1e-5)


def test_whispers_features_are_its_own_but_for_floor_and_place():
    audio = noise(16_000) * np.linspace(0, 1, 16_000, dtype=np.float32)
    fixed = fixed_whisper_mel(40).raw(audio)
    whisper = WhisperMel(40)([np.pad(audio, (0, 80))[80:]])[0][0].T.numpy()
    assert np.abs(fixed[2:-3] - whisper[2:-3]).max() < 1e-4  # 5 ms later, and loud enough for both floors


def test_what_a_frame_sees():
    mask = chunk_mask(torch.tensor([[2, 1, 7], [0, 0, 0]]), 5)
    assert mask[0].int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert mask[1].all()


def test_what_is_drawn():
    drawn = {Streaming(offline_ratio=0.5).draw(np.random.default_rng(seed), 0.04) for seed in range(200)}
    assert (0, 0, 0) in drawn
    chunks = [chunk for chunk, *_ in drawn - {(0, 0, 0)}]
    assert min(chunks) == 2 and max(chunks) > 50 and all(chunk <= 64 for chunk in chunks)
    assert all(64 <= reach <= 256 for _, reach, _ in drawn - {(0, 0, 0)})


TRANSFORMER = {"type": "transformer", "streaming": {}, "features": FEATURES, "encoder": LAYERS}


@pytest.mark.parametrize(
    ("section", "changes", "place"),
    [
        (TRANSFORMER, {"kind": "encoder_decoder"}, "kind"),
        (TRANSFORMER, {"features": {**FEATURES, "normalize": "global"}}, "features.normalize"),
        (TRANSFORMER, {"features": {**FEATURES, "dither": 1e-3}}, "features.dither"),
        (TRANSFORMER, {"encoder": {**LAYERS, "attention": "linear"}}, "encoder.attention"),
        (TRANSFORMER, {"encoder": {**LAYERS, "positions": "learned"}}, "encoder.positions"),
        ("transducer", {"config": PARAKEET, "log_mel": "whisper"}, "log_mel"),
        ("transducer", {"config": {"model_type": "whisper"}, "window": "30s"}, "window"),
        ("transducer", {"config": {"model_type": "wavlm"}}, "streaming"),
        ("ctc", {"config": {"model_type": "parakeet_ctc"}, "streaming": {"lookahead": 1}}, "streaming.lookahead"),
    ],
)
def test_what_cannot_stream(section, changes, place):
    if section == "transducer":
        section, changes = {"type": section}, {"encoder": {"streaming": {}, **changes}}
    with pytest.raises(ValidationError) as error:
        Family.model_validate({**(section if isinstance(section, dict) else {"type": section}), **changes})
    conflict = error.value.errors()[0]["ctx"]["error"]
    assert conflict.key == place and (section is not TRANSFORMER or "chunk by chunk" in str(conflict))


WIDE = {"model_type": "parakeet_ctc", "encoder_config": {**PARAKEET, "subsampling_conv_kernel_size": 5}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "wavlm"}, "model.streaming is for the encoders of Whisper and Parakeet"),
        (WIDE, "kernels of 5 and a stride of 2 looks ahead"),
    ],
)
def test_models_that_cannot_stream(config, message):
    family = Family.model_validate({"type": "ctc", "config": config, "streaming": {}})
    with pytest.raises(ConfigError, match=message):
        family.build(TaskRequirements("transcribe", ("ctc",), lambda: ["abc"]))


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_export_hears_as_before(kind, tmp_path):
    bundle = build(kind, lookahead=0.08 if kind in ("transducer", "whisper") else 0.0)
    example = Example("", noise(8000), rng=np.random.default_rng(1), text="abc")
    inputs = bundle.processor.collate([example]).inputs
    assert inputs["chunks"].shape == (1, 3)
    losses, offline = (bundle.model(**inputs | {"chunks": torch.full((1, 3), n)}) for n in (2, 0))
    (term,) = losses
    assert not all(
        torch.equal(losses[term][k], offline[term][k]) for k in ("log_probs", "encoder", "hidden") if k in losses[term]
    )
    example.rng = None
    assert "chunks" not in bundle.processor.collate([example]).inputs
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path)
    again = type(bundle.family).load(tmp_path)
    assert again.processor.streaming == bundle.processor.streaming
    audio = noise(20_000)
    assert torch.allclose(encode_pieces(again, audio, [], 3, 9), masked(bundle, audio, 3, 9), atol=2e-4)
