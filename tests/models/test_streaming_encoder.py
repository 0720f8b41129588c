"""Encoders that hear chunk by chunk: the same for any pieces of the audio, and what a pass under the mask gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stentor.models.base import Family
from stentor.models.transformer import Transformer
from stentor.models.transformer.build import assemble, finish, processor_for
from stentor.models.transformer.encoder_stream import AudioStream, encode_chunks
from stentor.models.transformer.feature_stream import FeatureStream
from stentor.models.transformer.frontend import Features
from stentor.models.transformer.streaming import Streaming, chunk_mask

LAYERS = {"d_model": 32, "layers": 3, "conv_kernel": 5, "macaron": True}
FEATURES = {"normalize": "fixed", "stack": 4, "subsample": 4, "num_mel_bins": 40}


def build(**streaming):
    torch.manual_seed(0)
    family = Transformer.model_validate(
        {"kind": "encoder", "streaming": streaming, "features": FEATURES, "encoder": LAYERS}
    )
    bundle = finish(assemble(family, processor_for(family, None, "abc "), None), False)
    if bundle.model.lookahead is not None:
        torch.nn.init.normal_(bundle.model.lookahead.weight)
    return bundle


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def encode_pieces(bundle, audio, ends, chunk, reach):
    """Hidden states of audio that comes in pieces up to these ends."""
    recording, states = AudioStream(bundle.model, bundle.family.features, chunk, reach), []
    for piece in np.split(audio, ends):
        recording.add(piece)
        while recording.ready:
            states += encode_chunks(bundle.model, [recording])
    recording.finish()
    while recording.ready:
        states += encode_chunks(bundle.model, [recording])
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
        stream = FeatureStream(features, 8)
        parts.append(np.concatenate([*(stream.add(piece) for piece in np.split(audio, cuts)), stream.finish()]))
    assert np.array_equal(*parts)
    whole = features.joined(features.normalized(features.raw(audio)))
    assert parts[0].shape == whole.shape and np.abs(parts[0] - whole).max() < 1e-3


@pytest.mark.parametrize("lookahead", [0.0, 0.16])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(samples=st.integers(1, 40_000), chunk=st.integers(1, 9), reach=st.integers(1, 40), data=st.data())
def test_states_of_any_pieces(lookahead, samples, chunk, reach, data):
    bundle, audio = build(lookahead=lookahead), noise(samples)
    ends = sorted(data.draw(st.lists(st.integers(0, samples), max_size=6)))
    states = encode_pieces(bundle, audio, ends, chunk, reach)
    assert torch.equal(states, encode_pieces(bundle, audio, [], chunk, reach))
    features = bundle.family.features
    frames = torch.from_numpy(features.joined(features.normalized(features.raw(audio))))[None]
    masked, _ = bundle.model.encode(frames, torch.tensor([frames.shape[1]]), torch.tensor([[chunk, reach]]))
    assert masked[0].shape == states.shape
    assert torch.allclose(masked[0], states, atol=2e-4)


def test_recordings_together_are_as_alone():
    bundle = build()
    audio = [noise(n, n) for n in (9000, 16_000, 12_345)]
    recordings = [AudioStream(bundle.model, bundle.family.features, 4, 8) for _ in audio]
    states = [[] for _ in audio]
    for recording, samples in zip(recordings, audio):
        recording.add(samples)
        recording.finish()
    while ready := [i for i, recording in enumerate(recordings) if recording.ready]:
        for i, hidden in zip(ready, encode_chunks(bundle.model, [recordings[i] for i in ready])):
            states[i].append(hidden)
    for parts, samples in zip(states, audio):
        assert torch.allclose(torch.cat(parts), encode_pieces(bundle, samples, [], 4, 8), atol=1e-5)


def test_a_recording_holds_no_more_after_an_hour_than_after_a_minute():
    bundle = build()
    recording = AudioStream(bundle.model, bundle.family.features, 4, 8)

    def held():
        return sum(t.numel() for state in recording.states for t in state.tensors) + sum(
            x.size for x in (recording._frames, recording._stream._signal, recording._stream._rows)
        )

    sizes = []
    for second in range(60):
        recording.add(noise(16_000, second))
        while recording.ready:
            encode_chunks(bundle.model, [recording])
        sizes.append(held())
    assert max(sizes[30:]) == max(sizes[:30])


def test_what_a_frame_sees():
    mask = chunk_mask(torch.tensor([[2, 1], [0, 0]]), 5)
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
    assert (0, 0) in drawn
    chunks = [chunk for chunk, _ in drawn - {(0, 0)}]
    assert min(chunks) == 2 and max(chunks) > 50 and all(chunk <= 64 for chunk in chunks)
    assert all(64 <= reach <= 256 for _, reach in drawn - {(0, 0)})


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"kind": "encoder_decoder"}, "kind"),
        ({"features": {**FEATURES, "normalize": "global"}}, "features.normalize"),
        ({"features": {**FEATURES, "dither": 1e-3}}, "features.dither"),
        ({"encoder": {**LAYERS, "attention": "linear"}}, "encoder.attention"),
        ({"encoder": {**LAYERS, "positions": "learned"}}, "encoder.positions"),
    ],
)
def test_what_cannot_stream(changes, place):
    section = {"type": "transformer", "streaming": {}, "features": FEATURES, "encoder": LAYERS, **changes}
    with pytest.raises(ValidationError) as error:
        Family.model_validate(section)
    conflict = error.value.errors()[0]["ctx"]["error"]
    assert conflict.key == place and "while they come" in str(conflict)
