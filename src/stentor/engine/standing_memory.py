"""Standing memory: the memory of training without batches, from parameter counts. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.engine.section import Optim, Train

STATE = {"adamw": 8, "adam": 8, "adamax": 8, "adamw8bit": 2, "sgd": 4, "rmsprop": 8, "adagrad": 4, "muon": 4}
"""Bytes of optimizer state per trained parameter: two moments in float32, or one. Muon has one for the matrices; those
of AdamW for the rest are negligible."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one process needs, by purpose."""

    weights: float
    gradients: float
    optimizer: float  # state of the optimizer, and the moving average of `train.ema`
    activations: float | None = None
    """Memory that the largest batch keeps for the backward pass, plus working memory at the peak."""
    together: bool = False
    """Whether gradients are kept from one batch to the next, because of accumulation or other processes. Otherwise they
    are created while activations are freed, and the larger of the two counts."""

    @property
    def batch(self) -> float:
        """Peak bytes of a forward and backward pass, as in the dry run, without the optimizer."""
        held = self.activations or 0.0
        return self.weights + (self.gradients + held if self.together else max(self.gradients, held))

    @property
    def total(self) -> float:
        """Peak bytes of training."""
        return self.batch + self.optimizer


def standing(weights: float, trained: float, optim: Optim, train: Train, world: int = 1) -> MemoryEstimate:
    """Return the memory without batches, given the bytes of all weights and the number of `trained` float32 parameters.

    Each of `world` processes has all of it, or its share with sharding (FSDP2).
    """
    state = STATE[optim.type] + 4 * optim.amsgrad + (4 if train.ema else 0)
    share = world if train.shard else 1
    together = train.accumulate > 1 or world > 1
    return MemoryEstimate(weights / share, 4 * trained / share, state * trained / share, None, together)
