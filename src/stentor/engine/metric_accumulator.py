"""Metric accumulator: summed losses, throughput and waiting between two rows of metrics. Sums stay on the device until
read."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stentor.engine.device import Communicator
from stentor.engine.totals import MicroBatchLoss, StepTotals
from stentor.losses.base import Loss

DENSE_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12, "3090": 71e12}
"""Peak FLOP/s without sparsity, from the makers' data sheets."""


class MetricAccumulator:
    """Counts between two readings."""

    def __init__(self, losses: Mapping[str, Loss], device: torch.device, communicator: Communicator):
        self.losses, self.device, self.communicator = losses, device, communicator
        self.flops_per_slot: float | None = None
        """Measured by the dry run on a GPU; for the model FLOP utilisation."""
        self.reset()

    def reset(self) -> None:
        dtype = torch.float32 if self.device.type == "mps" else torch.float64  # MPS has no float64
        self.sums = {t: torch.zeros((), dtype=dtype, device=self.device) for t in self.losses}
        self.counts: Counter[str] = Counter()
        self.norms: list[float] = []
        self.skipped = 0  # steps
        self.restart()

    def restart(self) -> None:
        """Forget the time and what was done in it (an evaluation came between), keep the losses."""
        self.tokens = self.num_positions = self.seconds = self.wait = 0.0
        self._since = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """The losses since the last reading, over all ranks (all must call)."""
        sums = self.communicator.sum([float(self.sums[t]) for t in self.losses])
        return {
            "sums": dict(zip(self.losses, sums)),
            "counts": dict(self.counts),
            "norms": list(self.norms),
            "flops_per_slot": self.flops_per_slot,
        }

    def load_state_dict(self, state: dict[str, Any], main: bool) -> None:
        """Continue counting; the sums of all ranks go to the main one."""
        for term, value in state["sums"].items():
            if main and term in self.sums:
                self.sums[term] += value
        self.counts = Counter(state["counts"])
        self.norms = list(state["norms"])
        self.flops_per_slot = state["flops_per_slot"]

    def add_batch(self, totals: StepTotals) -> None:
        """Positions and seconds of audio of a step."""
        self.tokens += totals.tokens
        self.num_positions += totals.positions
        self.seconds += totals.seconds

    def add_step(self, losses: Sequence[MicroBatchLoss], totals: StepTotals, norm: float) -> None:
        """An optimizer step: the summed losses of this rank's micro-batches, all ranks' targets, the gradient norm. A
        skipped one, whose norm is not finite, is only counted."""
        if not math.isfinite(norm):
            self.skipped += 1
            return
        for term in self.losses:
            self.sums[term] += sum(loss.sums[term].to(self.sums[term].dtype) for loss in losses)
            self.counts[term] += round(totals.targets[term])
        self.norms.append(norm)

    def row(self, lr: float) -> dict[str, Any]:
        """The metrics since the last reading (all ranks must call), and a new start."""
        sums = self.communicator.sum([float(self.sums[t]) for t in self.losses])
        wait = self.communicator.sum([self.wait])[0] / self.communicator.world
        spent = max(time.monotonic() - self._since, 1e-9)
        means = {t: s / self.counts[t] if self.counts[t] else None for t, s in zip(self.losses, sums)}
        row = {
            "train/loss": sum(self.losses[t].weight * v for t, v in means.items() if v is not None)
            if self.norms
            else None,
            **{f"train/{t}": v for t, v in means.items()},
            "lr": lr,
            "grad_norm": float(torch.tensor(self.norms).mean()) if self.norms else None,
            "tokens_per_second": self.tokens / spent,
            "audio_seconds_per_second": self.seconds / spent,
            "padding": 1 - self.tokens / self.num_positions if self.num_positions else 0.0,
            "data_wait": wait / spent,
            "mfu": self._mfu(self.num_positions / spent),
            **({"skipped": self.skipped} if self.skipped else {}),
        }
        self.reset()
        return row

    def _mfu(self, positions_per_second: float) -> float | None:
        """Model FLOP utilisation: the dry run's FLOPs per position at this speed, over the GPU's peak."""
        if self.flops_per_slot is None:
            return None
        name = torch.cuda.get_device_name()
        peak = next((v for k, v in DENSE_BF16.items() if k in name), None)
        return self.flops_per_slot * positions_per_second / self.communicator.world / peak if peak else None
