"""Chunk masks: an encoder that hears a recording chunk by chunk (Chen et al. 2021; Zhang et al. 2020, U2).

In training each clip has a chunk length and a reach back of its own, or none; so one model serves every chunk length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from stentor.section import Section

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.data.batch import Example


class Streaming(Section):
    """How an encoder learns to hear chunk by chunk. Each frame sees its own chunk and a reach before it."""

    chunk: tuple[float, float] = (0.08, 2.56)
    """Shortest and longest chunk in seconds, between which each clip's is drawn (the logarithm evenly)."""
    reach: tuple[float, float] = (2.56, 10.24)
    """Least and most seconds before its chunk that a frame sees, drawn in the same way."""
    offline_ratio: float = Field(0.3, ge=0, le=1)
    """Share of the clips that are heard as a whole, for transcripts of files."""
    lookahead: float = Field(0.0, ge=0)
    """Seconds after each frame that it also sees, on top of its chunk: later, and better where chunks are short."""

    @model_validator(mode="after")
    def _ordered(self) -> Streaming:
        for key in ("chunk", "reach"):
            least, most = getattr(self, key)
            if not 0 < least <= most:
                raise ValueError(f"{key}: give the least and the most seconds, such as [0.08, 2.56]")
        return self

    def draw(self, rng: np.random.Generator, frame_seconds: float) -> tuple[int, int]:
        """Frames of the chunks and of the reach of a clip in training; (0, 0): it is heard as a whole."""
        offline = rng.random() < self.offline_ratio
        drawn = [math.exp(rng.uniform(math.log(a), math.log(b))) for a, b in (self.chunk, self.reach)]
        chunk, reach = (max(1, round(seconds / frame_seconds)) for seconds in drawn)
        return (0, 0) if offline else (chunk, reach)


def chunk_mask(chunks: Tensor, frames: int) -> Tensor:
    """What each frame sees, bool [B, T, T], from the frames of chunks and of reaches, int64 [B, 2] (0, 0: all)."""
    import torch

    position = torch.arange(frames, device=chunks.device)
    chunk, reach = chunks[:, 0, None, None], chunks[:, 1, None, None]
    start = position[:, None] // chunk.clamp(min=1) * chunk
    visible = (position >= start - reach) & (position < start + chunk)
    return visible | (chunk == 0)


def drawn_chunks(
    streaming: Streaming | None, examples: Sequence[Example], frame_seconds: float, training: bool
) -> dict[str, Tensor]:
    """`chunks` [B, 2] (see `chunk_mask`) of the examples of a batch in training; nothing where nothing is drawn."""
    import torch

    rngs = [example.rng for example in examples if example.rng is not None]
    if streaming is None or not training or len(rngs) < len(examples):
        return {}
    return {"chunks": torch.tensor([streaming.draw(rng, frame_seconds) for rng in rngs])}
