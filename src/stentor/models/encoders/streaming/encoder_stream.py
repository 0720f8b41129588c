"""Encoder streams: an encoder that was trained with chunk masks, over recordings that come in pieces. Their features
are to the last bit the same for any pieces."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.models.encoders.features import Features
from stentor.models.encoders.streaming.layers import lookahead_of

States = list[list[Tensor]]
"""State of an encoder after the chunks before; the first dimension of each tensor is that of the recordings."""


class FeatureStream:
    """Frames of a recording while it comes. They are those of `Features` but for the last bits: spectra are computed
    for `unit` frames at a time, behind the first ones, counted from the start of the recording."""

    def __init__(self, features: Features, first: int, unit: int):
        """`features`: without dither, and with a `normalize` that does not look ahead. `first`: so many are computed
        first, and those that are joined to the last one of them."""
        self.features, self.unit = features, unit
        self._next = first + max(0, features.stack + (features.subsample - features.stack) // 2 - features.subsample)
        """Frames that are computed next."""
        self._plain = type(features)(**{**features.model_dump(), "snip_edges": True})
        self._left = 0 if features.snip_edges else (features.length - features.shift) // 2
        self._signal = np.zeros(0, np.float32)
        """Samples from the start of the next frame on; mirrored before the first sample."""
        self._begun = False
        self._last = np.zeros(0, np.float32)
        """The last samples, of which the end is mirrored."""
        self._samples = self._frames = 0
        self._rows = np.zeros((0, features.bins), np.float32)
        """Frames before they are joined, from the first that is needed on."""
        self._first = self._joined = 0

    def add(self, samples: np.ndarray) -> np.ndarray:
        """The next frames float32 [T, size] that can be computed after these float32 [samples]."""
        self._samples += len(samples)
        self._last = np.concatenate([self._last, samples])[-self.features.length :]
        self._signal = np.concatenate([self._signal, samples])
        if not self._begun and len(self._signal) > self.features.length:
            self._begin()
        before = self._frames
        while self._begun and len(self._signal) >= (self._next - 1) * self.features.shift + self.features.length:
            self._extract(self._next)
        return self._join(self._frames) if self._frames > before else np.zeros((0, self.features.size), np.float32)

    def finish(self) -> np.ndarray:
        """The last frames."""
        f = self.features
        if short := max(0, f.length - self._samples):
            self.add(np.zeros(short, np.float32))
        if not self._begun:
            self._begin()
        total = f.count(self._samples)
        right = (total - 1) * f.shift + f.length - self._left - self._samples
        if right > 0:
            self._signal = np.concatenate([self._signal, self._last[len(self._last) - right :][::-1]])
        while self._frames < total:
            self._extract(min(self._next, total - self._frames))
        return self._join(total + f.stack + f.subsample)

    def _begin(self) -> None:
        self._begun = True
        self._signal = np.concatenate([self._signal[: self._left][::-1], self._signal])

    def _extract(self, count: int) -> None:
        f = self.features
        rows = self._plain.extract(self._signal[: (count - 1) * f.shift + f.length])
        self._rows = np.concatenate([self._rows, f.normalized(rows)])
        self._signal = self._signal[count * f.shift :]
        self._frames, self._next = self._frames + count, self.unit

    def _join(self, until: int) -> np.ndarray:
        """Output frames whose parts all come before frame `until`; beyond the end the last one stands in."""
        f = self.features
        offset = (f.subsample - f.stack) // 2
        count = max(self._joined, -(-self._frames // f.subsample) if until > self._frames else 0)
        if until <= self._frames:
            count = max(self._joined, (until - f.stack - offset) // f.subsample + 1)
        numbers = np.arange(self._joined, count) * f.subsample + offset
        rows = (numbers[:, None] + np.arange(f.stack)).clip(0, max(self._frames - 1, 0)) - self._first
        joined = self._rows[rows].reshape(len(numbers), f.size)
        self._joined = count
        needed = max(self._first, min(count * f.subsample + offset, self._frames - 1))
        self._rows, self._first = self._rows[needed - self._first :], needed
        return joined


class ChunkEncoder(ABC):
    """An encoder, and how it hears: chunk by chunk, each with a reach before it."""

    lead = 0
    """Features of nothing before the first one, which with them fill the first chunk."""
    shortest = 0
    """Samples that recordings get silence up to."""

    def __init__(self, encoder: Any, features: Any, seconds: tuple[float, float], factor: int = 1):
        """`encoder`: the module, with a `Lookahead` where it has one; `features`: `Features`, or others for
        `open_features`; `seconds`: of a chunk and the reach; `factor`: frames of the features in one of its own."""
        self.encoder, self.features, self.factor = encoder, features, factor
        lookahead = lookahead_of(encoder)
        self.ahead = 0 if lookahead is None else lookahead.frames
        """Frames beyond each chunk that it also sees."""
        self.rate = features.sampling_rate
        self.frame_seconds = features.frame_seconds * factor
        self.chunk, self.reach = (max(1, round(s / self.frame_seconds)) for s in seconds)

    @property
    def weight(self) -> Tensor:
        """One of its parameters: where it computes, and in what precision."""
        return next(self.encoder.parameters())  # type: ignore[no-any-return]

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
        """Amount that has arrived."""
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
