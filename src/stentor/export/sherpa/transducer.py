"""Transducers for sherpa-onnx 2.0.1, as it takes NeMo's (`nemo_transducer`), whose predictor has states: encoder.onnx,
decoder.onnx, joiner.onnx and tokens.txt for an OfflineRecognizer, and of models that were trained for streaming
encoder-stream.onnx in the place of encoder.onnx for an OnlineRecognizer. It feeds the graphs by the order of inputs.

encoder         audio_signal [B, bands, T], length [B] -> outputs [B, J, F], encoded_lengths [B]
encoder-stream  audio_signal [B, bands, W], length [B], cache_last_channel [B, 1, 1, N], cache_last_time [B, 1, 1, 1]
                (unused), cache_last_channel_len [B] (chunks so far) -> outputs, encoded_lengths, the next caches
decoder         targets [B, 1] and target_length [B], int32, states [layers, B, width] twice (of a GRU the second is
                unused) -> outputs [B, J, 1], prednet_lengths, the next states
joiner          encoder_outputs [B, J, 1], decoder_outputs [B, J, 1] -> outputs [B, 1, 1, V], behind them durations

The blank is the last token, as sherpa-onnx wants it: the graphs count tokens in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.data.batch import Example
from stentor.export.onnx.trace import add_metadata, trace
from stentor.export.onnx.transducer import (
    TOKENS,
    WORD,
    chunk_encoder,
    durations_are_counts,
    encoder_inputs,
    feature_kind,
    subsampling,
    write_tokens,
)
from stentor.export.onnx.transducer_graphs import ChunkGraph, EncoderGraph, JointGraph, LSTMGraph, first_states
from stentor.export.program import write_program
from stentor.export.sherpa.exporter import SherpaExporter, result_of, usage_of
from stentor.export.sherpa.features import BANDS, SherpaFeatures
from stentor.inference.model import Model
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.inference.stream.stream import Stream
from stentor.models.base import Bundle
from stentor.models.transducer.modeling import TransducerModel
from stentor.tasks.decode_checks import word_confidences
from stentor.text.written_words import joined

ENCODER, STREAM, TYPE = "encoder.onnx", "encoder-stream.onnx", "nemo_transducer"
TAIL = 0.5
"""Seconds of silence that a stream has behind it, besides a chunk: only full chunks are read."""
MAKE = """\
files = {n: f"{folder}/{n}.onnx" for n in ("encoder", "decoder", "joiner")}
recognizer = sherpa_onnx.OfflineRecognizer.from_transducer(
    **files, tokens="{folder}/tokens.txt", model_type="nemo_transducer")"""
REMARKS = """\
`python stream.py speech.wav` prints words as they become final, and `python stream.py -` does so for the samples of a
microphone (16 kHz, 16 bits, one channel) on standard input: the last seconds are read again each second.

Models that were trained for streaming have no `stream.py`, but `encoder-stream.onnx`, the encoder for
`sherpa_onnx.OnlineRecognizer.from_transducer` with the same decoder, joiner and tokens; give it a second of silence
behind the end of a recording.

Times are those at which tokens are written: sherpa-onnx has no place for the times head and the measured delays of
Stentor's models, so `stentor transcribe` and the `onnx` export have better word times.
"""


class FileEncoder(nn.Module):
    """The encoder behind sherpa-onnx's own features."""

    def __init__(self, model: TransducerModel, features: SherpaFeatures, prompt: int | None):
        super().__init__()
        self.encoder, self.features, self.prompt = EncoderGraph(model), features, prompt

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        prompts = None if self.prompt is None else torch.full_like(length, self.prompt)
        states, frames, *_ = self.encoder(self.features(audio_signal, length), length, prompts)
        return states.transpose(1, 2), frames


class StreamEncoder(nn.Module):
    """The encoder of a stream behind sherpa-onnx's own features. In front of the cache of `ChunkGraph` lie the last
    features: those that a later one needs, and the lead, of which sherpa-onnx knows nothing."""

    def __init__(self, chunk: ChunkGraph, features: SherpaFeatures):
        super().__init__()
        self.chunk, self.features = chunk, features
        self.kept = chunk.chunks.lead + features.before
        """Features that are kept."""
        self.size = self.kept * BANDS + chunk.size

    def forward(
        self,
        audio_signal: Tensor,
        length: Tensor,
        cache_last_channel: Tensor,
        cache_last_time: Tensor,
        cache_last_channel_len: Tensor,
    ) -> tuple[Tensor, ...]:
        chunk, cache = self.chunk, cache_last_channel.flatten(1)
        kept = cache[:, : self.kept * BANDS].unflatten(1, (BANDS, self.kept)) if self.kept else audio_signal[:, :, :0]
        begun = (cache_last_channel_len > 0)[:, None, None]
        kept = torch.where(begun, kept, audio_signal[:, :, :1])  # the first one stands in for those before it
        known = torch.cat([kept, audio_signal], 2)
        rows = self.features(known, length + self.kept)[:, :, self.features.before :][:, :, : chunk.features]
        if chunk.chunks.lead:
            places = torch.arange(rows.shape[2], device=rows.device)
            rows = torch.where(begun | (places >= chunk.chunks.lead), rows, 0.0)
        states, frames, *_, after = chunk(rows, length, cache[:, self.kept * BANDS :])
        last = known[:, :, chunk.step : chunk.step + self.kept].flatten(1)
        caches = torch.cat([last, after], 1)[:, None, None]
        return states.transpose(1, 2), frames, caches, cache_last_time + 0.0, cache_last_channel_len + 1


class Decoder(nn.Module):
    """The predictor with tokens in `order`."""

    def __init__(self, model: TransducerModel, order: Sequence[int]):
        super().__init__()
        self.predictor = LSTMGraph(model)
        self.order = torch.tensor(order)

    def forward(self, targets: Tensor, target_length: Tensor, states_1: Tensor, states_2: Tensor) -> tuple[Tensor, ...]:
        output, *after = self.predictor(self.order[targets.long()], target_length, states_1, states_2)
        return output.transpose(1, 2), target_length + 0, *after


class Joiner(nn.Module):
    """The joint with tokens in `order`."""

    def __init__(self, model: TransducerModel, order: Sequence[int]):
        super().__init__()
        self.joint = JointGraph(model)
        durations = range(len(order), len(order) + len(model.durations or ()))
        self.order = torch.tensor([*order, *durations])

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        logits = self.joint(encoder_outputs[:, :, 0], decoder_outputs[:, :, 0])
        return logits[:, self.order][:, None, None]


class TransducerSherpa(SherpaExporter):
    """Graphs of a transducer with the metadata that sherpa-onnx reads."""

    usage = usage_of(MAKE, REMARKS)

    def refusal(self, bundle: Bundle) -> str | None:
        if not durations_are_counts(bundle.model):
            return (
                f"sherpa-onnx takes durations of 0, 1, 2 ... frames, and the model has {list(bundle.model.durations)}"
            )
        if feature_kind(bundle) == "wave":
            return "sherpa-onnx gives transducers log-mel features, and this encoder reads audio samples"
        if bundle.processor.shape.window is not None:
            return "sherpa-onnx gives transducers clips of any length, and this encoder reads windows of 30 s"
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle = model.bundle
        order = tokens_in_order(bundle.model)
        write_tokens(bundle, folder / TOKENS, "<blk>", order)
        state = _write_decoder(bundle.model, order, folder)
        keys = {ENCODER: _write_encoder(bundle, folder)}
        if bundle.processor.streaming is not None:
            keys[STREAM] = _write_stream(bundle, folder)
        else:
            write_program(folder, "sherpa_stream", "stream.py", ("audio", "recordings"))
        # Keys that OfflineTransducerNeMoModel and OnlineTransducerNeMoModel of sherpa-onnx read. A model of durations
        # has `tdt` in its `url`; nothing is left for sherpa-onnx to normalise.
        facts = {"vocab_size": len(order) - 1, "subsampling_factor": subsampling(bundle), "normalize_type": ""}
        facts |= {"pred_rnn_layers": len(state), "pred_hidden": state.shape[2]}
        facts["url"] = "" if bundle.model.durations is None else "tdt"
        for file, own in keys.items():
            add_metadata(folder / file, facts | own)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        lines = (folder / TOKENS).read_text(encoding="utf-8").splitlines()
        ids = dict(zip((line.split(" ")[0].replace(WORD, " ") for line in lines), tokens_in_order(model.bundle.model)))
        clips: list[Any] = [example.audio for example in examples]
        if model.bundle.processor.streaming is None:
            results = recognize(folder, clips)
        else:
            results = clips
            results[1::2] = recognize(folder, clips[1::2])
            results[::2] = recognize(folder, [with_tail(clip, model.bundle) for clip in clips[::2]], True)
        outputs = []
        for result in results:
            pairs = [(ids[token], start) for token, start in zip(result.tokens, result.timestamps) if token in ids]
            known, spans = [token for token, _ in pairs], [(start, start) for _, start in pairs]
            words = word_confidences(known, [0.0] * len(known), model.bundle.processor.decode, spans)
            outputs.append({"text": result.text.strip(), "words": words})
        return outputs

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """With the times at which tokens are written. Of models that were trained for streaming every second clip is
        read as a stream, so that both encoders are compared."""
        with emission_times(model.bundle.model):
            outputs = model.for_transcription().predict(model.bundle, examples, checked=False)
            for i in range(0, len(examples), 2) if model.bundle.processor.streaming else ():
                stream = Stream(open_recogniser(model, StreamOptions()), silence=3600.0)
                events = [*stream.feed(with_tail(examples[i].audio, model.bundle)), *stream.finish()]
                words = [event for event in events if event["type"] == "word"]
                outputs[i] = {"text": joined(word["word"] for word in words), "words": words}
            return outputs


def tokens_in_order(model: TransducerModel) -> list[int]:
    """The model's tokens with the blank behind all others."""
    size = model.joint.head.out_features - len(model.durations or ())  # type: ignore[union-attr,operator]
    return [token for token in range(size) if token != model.blank] + [model.blank]


@contextmanager
def emission_times(model: TransducerModel) -> Iterator[None]:
    """Times of tokens are those at which they are written, without times head and delays."""
    before = model.times_head, model.delays
    model.times_head, model.delays = None, None
    try:
        yield
    finally:
        model.times_head, model.delays = before


def with_tail(audio: Any, bundle: Bundle) -> np.ndarray:
    """Audio float32 [samples] with the silence behind it that a stream needs."""
    chunk = chunk_encoder(bundle)
    seconds = TAIL + (chunk.chunk + chunk.ahead) * chunk.frame_seconds
    return np.pad(np.asarray(audio, np.float32), (0, round(seconds * 16000)))


def recognize(folder: Path, clips: Sequence[Any], stream: bool = False) -> list[Any]:
    """Results of an OfflineRecognizer for clips float32 [samples] at 16 kHz; `stream`: of an OnlineRecognizer that
    hears 100 ms at a time."""
    import sherpa_onnx

    files = {name: str(folder / f"{name}.onnx") for name in ("decoder", "joiner")} | {"tokens": str(folder / TOKENS)}
    files |= {"encoder": str(folder / STREAM)} if stream else {"encoder": str(folder / ENCODER), "model_type": TYPE}
    recognizers = sherpa_onnx.OnlineRecognizer if stream else sherpa_onnx.OfflineRecognizer
    recognizer, results = recognizers.from_transducer(**files), []
    for clip in clips if stream else ():
        live = recognizer.create_stream()
        for start in range(0, len(clip), 1600):
            live.accept_waveform(16000, np.asarray(clip[start : start + 1600], np.float32))
            while recognizer.is_ready(live):
                recognizer.decode_stream(live)
        results.append(recognizer.get_result_all(live))
    return results if stream else [result_of(recognizer, clip) for clip in clips]


def _write_encoder(bundle: Bundle, folder: Path) -> dict[str, int]:
    """Write the encoder; returns its own metadata."""
    features = SherpaFeatures(feature_kind(bundle), bundle.processor.shape.mels, False)
    inputs = encoder_inputs(bundle.processor)
    prompt = int(inputs["prompt_ids"][0]) if "prompt_ids" in inputs else None
    signal = torch.randn(2, BANDS, inputs["audio_signal"].shape[2])
    named, axes = {"audio_signal": signal, "length": inputs["length"]}, {"audio_signal": (0, 2), "length": (0,)}
    graph = FileEncoder(bundle.model, features, prompt)
    trace(graph, named, axes, ["outputs", "encoded_lengths"], folder / ENCODER, "audio encoder")
    return {"feat_dim": BANDS}


def _write_stream(bundle: Bundle, folder: Path) -> dict[str, int]:
    features = SherpaFeatures(feature_kind(bundle), bundle.processor.shape.mels, True)
    chunk = ChunkGraph(bundle.model, chunk_encoder(bundle))
    graph = StreamEncoder(chunk, features)
    inputs = {
        "audio_signal": torch.randn(2, BANDS, chunk.features),
        "length": torch.full((2,), chunk.features),
        "cache_last_channel": torch.zeros(2, 1, 1, graph.size),
        "cache_last_time": torch.zeros(2, 1, 1, 1),
        "cache_last_channel_len": torch.zeros(2, dtype=torch.long),
    }
    outputs = ["outputs", "encoded_lengths", *(f"next_{n}" for n in list(inputs)[2:])]
    trace(graph, inputs, dict.fromkeys(inputs, (0,)), outputs, folder / STREAM, "audio encoder of a stream")
    caches = {f"{n}_dim{i}": inputs[n].shape[i] for n in list(inputs)[2:4] for i in (1, 2, 3)}
    return {"window_size": chunk.features, "chunk_shift": chunk.step, **caches}


def _write_decoder(model: TransducerModel, order: Sequence[int], folder: Path) -> Tensor:
    """Write predictor and joint; returns a state [layers, B, width]."""
    first = first_states(model)[0]
    state = torch.randn(len(first), 2, first.shape[2])
    ones = torch.ones(2, dtype=torch.int32)
    inputs = {"targets": ones[:, None], "target_length": ones, "states_1": state, "states_2": state.clone()}
    axes = {name: (int(name.startswith("states")),) for name in inputs}
    outputs = ["outputs", "prednet_lengths", "next_states_1", "next_states_2"]
    decoder = Decoder(model, order)
    trace(decoder, inputs, axes, outputs, folder / "decoder.onnx", "predictor")
    with torch.no_grad():
        output = decoder(**inputs)[0]
    pair = {"encoder_outputs": torch.randn_like(output), "decoder_outputs": output}
    trace(Joiner(model, order), pair, dict.fromkeys(pair, (0,)), ["outputs"], folder / "joiner.onnx", "joint network")
    return state
