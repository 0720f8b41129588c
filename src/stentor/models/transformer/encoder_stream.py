"""Encoder streams: an encoder that was trained with chunk masks, over recordings that come in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.models.transformer.feature_stream import FeatureStream
from stentor.models.transformer.frontend import Features
from stentor.models.transformer.modeling import ChunkState, TransformerModel


class AudioStream:
    """One recording while it comes: what is left of it, and what the encoder keeps of it. Its size is bounded."""

    def __init__(self, model: TransformerModel, features: Features, chunk: int, reach: int):
        """`chunk` and `reach` in frames; see `Streaming`."""
        self.chunk = chunk
        self.ahead = 0 if model.lookahead is None else model.lookahead.frames
        self._stream = FeatureStream(features, chunk * features.subsample)
        self._frames = np.zeros((0, features.size), np.float32)
        self.states = [layer.start_chunks(1, reach) for layer in model.encoder.layers]
        self.ended = False

    def add(self, samples: np.ndarray) -> None:
        """More audio: float32 [samples] at the model's rate."""
        self._frames = np.concatenate([self._frames, self._stream.add(samples)])

    def finish(self) -> None:
        """There is no more."""
        self._frames = np.concatenate([self._frames, self._stream.finish()])
        self.ended = True

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be encoded."""
        return len(self._frames) >= self.chunk + self.ahead or (self.ended and len(self._frames) > 0)

    def take(self) -> Tensor:
        """The features [chunk + ahead, F] of the next chunk, fewer at the end."""
        taken = torch.from_numpy(self._frames[: self.chunk + self.ahead])
        self._frames = self._frames[self.chunk :]
        return taken


@torch.no_grad()
def encode_chunks(model: TransformerModel, recordings: Sequence[AudioStream]) -> list[Tensor]:
    """Hidden states [frames, width] of the next chunk of each recording; all have chunks of one length."""
    chunk, ahead = recordings[0].chunk, recordings[0].ahead
    device = model.input.weight.device
    taken = [recording.take() for recording in recordings]
    counts = torch.tensor([len(features) for features in taken], device=device)
    features = pad_sequence([*taken, torch.zeros(chunk + ahead, taken[0].shape[1])], batch_first=True)[:-1]
    x = model.input(features.to(device))
    if model.lookahead is not None:
        x = model.lookahead(x, torch.arange(chunk + ahead, device=device) < counts[:, None])[:, :chunk]
    mask = torch.arange(chunk, device=device) < counts[:, None]
    layers = list(zip(*(recording.states for recording in recordings)))
    states = [ChunkState.of([torch.cat(t) for t in zip(*(s.tensors for s in layer))]) for layer in layers]
    hidden = model.encoder.chunk(x, mask, states)
    for i, recording in enumerate(recordings):
        recording.states = [ChunkState.of([t[i : i + 1] for t in state.tensors]) for state in states]
    return [row[:n] for row, n in zip(hidden, counts.clamp(max=chunk).tolist())]
