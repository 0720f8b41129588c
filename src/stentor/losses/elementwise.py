"""Losses that compare each output with its own target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class Elementwise(Loss):
    """Base of losses that are a sum over the entries of the outputs."""

    def entries(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each entry, all of one shape, float32."""
        raise NotImplementedError

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar. `logits` and `targets` of one shape; entries whose target is -100 are left out."""
        logits, targets, valid = masked_pair(self, logits, targets)
        return self.entries(logits, targets).masked_fill(~valid, 0).sum()


class Regression(Elementwise):
    """Base of losses that measure a distance."""

    sigmoid: bool = True
    """Compare the sigmoid of the model's outputs, as labels of 0 and 1 need; false for targets of any size."""

    def entries(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.distance(outputs.sigmoid() if self.sigmoid else outputs, targets)

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError


class MSE(Regression):
    """Squared error; of probabilities and labels of 0 and 1, the Brier score."""

    type: Literal["mse"] = "mse"

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) ** 2


class MAE(Regression):
    """Absolute error."""

    type: Literal["mae"] = "mae"

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs()


class SmoothL1(Regression):
    """Squared error up to `beta`, absolute error beyond (Girshick 2015)."""

    type: Literal["smooth_l1"] = "smooth_l1"
    beta: float = Field(1.0, gt=0)
    """Error at which the square turns into a line."""

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.smooth_l1_loss(outputs, targets, reduction="none", beta=self.beta)


class Huber(Regression):
    """Squared error up to `delta`, absolute error beyond, with the slope `delta` (Huber 1964)."""

    type: Literal["huber"] = "huber"
    delta: float = Field(1.0, gt=0)
    """Error at which the square turns into a line."""

    def distance(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta)


class BinaryCrossEntropy(Elementwise):
    """Base of losses that ask of each output whether it is on."""

    pos_weight: float = Field(1.0, gt=0)
    """Weight of the targets that are 1: above 1, less speech is missed and more is raised falsely."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of targets 0 and 1 towards one half: with 0.1 they are 0.05 and 0.95."""

    def entries(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional as F

        return F.binary_cross_entropy_with_logits(
            outputs, self.smoothed(targets), reduction="none", pos_weight=outputs.new_tensor(self.pos_weight)
        )

    def smoothed(self, targets: Tensor) -> Tensor:
        return targets * (1 - self.label_smoothing) + 0.5 * self.label_smoothing if self.label_smoothing else targets


class BCEWithLogits(BinaryCrossEntropy):
    """Binary cross entropy of each output."""

    type: Literal["bce_with_logits"] = "bce_with_logits"


class BCE(BinaryCrossEntropy):
    """Binary cross entropy of each output, which may be a probability already."""

    type: Literal["bce"] = "bce"
    sigmoid: bool = True
    """Whether the model's outputs are logits; false when they are probabilities."""

    def entries(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.sigmoid:
            return super().entries(outputs, targets)
        targets = self.smoothed(targets)
        return -self.pos_weight * targets * clamped_log(outputs) - (1 - targets) * clamped_log(1 - outputs)


def clamped_log(probabilities: Tensor) -> Tensor:
    """The logarithm, at least -100 as in torch's binary cross entropy, and with a finite gradient at 0."""
    import torch

    tiny = torch.finfo(torch.float32).tiny
    return probabilities.clamp(min=tiny).log().masked_fill(probabilities <= tiny, -100.0)


def masked_pair(loss: Loss, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs float32, targets float32, bool: which entries count), all of one shape. Where the target is -100,
    outputs and targets are 0, so that these outputs reach neither the sum nor a gradient. Raises ConfigError when the
    shapes differ."""
    if logits.shape != targets.shape:
        kind = "one class per frame" if targets.dim() == logits.dim() - 1 else f"{targets.shape[-1]} numbers per frame"
        raise ConfigError(
            f"losses: `{loss.type}` compares each of the model's {logits.shape[-1]} outputs with its own target, but "
            f"these labels are {kind}. Give the task other labels, or take a loss that fits them."
        )
    valid = targets != -100
    return logits.float().masked_fill(~valid, 0), targets.float().masked_fill(~valid, 0), valid
