"""Losses over classes: one class per frame, or a distribution over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from stentor.errors import ConfigError
from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class NLL(Loss):
    """Negative log-probability of a frame's class. Takes logits or log-probabilities, with the same result."""

    type: Literal["nll"] = "nll"
    per_frame: ClassVar[bool] = True

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, C] (or [N, C]), `targets` int64 [B, T] (or [N]), -100 is left out."""
        from torch.nn import functional as F

        logits, targets = flatten_frames(self, logits, targets)
        return F.nll_loss(logits.log_softmax(-1), targets, reduction="sum")


class KLDivergence(Loss):
    """Kullback-Leibler divergence of the model's distribution over classes from the target, such as a teacher's."""

    type: Literal["kl_div"] = "kl_div"
    per_frame: ClassVar[bool] = True

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, C] against distributions `targets` float [B, T, C] (frames with a -100 are
        left out), or against classes int64 [B, T], for which it is the cross entropy."""
        import torch
        from torch.nn import functional as F

        if targets.dim() == logits.dim() - 1:
            logits, targets = flatten_frames(self, logits, targets)
            return F.nll_loss(logits.log_softmax(-1), targets, reduction="sum")
        if targets.shape != logits.shape:
            raise ConfigError(
                f"losses: `kl_div` compares distributions over the model's {logits.shape[-1]} outputs, but these "
                f"labels have {targets.shape[-1]}. Give the task other labels, or use a loss that fits them."
            )
        valid = (targets != -100).all(-1, keepdim=True)
        log_probs = logits.float().masked_fill(~valid, 0).log_softmax(-1)
        targets = targets.float().masked_fill(~valid, 0)
        return (torch.xlogy(targets, targets) - targets * log_probs).sum()


def flatten_frames(loss: Loss, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(logits float32 [N, C], targets int64 [N]) of all frames; logits are 0 where the target is -100. Raises
    ConfigError when the targets are not one class per frame."""
    if targets.dim() != logits.dim() - 1:
        raise ConfigError(
            f"losses: `{loss.type}` needs one class per frame, but these labels are {targets.shape[-1]} numbers per "
            "frame, of which several may be on. Use `bce_with_logits`, `pit_bce` or `powerset`, or give the task "
            "other labels."
        )
    left_out = (targets == -100).unsqueeze(-1)
    return logits.float().masked_fill(left_out, 0).flatten(0, -2), targets.flatten().long()
