"""A transformer's encoder over recordings that come in pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stentor.models.encoders.features import Features
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.encoders.streaming.layers import ChunkState


class TransformerChunks(ChunkEncoder):
    """The encoder of a `TransformerModel`."""

    def __init__(self, model: Any, features: Features, seconds: tuple[float, float]):
        super().__init__(features, seconds)
        self.model = model
        self.ahead = 0 if model.lookahead is None else model.lookahead.frames

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.model.input.weight
        return weight

    def start(self) -> States:
        return [layer.start_chunks(self.reach).tensors for layer in self.model.encoder.layers]

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        model = self.model
        x = model.input(features)
        mask = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        x = x if model.lookahead is None else model.lookahead(x, mask)
        layers = [ChunkState.of(tensors) for tensors in states]
        hidden = model.encoder.chunk(x[:, : self.chunk], mask[:, : self.chunk], layers)
        return hidden, [state.tensors for state in layers]
