"""Whisper and Moonshine for sherpa-onnx 2.0.1.

Whisper, as `OfflineWhisperModel` reads it:
encoder.onnx    mel [1, mels, T] -> n_layer_cross_k and n_layer_cross_v [layers, 1, F, width], with the metadata
decoder.onnx    tokens [1, L], in_n_layer_self_k_cache and _v_cache [layers, 1, positions, width], n_layer_cross_k and
                _v, offset [1] -> logits [1, L, V], out_n_layer_self_k_cache and _v_cache, cross_attention_weights
                [1, heads, L, F] of the alignment heads, as logarithms, because sherpa-onnx takes the softmax itself
Moonshine and Moonshine streaming, as `OfflineMoonshineModelV2` reads them:
encoder.onnx    audio [1, samples] -> states; decoder.onnx: see `stentor.export.onnx.seq2seq`
tokens.txt      bytes of each token in base64 and its number

sherpa-onnx fills Whisper's windows with zeros, and not with silence; the encoder's graph makes silence of them and
fills up the window of 30 s. Its frames begin 5 ms later than Whisper's, and it writes at most 6 tokens for each second
that it is given: `filled` makes the features those of training and ends the limit.
"""

import base64
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from stentor.audio.features import HOP, WINDOW
from stentor.data.batch import Example
from stentor.export.gguf.kind import read
from stentor.export.onnx.frontend import frontend
from stentor.export.onnx.seq2seq import DecoderGraph, EncoderGraph, example_inputs, trace_decoder
from stentor.export.onnx.trace import add_metadata, trace
from stentor.export.sherpa.exporter import SherpaExporter, result_of, usage_of
from stentor.export.whisper import attention_weights, token_bytes, with_times, words_of
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.seq2seq import whisper
from stentor.models.seq2seq.modeling import Seq2SeqModel

ENCODER, DECODER, TOKENS = "encoder.onnx", "decoder.onnx", "tokens.txt"
MAKE = """\
files = {n: f"{folder}/{n}.onnx" for n in ("encoder", "decoder")}
recognizer = sherpa_onnx.OfflineRecognizer.from_whisper(
    **files, tokens="{folder}/tokens.txt", language="", enable_token_timestamps=True)"""
FILL = """\
filler = numpy.zeros(max(0, int(29.4 * rate) - len(audio)), "float32")
audio = numpy.concatenate([audio[rate // 200 : 0 : -1], audio, filler])
"""
REMARKS = """\
With an empty `language` it is detected. sherpa-onnx reads at most 29.5 s with Whisper. Its frames begin 5 ms later than
those of training, and it writes at most 6 tokens for each second that it is given. The lines on `filler` correct both;
without them words change or are missing. Moonshine: `OfflineRecognizer.from_moonshine_v2` with the same three files and
without these lines; at most 15 tokens a second.
"""


class WhisperEncoder(EncoderGraph):
    """The encoder behind sherpa-onnx's features, with the decoder's projections of its states."""

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        filler = (mel == 0).all(1, keepdim=True)
        loudest = mel.masked_fill(filler, -torch.inf).amax((1, 2), keepdim=True)
        silence = (loudest - 2).clamp(min=-1.5)  # 80 dB below, and the lowest there is
        rest = silence.expand(1, mel.shape[1], WINDOW // HOP)[:, :, mel.shape[2] :]
        hidden = self.whisper(torch.cat([torch.where(filler, silence, mel), rest], 2))
        layers = [layer.encoder_attn for layer in self.model.model.decoder.layers]
        return torch.stack([a.k_proj(hidden) for a in layers]), torch.stack([a.v_proj(hidden) for a in layers])


class WhisperDecoder(DecoderGraph):
    """The decoder with caches as long as its positions."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        in_n_layer_self_k_cache: Tensor,
        in_n_layer_self_v_cache: Tensor,
        n_layer_cross_k: Tensor,
        n_layer_cross_v: Tensor,
        offset: Tensor,
    ) -> tuple[Tensor, ...]:
        self_caches = in_n_layer_self_k_cache, in_n_layer_self_v_cache
        known = torch.arange(in_n_layer_self_k_cache.shape[2])
        places = offset + torch.arange(tokens.shape[1])
        cross = DynamicCache([(self.heads_of(k), self.heads_of(v)) for k, v in zip(n_layer_cross_k, n_layer_cross_v)])
        own = DynamicCache()
        placed = [Placed(self.heads_of(k), self.heads_of(v), places) for k, v in zip(*self_caches)]
        own.layers = list(placed)
        unused = n_layer_cross_k[0, :, :1]
        logits, weights = self.run(tokens, unused, EncoderDecoderCache(own, cross), places, known)
        keys, values = (
            torch.stack([t.transpose(1, 2).flatten(2) for t in ts]) for ts in zip(*(c.both for c in placed))
        )
        return self.allowed(logits, places), keys, values, weights.clamp(min=1e-30).log()

    def heads_of(self, cache: Tensor) -> Tensor:
        """[1, N, width] by head: [1, heads, N, width of a head]."""
        return cache.unflatten(2, (self.decoder.config.decoder_attention_heads, -1)).transpose(1, 2)


class Placed(DynamicLayer):
    """A layer of a cache of a fixed length, which new keys and values are put into at `places` [L]."""

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.both, self.places = (keys, values), places

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = self.both
        keys, values = keys.index_copy(2, self.places, key_states), values.index_copy(2, self.places, value_states)
        self.both = keys, values
        return keys, values


class AudioEncoder(nn.Module):
    """Moonshine's encoder of one clip as it was recorded."""

    def __init__(self, model: Seq2SeqModel, processor: Any):
        super().__init__()
        self.model, self.features = model, frontend(processor)

    def forward(self, audio: Tensor) -> Tensor:
        return self.model.encoder_states(*self.features(audio))[0]


class Seq2SeqSherpa(SherpaExporter):
    """encoder.onnx, decoder.onnx and tokens.txt."""

    usage = usage_of(MAKE, REMARKS, FILL)

    def refusal(self, bundle: Bundle) -> str | None:
        title = bundle.family.facts().title  # type: ignore[attr-defined]
        if isinstance(bundle.model, whisper.Model):
            return None
        if "moonshine" in bundle.model.config.model_type:
            first, last = bundle.model.start_id, bundle.processor.eos_id
            return None if (first, last) == (1, 2) else "sherpa-onnx begins texts with token 1 and ends them with 2"
        return f"sherpa-onnx gives {title} another prompt than the one that it is trained with"

    def write_graphs(self, model: Model, folder: Path) -> None:
        network: Any = model.bundle.model
        processor: Any = model.bundle.processor
        if isinstance(network, whisper.Model):
            _write_whisper(network, processor, folder)
            add_metadata(folder / ENCODER, whisper_metadata(network, processor))
        else:
            audio = {"audio": torch.randn(1, 21_000)}
            trace(AudioEncoder(network, processor), audio, {"audio": (1,)}, ["states"], folder / ENCODER, "encoder")
            inputs = example_inputs(processor)
            with torch.no_grad():
                states, _ = network.encoder_states(inputs["features"], inputs["lengths"])
            trace_decoder(network, states, folder / DECODER, padded=False)
        lines = [
            f"{base64.b64encode(t).decode()} {i}\n" for i, t in sorted(token_bytes(processor.tokenizer).items()) if t
        ]
        (folder / TOKENS).write_text("".join(lines), encoding="ascii")

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import sherpa_onnx

        files = {"encoder": str(folder / ENCODER), "decoder": str(folder / DECODER), "tokens": str(folder / TOKENS)}
        processor: Any = model.bundle.processor
        is_whisper = isinstance(model.bundle.model, whisper.Model)

        @functools.cache
        def recognizer(language: str, task: str) -> Any:
            if not is_whisper:
                return sherpa_onnx.OfflineRecognizer.from_moonshine_v2(**files)
            options = {"language": language, "task": task, "enable_token_timestamps": True}
            return sherpa_onnx.OfflineRecognizer.from_whisper(**files, **options)

        outputs = []
        for example in examples:
            task = "translate" if example.extra.get("translate") else "transcribe"
            reader = recognizer(processor.code(example.language) or "", task)
            result = result_of(reader, filled(example.audio) if is_whisper else example.audio)
            output: dict[str, Any] = {"text": result.text.strip()}
            if result.timestamps:
                ends = [a + d for a, d in zip(result.timestamps, result.durations)]
                output["words"] = words_of(result.tokens, result.timestamps, ends, example.language)
            outputs.append(output)
        return outputs

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        return with_times(model, examples) if isinstance(model.bundle.model, whisper.Model) else None


def filled(audio: Any) -> Any:
    """A clip at 16 kHz with what sherpa-onnx needs for Whisper: its first 5 ms reversed in front, as Whisper reflects
    the edge, and zeros up to 29.4 s behind."""
    return np.concatenate(
        [audio[HOP // 2 : 0 : -1], audio, np.zeros(max(0, int(29.4 * whisper.RATE) - len(audio)), np.float32)]
    )


def _write_whisper(network: Any, processor: Any, folder: Path) -> None:
    mel = example_inputs(processor)["features"][:1, :, :900].contiguous()
    outputs = ["n_layer_cross_k", "n_layer_cross_v"]
    encoder = WhisperEncoder(network)
    trace(encoder, {"mel": mel}, {"mel": (2,)}, outputs, folder / ENCODER, "encoder")
    with torch.no_grad():
        keys, values = (t[:, :, :450] for t in encoder(mel))
    config = network.config
    cache = torch.zeros(config.decoder_layers, 1, processor.most, config.d_model)
    inputs = {
        "tokens": torch.tensor([[processor.start_id] * 3]),
        "in_n_layer_self_k_cache": cache,
        "in_n_layer_self_v_cache": cache.clone(),
        "n_layer_cross_k": keys,
        "n_layer_cross_v": values,
        "offset": torch.tensor([2]),
    }
    free = {"tokens": (1,), "n_layer_cross_k": (2,), "n_layer_cross_v": (2,)}
    axes: dict[str, Any] = dict.fromkeys(inputs, ()) | free
    outputs = ["logits", "out_n_layer_self_k_cache", "out_n_layer_self_v_cache", "cross_attention_weights"]
    with attention_weights(network):
        trace(WhisperDecoder(network), inputs, axes, outputs, folder / DECODER, "decoder")


def whisper_metadata(network: Any, processor: Any) -> dict[str, Any]:
    """Metadata that `OfflineWhisperModel::InitEncoder` reads. `sot_sequence` is the prompt without the last token."""
    config, tokens = network.config, processor.tokenizer.get_vocab()
    codes = processor.languages
    blank = processor.tokenizer.encode(" ", add_special_tokens=False)
    return {
        "model_type": "whisper",
        "n_text_ctx": processor.most,
        **read(config, "n_mels=num_mel_bins n_text_layer=decoder_layers n_text_state=d_model n_vocab=vocab_size"),
        "sot": processor.start_id,
        "eot": processor.eos_id,
        "blank_id": blank[0],
        "translate": tokens.get("<|translate|>", 0),
        "transcribe": tokens.get("<|transcribe|>", 0),
        "is_multilingual": int(bool(codes)),
        "no_timestamps": processor.plain_id,
        "no_speech": network.no_speech_id or 0,
        "sot_sequence": ",".join(map(str, processor.prompt(next(iter(codes), None))[:-1])),
        "all_language_tokens": ",".join(map(str, codes.values())),
        "all_language_codes": ",".join(codes),
        "n_alignment_heads": len(DecoderGraph(network).heads),
    }
