"""Encoder-decoder recognisers (Whisper, Moonshine, Cohere ASR) whose graphs onnxruntime runs: prompts, search and
detection of the language are the code of the torch models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.base import Bundle
from stentor.models.runtimes.graph import Graph, OnCPU, graphs_of, place
from stentor.models.seq2seq import whisper
from stentor.models.seq2seq.modeling import Seq2SeqModel

PAST, PRESENT = "past_key_values.", "present."


class Cache:
    """Keys and values of the decoder's layers, by the names of the graph's inputs."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors

    def batch_select_indices(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}


class Graphs(OnCPU):
    """Encoder and decoder of a `Seq2SeqModel` as graphs; the decoder's output is logits already."""

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        nn.Module.__init__(self)
        described = vars(bundle.model)
        kept = ("shape", "most", "start_id", "suppressed", "suppressed_first", "config", "languages", "no_speech_id")
        vars(self).update({name: described[name] for name in kept if name in described})
        self.place, self.proj_out = place(), nn.Identity()
        self.encoder: Graph
        self.decoder: Graph
        self.encoder, self.decoder = graphs_of(folder, facts, "encoder", "decoder")

    def train(self, mode: bool = True) -> Any:
        """Graphs have no other mode than inference."""
        return nn.Module.train(self, mode)

    def encode(self, features: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """See `Seq2SeqModel.encode`."""
        more = {} if lengths is None else {"lengths": lengths}
        hidden, *valid = self.encoder(input_features=features.float(), **more)
        return hidden, valid[0] > 0 if valid else None

    def decode(
        self, states: tuple[Tensor, Tensor | None], input_ids: Tensor, cache: Cache | None = None, **_: Any
    ) -> SimpleNamespace:
        """Logits [B, L, V] in the place of hidden states, and the cache."""
        hidden, valid = states
        inputs = {"input_ids": input_ids, "encoder_hidden_states": hidden, "use_cache_branch": torch.tensor([True])}
        if valid is not None:
            inputs["encoder_attention_mask"] = valid.long()
        outputs = self.decoder.named(**inputs, **(cache or self._empty(len(hidden))).tensors)
        present = {PAST + n.removeprefix(PRESENT): t for n, t in outputs.items() if n.startswith(PRESENT)}
        return SimpleNamespace(last_hidden_state=outputs["logits"], past_key_values=Cache(present))

    def _empty(self, rows: int) -> Cache:
        """Keys and values of no positions [rows, heads, 0, width]."""
        shapes = {name: node.shape for name, node in self.decoder.inputs.items() if name.startswith(PAST)}
        return Cache({name: torch.empty(rows, shape[1], 0, shape[3]) for name, shape in shapes.items()})


class OnnxSeq2Seq(Graphs, Seq2SeqModel):
    """A model that detects no language."""


class OnnxWhisper(Graphs, whisper.Model):
    """Whisper."""


def onnx_seq2seq(folder: Path, facts: dict[str, Any], bundle: Bundle) -> Graphs:
    """The model of an export of the kind seq2seq."""
    return (OnnxWhisper if isinstance(bundle.model, whisper.Model) else OnnxSeq2Seq)(folder, facts, bundle)
