"""Chunk masks: an encoder that reads a recording chunk by chunk (Chen et al. 2021; Zhang et al. 2020, U2).

In training each clip has a chunk length and a reach back of its own, or none; so one model serves every chunk length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from stentor.section import Section

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.data.batch import Example


TINY = 1e-3


class Streaming(Section):
    """Train an encoder to read audio chunk by chunk. A frame attends to its chunk and to the `reach` before it."""

    chunk: tuple[float, float] = (0.08, 2.56)
    """Shortest and longest chunk in seconds. Each clip's is drawn between them (uniformly in the logarithm)."""
    reach: tuple[float, float] = (2.56, 10.24)
    """Least and most seconds before its chunk that a frame attends to, drawn in the same way."""
    offline_ratio: float = Field(0.3, ge=0, le=1)
    """Share of the training clips that are read as a whole, for transcription of files."""
    lookahead: float = Field(0.0, ge=0)
    """Seconds after its chunk that each frame also attends to. Higher latency, better with short chunks."""

    @model_validator(mode="after")
    def _ordered(self) -> Streaming:
        for key, (least, most) in {"chunk": self.chunk, "reach": self.reach}.items():
            if not 0 < least <= most:
                raise ValueError(f"{key}: give a range in seconds, such as [0.08, 2.56]")
        return self

    usual: ClassVar[float] = 0.32
    """Seconds of a chunk where nothing else is asked for."""

    @property
    def known(self) -> str:
        """The chunks that it is trained with."""
        return "{:g} to {:g}".format(*self.chunk)

    @property
    def soonest(self) -> tuple[float, float]:
        """Seconds of the shortest chunk and of the longest reach."""
        return self.chunk[0], self.reach[1]

    def nearest(self, seconds: float) -> float:
        """The chunk length that is closest to so many seconds."""
        least, most = self.chunk
        return min(max(seconds, least), most)

    def draw(self, rng: np.random.Generator, frame_seconds: float) -> tuple[int, int, int]:
        """Frames of the chunks and of the reach of a clip in training, and the number of its first frame, for encoders
        with absolute positions, which streams of any length go through; (0, 0, 0): it is read as a whole."""
        offline = rng.random() < self.offline_ratio
        drawn = [math.exp(rng.uniform(math.log(a), math.log(b))) for a, b in (self.chunk, self.reach)]
        chunk, reach = (max(1, round(seconds / frame_seconds)) for seconds in drawn)
        first = int(rng.integers(1 << 20)) if rng.random() < 0.5 else 0  # recordings begin at 0
        return (0, 0, 0) if offline else (chunk, reach, first)


@dataclass(frozen=True)
class KnownChunks:
    """Chunks of an encoder that was pretrained with chunks of a few lengths, and is trained with the usual one."""

    lengths: tuple[float, ...]
    """Seconds, the shortest first."""
    usual: float
    """Chunk of transcripts in seconds."""
    seen: float
    """Seconds before its chunk that a frame sees."""

    @property
    def chunk(self) -> tuple[float, float]:
        """See `Streaming.chunk`."""
        return self.lengths[0], self.lengths[-1]

    @property
    def reach(self) -> tuple[float, float]:
        """See `Streaming.reach`."""
        return self.seen, self.seen

    @property
    def known(self) -> str:
        """See `Streaming.known`."""
        return (
            ", ".join(f"{seconds:g}" for seconds in self.lengths[:-1])
            + " or " * (len(self.lengths) > 1)
            + f"{self.lengths[-1]:g}"
        )

    def nearest(self, seconds: float) -> float:
        """See `Streaming.nearest`."""
        return min(self.lengths, key=lambda length: abs(length - seconds))


def chunk_mask(chunks: Tensor, frames: int) -> Tensor:
    """Attention mask of each frame, bool [B, T, T], from the draws of each clip, int64 [B, 3] (`Streaming.draw`)."""
    import torch

    position = torch.arange(frames, device=chunks.device)
    chunk, reach = chunks[:, 0, None, None], chunks[:, 1, None, None]
    start = position[:, None] // chunk.clamp(min=1) * chunk
    visible = (position >= start - reach) & (position < start + chunk)
    return visible | (chunk == 0)


def drawn_chunks(
    streaming: Streaming | KnownChunks | None, examples: Sequence[Example], frame_seconds: float, training: bool
) -> dict[str, Tensor]:
    """`chunks` [B, 3] (see `chunk_mask`) of the examples of a batch in training; nothing where nothing is drawn."""
    import torch

    rngs = [example.rng for example in examples if example.rng is not None]
    if not isinstance(streaming, Streaming) or not training or len(rngs) < len(examples):
        return {}
    return {"chunks": torch.tensor([streaming.draw(rng, frame_seconds) for rng in rngs])}
