"""ONNX graphs of a speech LLM, written by torch's exporter; `onnx_model` runs them.

features.onnx   audio [1, samples] -> features [1, mels, T] or [1, T], lengths [1], see `export.onnx.frontend`
encoder.onnx    features, lengths -> frames [1, F, width], audio [1, P, text width] (what the projector makes of them),
                counts [1], the frames of the clip alone
ctc.onnx        frames -> ctc [1, F, classes] (log-probabilities), where there is a CTC head
llm.onnx        input_ids [B, L], audio [N, text width], audio_index [N], attention_mask [B, past + L], position_ids
                [B, L], rows [M], past.i.key and past.i.value [B, heads, past, width] of each layer -> logits [M, V] at
                the positions `rows` of the flattened batch, states and embeds [B * L, text width], present.i.key, ...
aligner.onnx    features, frames, states and tokens [K, text width] of the text's tokens, word_tokens [1, W, 2],
                word_parts [1, W, 2] -> start and end [1, W, T] (log-probabilities), inside [1, W + 1, T] with attention
onnx_config.json  sizes, names and versions

Lengths, and the batch of the language model, are free. Times come from the scores by the code that torch uses too.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.onnx.exporter import GraphExporter, run_program, usage_of, write_facts
from stentor.export.onnx.frontend import write_frontend
from stentor.export.onnx.trace import cached_states, trace
from stentor.export.program import program_facts, write_program
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.encoders.encode import encode
from stentor.models.pretrained.parts import write_config
from stentor.models.speech_llm.aligner import AlignedText, WordAligner, stretch
from stentor.models.speech_llm.modeling import SpeechLLMModel, steady_attention
from stentor.tasks.words import Words
from stentor.text.multilingual import UNSPACED

PARTS = {"encoder": "audio encoder", "ctc": "CTC head", "llm": "language model", "aligner": "alignment module"}
USAGE = """\
Word times need an aligner of the kind `attention` (`aligner.onnx`). Stentor runs the graphs too, with subtitles, beams
and second attempts: `stentor transcribe {folder} speech.wav`.
"""


class EncoderGraph(nn.Module):
    """Encoder and projector on one clip, padded or not."""

    def __init__(self, model: SpeechLLMModel):
        super().__init__()
        self.encoder, self.projector = model.encoder, model.projector
        self.shape = model.shape

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        frames, counts = encode(self.encoder, self.shape, features, lengths)
        return frames, self.projector(frames), counts


class CTCGraph(nn.Module):
    """The CTC head."""

    def __init__(self, model: SpeechLLMModel):
        super().__init__()
        self.head = model.ctc_head

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(frames).log_softmax(-1)


class LLMGraph(nn.Module):
    """The language model with its cache as plain tensors."""

    def __init__(self, model: SpeechLLMModel):
        super().__init__()
        # Not a submodule: the encoder's weights are none of this graph's.
        self.llm, self.head = model.llm, model.head

    def forward(
        self,
        input_ids: Tensor,
        audio: Tensor,
        audio_index: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        rows: Tensor,
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache: Any = DynamicCache(list(zip(past[::2], past[1::2])))
        embeds = self.llm.get_input_embeddings()(input_ids)
        embeds = embeds.flatten(0, 1).index_copy(0, audio_index, audio).view_as(embeds)
        before, size = past[0].shape[2], past[0].shape[2] + input_ids.shape[1]
        place = torch.arange(size, device=input_ids.device)
        seen = (place[None] <= place[before:, None])[None, None] & (attention_mask[:, None, None] > 0)
        states = cached_states(self.llm.base_model, embeds, seen, position_ids, cache).flatten(0, 1)
        head: Any = self.head(states[rows])
        logits = head["logits"] if "logits" in head else F.linear(head["hidden"], head["weight"], head["bias"])
        present = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return logits, states, embeds.flatten(0, 1), *present


class AlignerGraph(nn.Module):
    """The alignment module on one clip without padding."""

    def __init__(self, aligner: WordAligner):
        super().__init__()
        self.aligner = copy.copy(aligner)
        self.aligner.__class__ = WholeClip

    def forward(
        self, features: Tensor, frames: Tensor, states: Tensor, tokens: Tensor, word_tokens: Tensor, word_parts: Tensor
    ) -> tuple[Tensor, ...]:
        rows = torch.arange(states.shape[0], device=states.device)[None]
        lengths = torch.full((1,), features.shape[-1], dtype=torch.long)
        text = AlignedText(states, tokens, rows, word_tokens, word_parts)
        scores = self.aligner(features, lengths, frames, text)
        return (scores.start, scores.end) if scores.inside is None else (scores.start, scores.end, scores.inside)


class WholeClip(WordAligner):
    """The aligner on one clip as long as its tensor: sizes then are shapes, which can be traced, not values."""

    def on_grid(self, features: Tensor, lengths: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        steps = features.shape[-1]
        size = (steps + self.stride - 1) // self.stride + 1
        per_point = self.shape.frame_rate * self.step
        # Zeros beyond the last frame, as many as the last grid point may need: encoders without padding stop early.
        frames = F.pad(self.from_audio(self.norm_audio(hidden)), (0, 0, 0, 4 + int(2 * per_point)))
        keys = stretch(frames, per_point, size)
        if self.from_mel is not None:
            mel = F.pad(features, (0, (size - 1) * self.stride + 1 - steps))
            keys = keys + self.from_mel(mel, lengths, size)
        return keys, torch.ones(1, size, dtype=torch.bool, device=features.device)


class SpeechLLMOnnx(GraphExporter):
    """Graphs of a speech LLM with a script that runs them."""

    usage = usage_of("python transcribe.py speech.wav --words", USAGE)

    def write_graphs(self, model: Model, folder: Path) -> None:
        write_graphs(model.bundle, folder)
        write_program(folder, "speech_llm")

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return run_program(folder, examples, lambda e: {"language": e.language, "context": e.context})

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        """With word times, where the task has them."""
        return model.task.predict(model.bundle, examples, checked=False) if isinstance(model.task, Words) else None


def write_graphs(bundle: Bundle, folder: Path) -> None:
    """Write the graphs, the processor's files and `onnx_config.json` into a folder that is there.

    Everything is float32. Raises ConfigError when a package is missing, or naming the part that cannot be exported.
    """
    model = bundle.model.float().eval()
    _refuse_llm(model)
    example = _example(bundle)
    outputs: dict[str, list[str]] = {}
    with torch.no_grad(), steady_attention(model):
        for name, graph, inputs, axes, names in _graphs(model, example):
            flat = [n for n in inputs if n != "past"]
            flat += [n.replace("present", "past") for n in names if n.startswith("present")]
            trace(graph, inputs, axes, names, folder / f"{name}.onnx", PARTS[name], flat)
            outputs[name] = names
    bundle.processor.save(folder)
    write_config(bundle, folder)
    graphs = {"features": write_frontend(bundle.processor, folder)}
    graphs |= {name: {"file": f"{name}.onnx", "outputs": names} for name, names in outputs.items()}
    facts: dict[str, Any] = {
        **program_facts(bundle.processor),
        "seconds_per_frame": 1 / model.shape.frame_rate,
        "frames_per_position": bundle.processor.factor,
        "eos_id": bundle.processor.eos_id,
        "prompt": bundle.processor.prompt_ids(),
        "words": bundle.processor.prompt.model_dump(exclude={"dropout"}),
        "token_rate": bundle.processor.token_rate,
        "unspaced": UNSPACED.pattern,
        "timed": "inside" in outputs.get("aligner", ()),
        "past": {
            f"past.{i // 2}.{('key', 'value')[i % 2]}": [p.shape[1], p.shape[3]] for i, p in enumerate(example["past"])
        },
        "text_width": example["audio"].shape[1],
        "aligner": None,
    }
    if model.aligner is not None:
        aligner = model.aligner
        facts["aligner"] = {"kind": aligner.kind, "stride": aligner.stride, "seconds_per_point": aligner.step}
        facts["aligner"]["calibration"] = aligner.calibration.tolist()
    write_facts(folder, "speech_llm", graphs, facts)


def _refuse_llm(model: SpeechLLMModel) -> None:
    """Raise ConfigError for language models whose memory is more than one growing list of keys and values."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    config = model.llm.config
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if kinds - {DynamicLayer}:
        raise ConfigError(
            f"The language model ({config.model_type}) cannot be exported to ONNX: it has layers with a sliding window "
            f"or a state ({', '.join(sorted(k.__name__ for k in kinds - {DynamicLayer}))}), and the graph only knows a "
            "cache of all keys and values; models with full attention in all layers, such as Qwen2 and Llama, can be."
        )


def _example(bundle: Bundle) -> dict[str, Any]:
    """Inputs of all graphs. No free size is 0 or 1, and no two that are free of each other are the same: the exporter
    would take them for constants, or for one."""
    from transformers import DynamicCache

    model, processor = bundle.model, bundle.processor
    noise = (0.1 * np.random.default_rng(0).standard_normal(21_000)).astype(np.float32)
    features, lengths = processor.features([Example("example", noise)])
    with torch.no_grad(), steady_attention(model):
        frames, _ = encode(model.encoder, model.shape, features, lengths)
        embed = model.llm.get_input_embeddings()
        cache: Any = DynamicCache()
        model.llm.base_model(inputs_embeds=embed(torch.zeros(2, 5, dtype=torch.long)), past_key_values=cache)
    past = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    rows, size, count = 2, 9, 11
    text = model.llm.get_input_embeddings().weight.shape[1]
    return {
        "features": features,
        "lengths": lengths,
        "frames": frames,
        "audio": torch.randn(6, text),
        "audio_index": torch.arange(6) + 1,
        "input_ids": torch.zeros(rows, size, dtype=torch.long),
        "attention_mask": torch.ones(rows, 5 + size, dtype=torch.long),
        "position_ids": torch.arange(5, 5 + size).expand(rows, -1).contiguous(),
        "rows": torch.arange(3),
        "past": past,
        "states": torch.randn(count, text),
        "tokens": torch.randn(count, text),
        "word_tokens": torch.tensor([[[0, 1], [2, 2], [3, 6], [7, 9]]]),
        "word_parts": torch.tensor([[[0.0, 1.0]] * 4]),
    }


def _graphs(model: SpeechLLMModel, example: dict[str, Any]) -> Iterator[tuple[str, nn.Module, dict, dict, list[str]]]:
    """Name, module, inputs, free axes of each input, and names of the outputs."""
    time = 2 if model.shape.kind == "mel" else 1

    def pick(**axes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: example[name] for name in axes}, axes

    yield "encoder", EncoderGraph(model), *pick(features=(time,), lengths=()), ["frames", "audio", "counts"]
    if model.ctc_head is not None:
        yield "ctc", CTCGraph(model), *pick(frames=(1,)), ["ctc"]
    layers = range(len(example["past"]) // 2)
    present = [f"present.{i}.{part}" for i in layers for part in ("key", "value")]
    row, rows, past = (0,), (0, 1), [(0, 2)] * len(present)
    tokens = {"input_ids": rows, "audio": row, "audio_index": row, "attention_mask": rows, "position_ids": rows}
    yield "llm", LLMGraph(model), *pick(**tokens, rows=row, past=past), ["logits", "states", "embeds", *present]
    if model.aligner is not None:
        yield (
            "aligner",
            AlignerGraph(model.aligner),
            *pick(features=(time,), frames=(1,), states=(0,), tokens=(0,), word_tokens=(1,), word_parts=(1,)),
            ["start", "end", *(["inside"] if model.aligner.kind == "attention" else [])],
        )
