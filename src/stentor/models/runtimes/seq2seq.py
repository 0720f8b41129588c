"""Encoder-decoder recognisers (Whisper, Moonshine, Cohere ASR) whose graphs onnxruntime runs: prompts, search and
detection of the language are the code of the torch models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.base import Bundle
from stentor.models.runtimes.graph import OnCPU, graphs_of, place
from stentor.models.seq2seq import whisper
from stentor.models.seq2seq.modeling import Seq2SeqModel

PAST, PRESENT = "past_key_values.", "present."
KEPT = ("shape", "most", "start_id", "suppressed", "suppressed_first", "config", "languages", "no_speech_id")
"""Fields of the torch model."""


class Cache(dict[str, Tensor]):
    """Keys and values of the decoder's layers, by the names of the graph's inputs."""

    def batch_select_indices(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.update({name: tensor[rows] for name, tensor in self.items()})


class OnnxSeq2Seq(OnCPU, Seq2SeqModel):
    """Encoder and decoder of a `Seq2SeqModel` as graphs; the decoder's output is logits already."""

    def __init__(self, folder: Path, facts: dict[str, Any], bundle: Bundle):
        nn.Module.__init__(self)
        vars(self).update({name: value for name, value in vars(bundle.model).items() if name in KEPT})
        self.place, self.proj_out = place(), nn.Identity()
        self.graph, self.decoder = graphs_of(folder, facts, "encoder", "decoder")

    def train(self, mode: bool = True) -> Any:
        """Graphs have no other mode than inference."""
        return nn.Module.train(self, mode)

    def encode(self, features: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        more = {} if lengths is None else {"lengths": lengths}
        hidden, *valid = self.graph(input_features=features.float(), **more)
        return hidden, valid[0] > 0 if valid else None

    def decode(
        self, states: tuple[Tensor, Tensor | None], input_ids: Tensor, cache: Cache | None = None, **_: Any
    ) -> SimpleNamespace:
        """Logits [B, L, V] in the place of hidden states, as the model has them, and the cache."""
        hidden, valid = states
        inputs = {"input_ids": input_ids, "encoder_hidden_states": hidden, "use_cache_branch": torch.tensor([True])}
        if valid is not None:
            inputs["encoder_attention_mask"] = valid.long()
        outputs = self.decoder.named(**inputs, **(cache or self._empty(len(hidden))))
        logits = outputs["logits"]
        logits[:, -1] = outputs["scores"]
        present = {PAST + n.removeprefix(PRESENT): t for n, t in outputs.items() if n.startswith(PRESENT)}
        return SimpleNamespace(last_hidden_state=logits, past_key_values=Cache(present))

    def _empty(self, rows: int) -> Cache:
        """Keys and values of no positions [rows, heads, 0, width]."""
        shapes = {name: node.shape for name, node in self.decoder.inputs.items() if name.startswith(PAST)}
        return Cache({name: torch.empty(rows, shape[1], 0, shape[3]) for name, shape in shapes.items()})


class OnnxWhisper(OnnxSeq2Seq, whisper.Model):
    """Whisper, which detects the language."""


def onnx_seq2seq(folder: Path, facts: dict[str, Any], bundle: Bundle) -> OnnxSeq2Seq:
    """The model of an export of the kind seq2seq."""
    return (OnnxWhisper if isinstance(bundle.model, whisper.Model) else OnnxSeq2Seq)(folder, facts, bundle)
