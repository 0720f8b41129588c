"""Batches, examples and predictions: the plain data that travels between loaders, models, tasks and the engine."""

from __future__ import annotations

from collections.abc import Callable
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
class HypothesisSearch:
    """Inputs to generate hypotheses of a training batch from, for sequence losses; a row for each item."""

    seeds: list[int]
    """Seeds of random hypotheses, f(seed, epoch, id)."""
    references: list[str]
    languages: list[str | None]
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """For models that write: inputs of generation that differ from those of training (prompts)."""
    shared: tuple[str, ...] = ()
    """Names of those that are the same."""
    limits: list[int] = field(default_factory=list)
    """Most tokens."""
    examples: list[Example] = field(default_factory=list)
    """For models that speak: the items, without their audio."""
    facts: dict[str, torch.Tensor] = field(default_factory=dict)
    """Inputs of a sequence loss for each generated hypothesis, in addition to its log-probability."""


@dataclass
class Batch:
    """Inputs of one forward pass in training, made on the CPU by a loader worker."""

    inputs: dict[str, torch.Tensor]
    """Keyword arguments of the model's forward."""
    counts: dict[str, int]
    """Targets per loss term, by which the engine divides the summed losses, across micro-batches and ranks."""
    ids: list[str]
    usable: list[int] | None = None
    """Positions of its items among the given examples: copies of a record have the same id. None: all, or unknown to a
    family without sequence losses."""
    seconds: float = 0.0
    """Seconds of audio."""
    tokens: int = 0
    """Sequence positions that hold something."""
    num_positions: int = 0
    """Sequence positions in all, padding included."""
    dropped: list[tuple[str, str, str]] = field(default_factory=list)
    """Items that could not be used: (id, reason, message)."""
    search: HypothesisSearch | None = None
    """Inputs of generation, in runs with a sequence loss."""

    def to(self, device: torch.device) -> Batch:
        return self._moved(lambda v: v.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        return self._moved(lambda v: v.pin_memory())

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        self.inputs = {k: move(v) for k, v in self.inputs.items()}
        if self.search is not None:
            self.search.inputs = {k: move(v) for k, v in self.search.inputs.items()}
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


def num_samples(example: Example) -> int:
    """Samples of an example's audio, which may not have been read (see `FeatureCache`)."""
    return int(example.extra.get("samples", 0)) if example.audio is None else len(example.audio)
