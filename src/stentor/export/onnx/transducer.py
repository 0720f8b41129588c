"""ONNX graphs of transducers; names of inputs and files are those that onnx-asr 0.12 reads (nemo-conformer-rnnt, -tdt).

encoder-model.onnx  audio_signal [B, mels, T] (wave encoders: [B, T]), length [B], with language prompts prompt_ids [B]
                    -> states [B, F, J], lengths [B], where there are heads ctc [B, F, classes] and distances [B, F, 2]
                    (frames); of models that onnx-asr reads also outputs [B, J, F] and encoded_lengths [B]
encoder_chunk.onnx  audio_signal [B, mels, W], length [B], cache [B, N] (zeros at the start) -> states, lengths,
                    distances, next_cache: the next chunk of a stream, of models that were trained for it
decoder.onnx        tokens [B, 1], state_0 ... [layers, B, width] -> outputs [B, 1, J], next_state_0 ...
joint.onnx          encoder [N, J], predictor [N, J] -> logits [N, V], behind them those of durations
features.onnx       audio [1, samples] -> features, lengths
decoder_joint-model.onnx, vocab.txt  for onnx-asr alone
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.data.batch import Example
from stentor.export.onnx.exporter import GraphExporter, run_program, usage_of, write_facts
from stentor.export.onnx.frontend import write_frontend
from stentor.export.onnx.trace import trace
from stentor.export.onnx.transducer_graphs import (
    ChunkGraph,
    EncoderGraph,
    JointGraph,
    LSTMGraph,
    PredictorGraph,
    first_states,
)
from stentor.export.program import INTERNAL, TEMPLATES, program_facts, write_program
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder
from stentor.models.pretrained.parts import write_config
from stentor.models.pretrained.weights import read_json, write_json
from stentor.models.transducer.build import builder
from stentor.models.transducer.config import KINDS as TRANSDUCERS
from stentor.models.transducer.modeling import EncoderTransducer, TransducerModel

TOKENS = "tokens.txt"
WORD = "\u2581"
"""Written in lists of tokens for a space."""
PARTS = {
    "encoder": ("encoder-model.onnx", "audio encoder"),
    "encoder_chunk": ("encoder_chunk.onnx", "audio encoder of a stream"),
    "decoder": ("decoder.onnx", "predictor"),
    "joint": ("joint.onnx", "joint network"),
    "onnx_asr": ("decoder_joint-model.onnx", "predictor and joint network"),
}
"""Files of the graphs, and nouns for messages."""
USAGE = """\
Models that were trained for streaming have `stream.py` as well.

Stentor runs them too: `stentor transcribe {folder} speech.wav`. Models with the features of NeMo (Parakeet, and
encoders of the kind `parakeet_encoder` with 80 or 128 bands that are not trained for streaming) also run in onnx-asr:
`onnx_asr.load_model("nemo-conformer-rnnt", "{folder}").recognize("speech.wav")`, those with durations (TDT) as
`nemo-conformer-tdt`. Its times are those at which tokens are written; the times head is not in onnx-asr.
"""


class JointForOnnxAsr(nn.Module):
    """Predictor and joint in one, for one token and one frame at a time."""

    def __init__(self, model: TransducerModel):
        super().__init__()
        self.predictor, self.joint = LSTMGraph(model), JointGraph(model)

    def forward(
        self,
        encoder_outputs: Tensor,
        targets: Tensor,
        target_length: Tensor,
        input_states_1: Tensor,
        input_states_2: Tensor,
    ) -> tuple[Tensor, ...]:
        output, *states = self.predictor(targets.long(), target_length, input_states_1, input_states_2)
        return self.joint(encoder_outputs.transpose(1, 2), output)[:, :, None], *states


class TransducerOnnx(GraphExporter):
    """Graphs of a transducer with a script that runs them."""

    usage = usage_of("python transcribe.py speech.wav --words", USAGE)

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle = model.bundle
        streams = write_graphs(bundle, folder)
        write_tokens(bundle, folder / TOKENS)
        if isinstance(bundle.model, EncoderTransducer):
            bundle.processor.save(folder)
            write_config(bundle, folder)
        else:
            builder.pretrained.save_configs(bundle, folder)
        if reads_onnx_asr(bundle):  # which takes the name of the kind from its caller
            write_tokens(bundle, folder / "vocab.txt", "<blk>")
            sizes = {"features_size": bundle.processor.shape.mels, "subsampling_factor": subsampling(bundle)}
            sizes["max_tokens_per_step"] = bundle.model.max_symbols
            write_json(folder / "config.json", read_json(folder / "config.json") | sizes)
        write_program(folder, "transducer")
        if streams:
            write_stream(folder)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return run_program(folder, examples)


def write_graphs(bundle: Bundle, folder: Path) -> bool:
    """Write all graphs and onnx_config.json into a folder that is there; returns whether the model streams."""
    model, processor = bundle.model, bundle.processor
    graphs: dict[str, dict[str, Any]] = {"features": write_frontend(processor, folder)}

    def write(name: str, graph: nn.Module, inputs: dict[str, Any], axes: dict[str, Any], outputs: list[str]) -> None:
        file, part = PARTS[name]
        flat = [f"state_{i}" for i in range(len(inputs.get("state", ())))]
        names = [*(n for n in inputs if n != "state"), *flat]
        trace(graph, inputs, axes, outputs, folder / file, part, names)
        if name != "onnx_asr":
            graphs[name] = {"file": file, "outputs": outputs}

    encoder = EncoderGraph(model, reads_onnx_asr(bundle))
    inputs = encoder_inputs(processor)
    shape = processor.shape  # windows of 30 s have no free length
    signal = (0,) if shape.window is not None else (0, 1 if shape.kind == "wave" else 2)
    write("encoder", encoder, inputs, dict.fromkeys(inputs, (0,)) | {"audio_signal": signal}, encoder.names)
    states = [torch.randn(len(s), 2, s.shape[2]) for s in first_states(model)]
    token, following = torch.tensor([[1], [2]]), [f"next_state_{i}" for i in range(len(states))]
    axes = {"tokens": (0,), "state": [(1,)] * len(states)}
    write("decoder", PredictorGraph(model), {"tokens": token, "state": states}, axes, ["outputs", *following])
    with torch.no_grad():
        width = model.predict(token, tuple(states))[0].shape[2]
    pair = {"encoder": torch.randn(3, width), "predictor": torch.randn(3, width)}
    write("joint", JointGraph(model), pair, dict.fromkeys(pair, (0,)), ["logits"])
    chunk = None
    if processor.streaming is not None:
        stream = ChunkGraph(model, chunk_encoder(bundle))
        example = stream.example(2)
        write("encoder_chunk", stream, example, dict.fromkeys(example, (0,)), stream.names)
        chunk = stream.facts()
    if reads_onnx_asr(bundle):
        frame = {"encoder_outputs": torch.randn(1, width, 1), "targets": token[:1].int()}
        frame["target_length"] = torch.ones(1, dtype=torch.int32)
        frame |= {f"input_states_{i + 1}": states[min(i, len(states) - 1)][:, :1] for i in range(2)}
        names = ["outputs", "output_states_1", "output_states_2"]
        write("onnx_asr", JointForOnnxAsr(model), frame, dict.fromkeys(frame, ()), names)
    facts = {
        **program_facts(processor),
        "frame_seconds": model.frame_seconds,
        "blank": model.blank,
        "durations": None if model.durations is None else list(model.durations),
        "max_symbols": model.max_symbols,
        "calibration": model.calibration.tolist(),
        "delays": None if model.delays is None else model.delays.tolist(),
        "states": [[len(s), s.shape[2]] for s in states],
        "tokens": TOKENS,
        "prompts": vars(processor).get("prompts") or None,
        "chunk": chunk,
    }
    write_facts(folder, "transducer", graphs, facts)
    return chunk is not None


def write_stream(folder: Path) -> None:
    """Write the program for streams, which uses the one for recordings."""
    text = (TEMPLATES / "transducer_stream.py").read_text(encoding="utf-8")
    for part in ("audio", "transducer"):
        text = text.replace(f"{INTERNAL}.{part}", "transcribe")
    (folder / "stream.py").write_text(text, encoding="utf-8")


def encoder_inputs(processor: Any) -> dict[str, Tensor]:
    """Inputs of the encoder for two clips of noise that are not of one length."""
    noise = (0.1 * np.random.default_rng(0).standard_normal(21_000)).astype(np.float32)
    batch = processor.collate([Example(str(n), noise[:n]) for n in (21_000, 17_000)], labels=False).inputs
    names = {"features": "audio_signal", "lengths": "length"}
    return {names.get(name, name): tensor for name, tensor in batch.items()}


def chunk_encoder(bundle: Bundle) -> ChunkEncoder:
    """The encoder of a stream with the usual chunk."""
    streaming = bundle.processor.streaming
    seconds = streaming.nearest(streaming.usual), streaming.reach[1]
    return bundle.model.chunk_encoder(bundle.processor, seconds)  # type: ignore[no-any-return]


def reads_onnx_asr(bundle: Bundle) -> bool:
    """Whether onnx-asr computes the features of a model: NeMo's with 80 or 128 bands, and its jumps are counted."""
    named = feature_kind(bundle) == "parakeet" and bundle.processor.shape.mels in (80, 128)
    return named and durations_are_counts(bundle.model)


def feature_kind(bundle: Bundle) -> str:
    """Kind of a model's features: `wave`, a kind of `Geometry.log_mel`, or `nemotron`: NeMo's without normalisation."""
    shape, model = bundle.processor.shape, bundle.model
    if isinstance(model, EncoderTransducer) or model.shape is not None:
        return "wave" if shape.kind == "wave" else str(shape.log_mel)
    return "nemotron" if TRANSDUCERS[model.recogniser.config.model_type].causal else "parakeet"


def subsampling(bundle: Bundle) -> int:
    """Features (10 ms) in a frame of the encoder."""
    return round(100 / bundle.processor.shape.frame_rate)


def durations_are_counts(model: TransducerModel) -> bool:
    """Whether the durations are 0, 1, 2 ..., as NeMo's readers take them."""
    return model.durations is None or list(model.durations) == list(range(len(model.durations)))


def write_tokens(bundle: Bundle, path: Path, blank: str | None = None, order: Sequence[int] = ()) -> None:
    """Write what each token adds to a text and its number, one a line; spaces are written as `WORD`. `blank`: name of
    the blank. `order`: the tokens as they are counted (empty: as the model does)."""
    processor, size = bundle.processor, bundle.model.joint.head.out_features - len(bundle.model.durations or ())
    known = len(processor.tokenizer)
    anchor = next(i for i in range(known) if processor.decode([i]).strip())
    before, lines = processor.decode([anchor]), []
    for number, token in enumerate(order or range(size)):
        text = processor.decode([anchor, token]) if token < known else ""
        piece = text[len(before) :] if text.startswith(before) else ""
        piece = piece if "\ufffd" not in piece else ""
        piece = piece or (processor.tokenizer.convert_ids_to_tokens(token) if token < known else None) or f"<{token}>"
        piece = blank if blank and token == bundle.model.blank else piece.replace(" ", WORD)
        lines.append(f"{piece} {number}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
