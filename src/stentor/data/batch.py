"""Batches, examples and predictions: the plain data that travels between loaders, models, tasks and the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass
class Example:
    """One prepared item; `Processor.collate` makes a batch from several."""

    id: str
    audio: np.ndarray | None = None  # float32 [samples] at the processor's sample rate, augmented
    text: str | None = None
    language: str | None = None
    context: str | None = None
    rng: np.random.Generator | None = None
    """Per-item randomness, f(seed, epoch, id); None in evaluation and inference."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Batch:
    """Inputs of one forward pass in training, made on the CPU by a loader worker."""

    inputs: dict[str, torch.Tensor]
    """Keyword arguments of the model's forward."""
    counts: dict[str, int]
    """Targets per loss term, by which the engine divides the summed losses, across micro-batches and ranks."""
    ids: list[str]
    seconds: float = 0.0
    """Seconds of audio."""
    tokens: int = 0
    """Sequence positions that hold something."""
    num_positions: int = 0
    """Sequence positions in all, padding included."""
    dropped: list[tuple[str, str, str]] = field(default_factory=list)
    """Items that could not be used: (id, reason, message)."""

    def to(self, device: torch.device) -> Batch:
        self.inputs = {k: v.to(device, non_blocking=True) for k, v in self.inputs.items()}
        return self

    def pin_memory(self) -> Batch:
        self.inputs = {k: v.pin_memory() for k, v in self.inputs.items()}
        return self


@dataclass
class Prediction:
    """A model's output for one item, as plain data that travels between ranks."""

    id: str
    reference: dict[str, Any]
    output: dict[str, Any]
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)
    """The item's manifest record, for reports with audio players."""
