"""Standing memory: what training takes whatever the batch, from counts of parameters alone. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.engine.section import Optim, Train

STATE = {"adamw": 8, "adam": 8, "adamax": 8, "adamw8bit": 2, "sgd": 4, "rmsprop": 8, "adagrad": 4, "muon": 4}
"""Bytes of optimizer state per trained parameter: two moments in float32, or one. Muon has one for the matrices; those
of AdamW for the rest hardly count beside it."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one process needs, by what they are for."""

    weights: float
    gradients: float
    optimizer: float  # state of the optimizer, and the moving average of `train.ema`
    activations: float | None = None
    """Memory that the largest batch keeps for the backward pass, with the working memory of its largest moment."""
    together: bool = False
    """Whether gradients are there from one batch to the next, because of accumulation or of other processes. Otherwise
    they come as activations go, and the larger of the two counts."""

    @property
    def batch(self) -> float:
        """Bytes at the largest moment of a forward and backward pass, as in the dry run: without the optimizer."""
        held = self.activations or 0.0
        return self.weights + (self.gradients + held if self.together else max(self.gradients, held))

    @property
    def total(self) -> float:
        """Bytes at the largest moment of training."""
        return self.batch + self.optimizer


def standing(weights: float, trained: float, optim: Optim, train: Train, world: int = 1) -> MemoryEstimate:
    """Memory that does not depend on the batch: bytes of all weights, number of `trained` parameters, which are in
    float32.

    Each of `world` processes has all of it; of what is sharded (FSDP2) its share.
    """
    state = STATE[optim.type] + 4 * optim.amsgrad + (4 if train.ema else 0)
    share = world if train.shard else 1
    together = train.accumulate > 1 or world > 1
    return MemoryEstimate(weights / share, 4 * trained / share, state * trained / share, None, together)
