"""Streaming Nemotrons while one speaks: what transformers computes and writes with the same frames ahead."""

import io
import json
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import tiny_transducers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_transducers import check_together, noise, words_of
from transformers import AutoModelForRNNT, AutoProcessor

import stentor
from stentor.cli import main
from stentor.errors import ConfigError
from stentor.inference.stream.agreement import AgreementRecogniser
from stentor.inference.stream.chunked import TransducerRecogniser
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.inference.stream.stream import Stream
from stentor.models.encoders.streaming.encoder_stream import AudioStream, encode_chunks

KIND = "nemotron_asr_streaming"
STEP = 0.04
"""Seconds of an encoder frame of the tiny model."""
AHEAD = (0, 1, 3, 6, 13)
"""Frames beyond its own that a frame sees at most."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint that writes a few words of noise."""
    folder = tiny_transducers.write(KIND, tmp_path_factory.mktemp(KIND))
    model = AutoModelForRNNT.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    inputs = processor([noise(64_000)], sampling_rate=16000)
    with torch.no_grad():
        states = model.get_audio_features(**inputs).pooler_output
        head, blank = model.joint.head, model.config.blank_token_id
        start = model.decoder(torch.full((1, 1), blank))
        head.weight *= 3
        head.bias -= model.joint(start, states).mean((0, 1))
        tokens = processor.tokenizer
        head.bias[tokens.convert_tokens_to_ids("▁")] += 2.0
        head.bias[[tokens.pad_token_id, tokens.unk_token_id]] = -99.0
        head.bias[blank] += 2.5
    model.save_pretrained(folder)
    return folder


@cache
def loaded(folder):
    return stentor.load(folder, "cpu"), AutoModelForRNNT.from_pretrained(folder).eval()


def inputs_of(folder, audio):
    """What transformers' processor makes of a clip."""
    inputs = AutoProcessor.from_pretrained(folder)([audio], sampling_rate=16000)
    return {name: inputs[name] for name in ("input_features", "attention_mask")}


def encode_pieces(bundle, audio, ends, ahead):
    """Hidden states of audio that comes in pieces up to these ends."""
    encoder = bundle.model.chunk_encoder(bundle.processor, ((ahead + 1) * STEP, bundle.processor.streaming.reach[1]))
    recording, states = AudioStream(encoder), []
    for piece in np.split(audio, ends):
        recording.add(piece)
        while recording.ready:
            states += encode_chunks([recording])
    recording.finish()
    while recording.ready:
        states += encode_chunks([recording])
    return torch.cat(states)


@pytest.mark.parametrize("ahead", AHEAD)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(samples=st.integers(1600, 30_000), data=st.data())
def test_states_of_any_pieces_are_those_of_transformers(folder, ahead, samples, data):
    (model, reference), audio = loaded(folder), noise(samples)
    ends = sorted(data.draw(st.lists(st.integers(0, samples), max_size=6)))
    states = encode_pieces(model.bundle, audio, ends, ahead)
    assert torch.equal(states, encode_pieces(model.bundle, audio, [], ahead))
    with torch.no_grad():
        output = reference.get_audio_features(**inputs_of(folder, audio), num_lookahead_tokens=ahead)
    expected = output.last_hidden_state[0, : int(output.attention_mask.sum())]
    assert states.shape == expected.shape and torch.allclose(states, expected, atol=1e-4)


def mel_chunks(folder, audio, ahead):
    """The features of whole chunks, as transformers' streams take them, each from its own samples alone."""
    processor, factor, hop, half = AutoProcessor.from_pretrained(folder), 4, 160, 256
    options = {"sampling_rate": 16000, "is_streaming": True}
    at, size = 1 + factor * ahead, factor * (ahead + 1)
    yield processor([audio[: (at - 1) * hop + 200]], **options)["input_features"][:, :at]
    padded = np.pad(audio, (half, 0))
    while (end := (at + size - 1) * hop + 2 * half) <= len(padded):
        yield processor([padded[at * hop : end]], is_first_audio_chunk=False, **options)["input_features"]
        at += size


@pytest.mark.parametrize("ahead", [0, 3, 13])
def test_the_text_of_transformers(folder, ahead):
    (model, reference), audio = loaded(folder), noise(28_000)
    words = words_of(model.stream(delay=(ahead + 1) * STEP, silence=60), audio, [7, 9000, 9100, 20_000])
    with torch.no_grad():
        options = {"num_lookahead_tokens": ahead, "max_length": 4000}
        whole = reference.generate(**inputs_of(folder, audio), **options)
        streamed = reference.generate(input_features=mel_chunks(folder, audio, ahead), **options)
    text = model.bundle.processor.decode(whole.sequences[0, 1:].tolist())
    assert [w["word"] for w in words] == text.split() and len(words) > 3
    assert all(0 <= w["start"] <= w["end"] <= w["time"] for w in words)
    # its last chunk must be whole: what is left of the audio is not in it
    assert text.startswith(model.bundle.processor.decode(streamed.sequences[0, 1:].tolist()))
    assert len(streamed.sequences[0]) > 10


def test_without_a_delay_it_writes_the_transcript(folder, tmp_path):
    model, _ = loaded(folder)
    audio = (noise(32_000) * 32767).clip(-32768, 32767).round().astype(np.int16)
    soundfile.write(tmp_path / "clip.wav", audio, 16000)
    stream = model.stream(silence=60)
    assert isinstance(stream.recogniser, TransducerRecogniser) and stream.recogniser.delay == pytest.approx(4 * STEP)
    text = model.transcribe(tmp_path / "clip.wav")["text"]
    assert " ".join(w["word"] for w in words_of(stream, audio / np.float32(32768))) == " ".join(text.split()) != ""


def test_recordings_together_are_as_alone(folder):
    check_together(loaded(folder)[0].stream(delay=7 * STEP).recogniser)


def test_one_stands_among_others_at_another_place(folder):
    """One recording joins when another is in its third chunk."""
    recogniser = loaded(folder)[0].stream(delay=2 * STEP).recogniser
    first, second = recogniser.open(), recogniser.open()
    first.add(noise(20_000, 1))
    for _ in range(3):
        recogniser.advance([first])
    second.add(noise(20_000, 2))
    while first.ready and second.ready:
        recogniser.advance([first, second])
    for hypothesis, seed in ((first, 1), (second, 2)):
        hypothesis.finish()
        while hypothesis.ready:
            recogniser.advance([hypothesis])
        alone = words_of(Stream(recogniser, silence=60), noise(20_000, seed))
        assert [w["word"] for w in hypothesis.words] == [w["word"] for w in alone] != []


def test_what_is_held_of_a_recording_does_not_grow(folder):
    bundle = loaded(folder)[0].bundle
    recording = AudioStream(bundle.model.chunk_encoder(bundle.processor, (4 * STEP, 8 * STEP)))
    sizes = []
    for second in range(8):
        recording.add(noise(16_000, second))
        while recording.ready:
            encode_chunks([recording])
        states = sum(t.untyped_storage().nbytes() for group in recording.states for t in group)
        sizes.append(states + recording._frames.nbytes + recording._stream._signal.nbytes)
    assert max(sizes[4:]) == max(sizes[:4])


def test_delays_are_those_that_its_processor_knows(folder):
    model, _ = loaded(folder)
    assert model.bundle.processor.streaming.lengths == (0.04, 0.08, 0.16, 0.28, 0.56)
    for delay in (0.3, 0.01, 2):
        with pytest.raises(ConfigError, match=f"chunks of 0.04, 0.08, 0.16, 0.28 or 0.56 s, not {delay:g} s"):
            model.stream(delay=delay)
    recogniser = model.stream(delay=0.56).recogniser
    assert recogniser.delays == (0.04, 0.56) and recogniser.nearest(0.3) == 0.28 and recogniser.nearest(9) == 0.56
    assert isinstance(open_recogniser(model, StreamOptions(delay=0.3, policy="agreement")), AgreementRecogniser)


def test_the_command(folder, monkeypatch, capsys, tmp_path):
    model, _ = loaded(folder)
    model.bundle.family.save(model.bundle, model.bundle.model.state_dict(), tmp_path)
    samples = (noise(32_000) * 32767).clip(-32768, 32767).round().astype(np.int16)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(samples.tobytes()))))
    options = ["--stream", "--format", "json", "--delay", "0.28", "--device", "cpu"]
    assert main(["transcribe", str(tmp_path), "-", *options]) == 0
    words = [e for e in map(json.loads, capsys.readouterr().out.splitlines()) if e["type"] == "word"]
    expected = words_of(model.stream(delay=0.28), samples / np.float32(32768))
    assert [w["word"] for w in words] == [w["word"] for w in expected] != []
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(samples.tobytes()))))
    assert main(["transcribe", str(tmp_path), "-", *options[:4], "0.3", "--device", "cpu"]) == 2
    assert "0.04, 0.08, 0.16, 0.28 or 0.56 s, not 0.3 s." in capsys.readouterr().err
