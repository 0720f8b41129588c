"""Training sample of OmniVoice: ids of style, text and codes, with the masked cells as labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stentor.data.conditions import Conditions

IGNORED = -100


@dataclass
class Sample:
    """Input ids and labels of one item."""

    ids: np.ndarray
    """int64 [C, L]: text tokens, repeated in every row, then codes, MASK where they are hidden."""
    labels: np.ndarray
    """int64 [C, L]: the code of each hidden cell, -100 elsewhere."""
    text: int
    """Positions of style and text; the frames follow."""

    @property
    def length(self) -> int:
        return self.ids.shape[1]


def build(conditions: Conditions, codes: np.ndarray, text: list[int], mask_id: int, rng: np.random.Generator) -> Sample:
    """The sample of codes [C, T] behind `text`, the ids of style and text: none where it is unconditional.

    Each cell (codebook, frame) behind the prompt is hidden by itself with the probability `conditions.mask_ratio`
    (`rng`), and only hidden cells are learned.
    """
    books, frames = codes.shape
    prompt = conditions.prompt_frames(frames)
    target = codes[:, prompt:].astype(np.int64)
    hidden = rng.random(target.shape) < conditions.mask_ratio
    before = len(text) + prompt
    ids = np.empty((books, len(text) + frames), np.int64)
    ids[:, : len(text)] = text
    ids[:, len(text) : before] = codes[:, :prompt]
    ids[:, before:] = np.where(hidden, mask_id, target)
    labels = np.full_like(ids, IGNORED)
    labels[:, before:] = np.where(hidden, target, IGNORED)
    return Sample(ids, labels, len(text))
