"""Encoder streams: an encoder that was trained with chunk masks, over recordings that come in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.models.encoders.streaming.feature_stream import FeatureStream

States = list[list[Tensor]]
"""What an encoder keeps of the chunks before; the first dimension of each tensor is that of the recordings."""


class ChunkEncoder(ABC):
    """An encoder, and how it hears: chunk by chunk, each with a reach before it."""

    ahead = 0
    """Frames beyond each chunk that it also sees."""
    lead = 0
    """Features of nothing before the first one, which with them fill the first chunk."""
    shortest = 0
    """Samples that recordings get silence up to."""

    def __init__(self, features: Any, seconds: tuple[float, float], factor: int = 1):
        """`features`: `Features`, or others for `open_features`; `seconds`: of a chunk and the reach; `factor`: frames
        of the features in one of the encoder's."""
        self.features, self.factor = features, factor
        self.rate = features.sampling_rate
        self.frame_seconds = features.frame_seconds * factor
        self.chunk, self.reach = (max(1, round(s / self.frame_seconds)) for s in seconds)

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """One of its parameters: where it computes, and in what precision."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.weight.device

    def open_features(self) -> Any:
        """The features of another recording while it comes, with the methods of `FeatureStream`."""
        first, unit = (n * self.factor * self.features.subsample for n in (self.chunk + self.ahead, self.chunk))
        return FeatureStream(self.features, first, unit)

    @abstractmethod
    def start(self) -> States:
        """Before the first chunk of a recording."""

    @abstractmethod
    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        """Hidden states [B, chunk, width] of the next chunks from their features [B, (chunk + ahead) * factor, F], of
        which each recording has `counts` [B] and zeros behind them, and what is kept."""

    def frames(self, counts: Tensor) -> Tensor:
        """Frames of so many of the features."""
        return -(-counts // self.factor)


class AudioStream:
    """One recording while it comes: what is left of it, and what the encoder keeps of it. Its size is bounded."""

    def __init__(self, encoder: ChunkEncoder):
        self.encoder = encoder
        self._stream = encoder.open_features()
        self._frames = np.zeros((encoder.lead, encoder.features.size), np.float32)
        self._samples = 0
        self.states = encoder.start()
        self.ended = False

    def add(self, samples: np.ndarray) -> None:
        """More audio: float32 [samples] at the encoder's rate."""
        self._samples += len(samples)
        self._frames = np.concatenate([self._frames, self._stream.add(samples)])

    def finish(self) -> None:
        """There is no more."""
        self.add(np.zeros(max(0, self.encoder.shortest - self._samples), np.float32))
        self._frames = np.concatenate([self._frames, self._stream.finish()])
        self.ended = True

    @property
    def seconds(self) -> float:
        """How much has come."""
        return self._samples / self.encoder.rate

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be encoded."""
        return len(self._frames) >= self._needed or (self.ended and len(self._frames) > 0)

    @property
    def _needed(self) -> int:
        return (self.encoder.chunk + self.encoder.ahead) * self.encoder.factor

    def take(self) -> Tensor:
        """The features [(chunk + ahead) * factor, F] of the next chunk, fewer at the end."""
        taken = torch.from_numpy(self._frames[: self._needed])
        self._frames = self._frames[self.encoder.chunk * self.encoder.factor :]
        return taken


@torch.no_grad()
def encode_chunks(recordings: Sequence[AudioStream], encoder: ChunkEncoder | None = None) -> list[Tensor]:
    """Hidden states [frames, width] of the next chunk of each recording; all have one encoder, or copies of it."""
    encoder = encoder or recordings[0].encoder
    taken = [recording.take() for recording in recordings]
    counts = torch.tensor([len(features) for features in taken])
    room = torch.zeros((encoder.chunk + encoder.ahead) * encoder.factor, taken[0].shape[1])
    features = pad_sequence([*taken, room], batch_first=True)[:-1].to(encoder.device, encoder.weight.dtype)
    groups = zip(*(recording.states for recording in recordings))
    joined = [[torch.cat(tensors) for tensors in zip(*group)] for group in groups]
    hidden, states = encoder.encode(features, counts.to(encoder.device), joined)
    for i, recording in enumerate(recordings):
        # copies, as views would keep those of all the others
        recording.states = [[tensor[i : i + 1].clone() for tensor in group] for group in states]
    return [row[:n] for row, n in zip(hidden, encoder.frames(counts).clamp(max=encoder.chunk).tolist())]
