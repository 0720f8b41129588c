"""ONNX graphs of encoder-decoder recognisers in the layout of Hugging Face's Optimum, which onnx-asr 0.12 (Whisper) and
sherpa-onnx 2.0.1 (Moonshine, without mask, as it gives one of another length) read.

encoder_model.onnx          input_features [B, mels, T] or audio [B, T], lengths [B] (not of Whisper) ->
                            last_hidden_state [B, F, width], encoder_attention_mask [B, F] (not of Whisper)
decoder_model_merged.onnx   encoder_attention_mask (not of Whisper), input_ids [B, L], encoder_hidden_states,
                            past_key_values.i.decoder.key ..., use_cache_branch [1] (not looked at) -> logits [B, L, V],
                            present.i.decoder.key ..., scores, of Whisper attention [B, heads, L, F] of alignment heads
features.onnx               audio [1, samples] -> input_features, lengths

One graph does for the first call and all others: it projects the encoder's states from the length of the cached
projections on, so all of them in the first call and none later. In the last row of the logits the tokens that are never
written are minus infinity already; readers need no lists of them. `scores` [B, V] is that row as the model has it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache

from stentor.data.batch import Example
from stentor.export.onnx.exporter import GraphExporter, run_program, usage_of, write_facts
from stentor.export.onnx.frontend import write_frontend
from stentor.export.onnx.trace import bias, trace
from stentor.export.program import program_facts, write_program
from stentor.export.whisper import attention_weights, with_times
from stentor.inference.align.whisper import alignment_heads
from stentor.inference.model import Model
from stentor.models.encoders.encode import whisper_layers
from stentor.models.seq2seq import whisper
from stentor.models.seq2seq.build import builder
from stentor.models.seq2seq.modeling import Seq2SeqModel

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
USAGE = """\
Whisper models also run in onnx-asr: `onnx_asr.load_model("whisper", "{folder}").recognize("speech.wav")`.
"""


class EncoderGraph(nn.Module):
    """The encoder, on clips that are padded or not."""

    def __init__(self, model: Seq2SeqModel):
        super().__init__()
        self.model = model

    def forward(self, input_features: Tensor, lengths: Tensor | None = None) -> Any:
        if lengths is None:
            return self.whisper(input_features)
        hidden, valid = self.model.encoder_states(input_features, lengths)
        assert valid is not None
        return hidden, valid.long()

    def whisper(self, features: Tensor) -> Tensor:
        """States of log-mel [B, mels, T] of any length up to 3000."""
        encoder = self.model.model.encoder
        return whisper_layers(encoder, F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))))[0]


class DecoderGraph(nn.Module):
    """The decoder with its caches as plain tensors."""

    never: Tensor
    never_first: Tensor
    """Zero [V], minus infinity for tokens that are never written, and for those that no text begins with."""

    def __init__(self, model: Seq2SeqModel):
        super().__init__()
        self.decoder, self.head = model.model.decoder, model.proj_out
        self.takes_mask = not isinstance(model, whisper.Model)
        self.heads = [] if self.takes_mask else alignment_heads(model)  # type: ignore[arg-type]
        # The position behind which tokens are text: after the start token alone comes a language.
        self.text_from = 1 if isinstance(model, whisper.Model) and model.languages else 0
        for name, tokens in (("never", model.suppressed), ("never_first", model.suppressed_first)):
            unwanted = torch.zeros(model.config.vocab_size)
            unwanted[tokens] = -torch.inf
            self.register_buffer(name, unwanted)

    def forward(
        self,
        *,
        encoder_attention_mask: Tensor | None = None,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        past: list[Tensor],
        use_cache_branch: Tensor,
    ) -> tuple[Tensor, ...]:
        # Readers give the first call caches of no length, some of no rows either.
        past = [p.reshape(len(input_ids), *p.shape[1:]) for p in past]
        own: Any = DynamicCache(list(zip(past[::4], past[1::4])))
        cross: Any = DynamicCache(list(zip(past[2::4], past[3::4])))
        cache = EncoderDecoderCache(own, cross)
        cache.is_updated = dict.fromkeys(cache.is_updated, False)
        before = past[0].shape[2]
        places = torch.arange(before + input_ids.shape[1])
        seen = torch.ones(encoder_hidden_states.shape[:2]) if encoder_attention_mask is None else encoder_attention_mask
        masks = {"encoder_attention_mask": bias(seen > 0)[:, None, None]} if self.takes_mask else {}
        rest = encoder_hidden_states[:, past[2].shape[2] :].clone()
        logits, weights = self.run(input_ids, rest, cache, places[before:], places, **masks)
        present = [t for a, b in zip(own.layers, cross.layers) for t in (a.keys, a.values, b.keys, b.values)]
        outputs = (self.allowed(logits, places[before:]), *present, logits[:, -1])  # sherpa-onnx reads by order
        return (*outputs, weights) if self.heads else outputs

    def run(
        self, ids: Tensor, hidden: Tensor, cache: Any, places: Tensor, known: Tensor, **masks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, L, V] and attention of the alignment heads [B, heads, L, F] for tokens [B, L] at `places` [L];
        `known`: places of the keys in the cache after the call."""
        out = self.decoder(
            input_ids=ids,
            # Spelled out: the masks that transformers builds depend on lengths in ways that cannot be traced.
            attention_mask=bias(known[None] <= places[:, None])[None, None].expand(len(ids), 1, -1, -1),
            position_ids=places[None],
            encoder_hidden_states=hidden,
            past_key_values=cache,
            use_cache=True,
            output_attentions=bool(self.heads),
            **masks,
        )
        logits = self.head(out.last_hidden_state)
        weights = [out.cross_attentions[layer][:, head] for layer, head in self.heads]
        return logits, torch.stack(weights, 1) if weights else logits

    def allowed(self, logits: Tensor, places: Tensor) -> Tensor:
        """The logits, where in the last row tokens that may not be written are minus infinity."""
        first = torch.where(places[0] == 0, self.never_first, 0.0)
        last = logits[:, -1:] + torch.where(places[-1] >= self.text_from, self.never + first, 0.0)
        return torch.cat([logits[:, :-1], last], 1)


def trace_decoder(model: Seq2SeqModel, states: Tensor, path: Path, padded: bool = True) -> tuple[list[str], list[int]]:
    """Write the decoder for encoder states [2, F, width], which are `padded` or not; returns the names of its outputs,
    and layers, heads and width of its caches."""
    graph, few = DecoderGraph(model), torch.tensor([[model.start_id] * 3] * 2)
    valid = None if isinstance(model, whisper.Model) or not padded else torch.ones(states.shape[:2])
    with torch.no_grad():
        cache = model.decode((states.clone(), valid), few, use_cache=True).past_key_values
    shapes = [
        (c.layers[0].keys.shape, n) for c, n in ((cache.self_attention_cache, 5), (cache.cross_attention_cache, 7))
    ]
    layers = len(cache.self_attention_cache.layers)
    # Each its own tensor: torch takes the same one in two places for one input.
    past = [torch.zeros(2, s[1], n, s[3]) for _ in range(layers) for s, n in shapes for _ in range(2)]
    kinds = [f"{who}.{what}" for who in ("decoder", "encoder") for what in ("key", "value")]
    names = [f"past_key_values.{i}.{kind}" for i in range(layers) for kind in kinds]
    inputs: dict[str, Any] = {"encoder_attention_mask": torch.ones(states.shape[:2], dtype=torch.long)}
    inputs |= {"input_ids": few, "encoder_hidden_states": states, "past": past}
    inputs["use_cache_branch"] = torch.tensor([True])
    axes: dict[str, Any] = dict.fromkeys(list(inputs)[:3], (0, 1)) | {"past": [(0, 2)] * len(past)}
    axes["use_cache_branch"] = ()
    if valid is None:
        del inputs["encoder_attention_mask"], axes["encoder_attention_mask"]
    flat = [n for name in inputs for n in (names if name == "past" else [name])]
    outputs = ["logits", *(n.replace("past_key_values", "present") for n in names), "scores"]
    outputs += ["attention"] * bool(graph.heads)
    with attention_weights(model):
        trace(graph, inputs, axes, outputs, path, "decoder", flat)
    return outputs, [layers, past[0].shape[1], past[0].shape[3]]


def trace_encoder(model: Seq2SeqModel, inputs: dict[str, Tensor], path: Path) -> list[str]:
    """Write the encoder for features [2, ..., T], and lengths [2] where it takes them; returns its outputs' names."""
    named = {"input_features": inputs["features"].contiguous()} | {n: t for n, t in inputs.items() if n == "lengths"}
    axes = {"input_features": (0, inputs["features"].ndim - 1), "lengths": (0,)}
    outputs = ["last_hidden_state", "encoder_attention_mask"][: len(named)]
    trace(EncoderGraph(model), named, {n: axes[n] for n in named}, outputs, path, "encoder")
    return outputs


def example_inputs(processor: Any) -> dict[str, Tensor]:
    """Features of two clips of noise of different lengths."""
    noise = torch.randn(40_000, generator=torch.Generator().manual_seed(0)).numpy()
    return dict(processor.audio_inputs([Example("a", 0.1 * noise), Example("b", 0.1 * noise[:31_000])]))


class Seq2SeqOnnx(GraphExporter):
    """Graphs of Whisper, Moonshine, Moonshine streaming and Cohere ASR with a program that runs them."""

    usage = usage_of(
        "python transcribe.py speech.wav --language en", USAGE, "features, language, decoding, long recordings"
    )

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle = model.bundle
        network: Any = bundle.model
        processor: Any = bundle.processor
        inputs = example_inputs(processor)
        if isinstance(network, whisper.Model):
            inputs["features"] = inputs["features"][..., :900]  # windows may be shorter than 30 s
        encoder = trace_encoder(network, inputs, folder / ENCODER)
        with torch.no_grad():
            states, _ = network.encoder_states(inputs["features"], inputs.get("lengths"))
        decoder, cache = trace_decoder(network, states, folder / DECODER)
        graphs = {"features": write_frontend(processor, folder)}
        graphs |= {"encoder": {"file": ENCODER, "outputs": encoder}, "decoder": {"file": DECODER, "outputs": decoder}}
        builder.save_configs(bundle, folder)
        if isinstance(network, whisper.Model):  # onnx-asr reads these
            special = processor.tokenizer.get_added_vocab()
            plain = {t: i for t, i in processor.tokenizer.get_vocab().items() if t not in special}
            for name, tokens in (("vocab.json", plain), ("added_tokens.json", special)):
                (folder / name).write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
        write_facts(folder, "seq2seq", graphs, {"cache": cache} | decoding_facts(network, processor))
        write_program(folder, "seq2seq")

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        tasks = {True: "translate", False: None}
        return run_program(
            folder, examples, lambda e: {"language": e.language, "task": tasks[bool(e.extra.get("translate"))]}
        )

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        return with_times(model, examples) if isinstance(model.bundle.model, whisper.Model) else None


def decoding_facts(model: Any, processor: Any) -> dict[str, Any]:
    """Facts that a decoding loop needs beside the graphs: `prompt`, whose places `language_places` hold the language's
    token, and `translate` the token of another task by its place."""
    language = next(iter(processor.languages), None)
    prompt = processor.prompt(language)
    token = processor.languages.get(language)
    translate = {"2": processor.task_ids[1]} if processor.languages and processor.translates else {}
    return {
        **program_facts(processor),
        "model_type": model.config.model_type,
        "prompt": prompt,
        "language_places": [i for i, t in enumerate(prompt) if t == token],
        "languages": processor.languages,
        "language_names": processor.codes,
        "detects_language": model.capabilities.detects_language,
        "translate": translate,
        "eos_id": processor.eos_id,
        "text_ids": processor.plain_id if isinstance(processor, whisper.Processor) else model.config.vocab_size,
        "token_rate": processor.token_rate,
        "positions": processor.most,
        "alignment_heads": alignment_heads(model) if isinstance(model, whisper.Model) else [],
    }
