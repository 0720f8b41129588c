"""CTC models and transducers whose graphs onnxruntime or CTranslate2 runs: decoding, words, times and hotwords are the
code of the torch models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.models.base import Bundle
from stentor.models.contracts import Capabilities
from stentor.models.ctc.modeling import CTCModel
from stentor.models.decoding.transducer import State
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.runtimes.ctranslate2 import opened, view
from stentor.models.runtimes.graph import Graph, OnCPU, graphs_of, place
from stentor.models.transducer.modeling import TransducerModel


class GraphCTC(OnCPU, CTCModel):
    """A CTC model of the family `ctc`, or a `transformer` with such a head alone, whose log-probabilities come from
    another runtime."""

    def __init__(self, bundle: Bundle):
        torch.nn.Module.__init__(self)
        self.place, self._capabilities = place(), bundle.capabilities
        self.blank = bundle.model.blank if isinstance(bundle.model, CTCModel) else 0

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self._capabilities


class OnnxCTC(GraphCTC):
    """The graph `encoder` gives `logprobs` [B, T, classes] and `lengths` [B]."""

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        super().__init__(bundle)
        (self.graph,) = graphs_of(folder, facts, "encoder")

    def log_probs(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output = self.graph.named(audio_signal=features.float(), length=lengths)
        return output["logprobs"], output["lengths"]


class CT2Wave(GraphCTC):
    """wav2vec 2.0 in CTranslate2, which knows no padding: one clip at a time."""

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        super().__init__(bundle)
        self.wave = opened(folder, "Wav2Vec2")

    def log_probs(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = [view(clip[None, None, :n].float().numpy()) for clip, n in zip(features, lengths.tolist())]
        logits = [torch.from_numpy(np.array(self.wave.encode(row, to_cpu=True)))[0] for row in rows]
        return pad_sequence(logits, batch_first=True).log_softmax(-1), torch.tensor(list(map(len, logits)))


class OnnxChunks(ChunkEncoder):
    """The graph `encoder_chunk`, whose states are one tensor. Its frames are those of `joined`."""

    def __init__(self, described: ChunkEncoder, seconds: tuple[float, float], graph: Graph, size: int):
        """`described`: the encoder of the torch model, without weights; `size`: of the states."""
        super().__init__(described.encoder, described.features, seconds, described.factor)
        self.lead, self.shortest, self.open_features = described.lead, described.shortest, described.open_features  # type: ignore[method-assign]
        self.graph, self.size = graph, size

    @property
    def weight(self) -> Tensor:
        return torch.empty(0)

    def start(self) -> States:
        return [[torch.zeros(1, self.size)]]

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        outputs = self.graph.named(audio_signal=features.transpose(1, 2), length=counts, cache=states[0][0])
        return joined(outputs), [[outputs["next_cache"]]]


def joined(outputs: dict[str, Tensor]) -> Tensor:
    """Frames as the joint takes them, with the distances of the times head behind them where there is one."""
    return torch.cat([outputs[name] for name in ("states", "distances") if name in outputs], -1)


class OnnxTransducer(OnCPU, TransducerModel):
    """The graph `encoder` gives `states` [B, T, J], `lengths` [B] and, where there are heads, `ctc` [B, T, classes]
    (log-probabilities) and `distances` [B, T, 2]; `decoder` reads a token, `joint` gives logits; `encoder_chunk` is the
    encoder of a stream."""

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        super().__init__()
        described, self.place = bundle.model, place()
        self.blank, self.durations, self.max_symbols = described.blank, described.durations, described.max_symbols
        self.frame_seconds, self.states = described.frame_seconds, facts["states"]
        self.graph, self.decoder, self._joint = graphs_of(folder, facts, "encoder", "decoder", "joint")
        if chunk := facts.get("chunk"):
            (self.chunks,) = graphs_of(folder, facts, "encoder_chunk")
            self.chunk_size, self._torch_chunks = chunk["cache"], described.chunk_encoder
        delays = facts.get("delays")
        self.register_buffer("calibration", torch.tensor(facts["calibration"]))
        self.register_buffer("delays", None if delays is None else torch.tensor(delays))
        self.times_head = torch.nn.Identity() if "distances" in self.graph.outputs else None

    def _outputs(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> dict[str, Tensor]:
        names = ("states", "lengths", "ctc", "distances")
        if cached := self.cached(features, lengths):
            return dict(zip(names, cached))
        outputs = self.graph.named(audio_signal=features.float(), length=lengths, **conditions)
        kept = [outputs.get(name, outputs["lengths"]) for name in names]
        self.store(features, lengths, *kept)
        return dict(zip(names, kept))

    def encode(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._outputs(features, lengths, **conditions)
        return outputs["states"], outputs["lengths"]

    def frames(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None, **_: Tensor) -> Any:
        """Distances by the times head of the frames [B, T, 2], and lengths [B]."""
        outputs = self._outputs(features, lengths)
        return outputs["distances"], outputs["lengths"]

    def chunk_encoder(self, processor: Any, seconds: tuple[float, float]) -> ChunkEncoder:
        return OnnxChunks(self._torch_chunks(processor, seconds), seconds, self.chunks, self.chunk_size)

    def project_encoder(self, hidden: Tensor) -> Tensor:
        return hidden if self.times_head is None else hidden[..., :-2]

    def word_distances(self, hidden: Tensor) -> Tensor | None:
        return None if self.times_head is None else hidden[..., -2:]

    def predict(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        state = state or tuple(torch.zeros(layers, len(tokens), width) for layers, width in self.states)
        outputs = []
        for column in tokens.split(1, 1):
            names = {f"state_{i}": part for i, part in enumerate(state)}
            output, *after = self.decoder(tokens=column, **names)
            state = tuple(after)
            outputs.append(output)
        return torch.cat(outputs, 1), state

    def joint(self, encoder: Tensor, predictor: Tensor) -> Tensor:  # type: ignore[override]
        """Logits [..., V] of frames and of outputs after tokens [..., J], which are broadcast."""
        encoder, predictor = torch.broadcast_tensors(encoder, predictor)
        size = encoder.shape[-1]
        (logits,) = self._joint(encoder=encoder.reshape(-1, size), predictor=predictor.reshape(-1, size))
        return logits.view(*encoder.shape[:-1], logits.shape[-1])

    @torch.no_grad()
    def ctc_classes(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> list[list[int]]:
        """The most likely CTC class of each frame, per clip."""
        outputs = self._outputs(features, lengths, **conditions)
        return [row[:n].tolist() for row, n in zip(outputs["ctc"].argmax(-1), outputs["lengths"].tolist())]
