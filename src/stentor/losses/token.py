"""Cross entropy of the next token, or of the class of each frame, and the loss that a model computes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.losses.base import Loss
from stentor.losses.classes import flatten_frames

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropy(Loss):
    """Negative log-probability of the right token (or of a frame's class), summed."""

    type: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target's probability that is spread evenly over the vocabulary (the classes)."""

    per_token: ClassVar[bool] = True
    per_frame: ClassVar[bool] = True
    chunk: ClassVar[int] = 1 << 25
    """Most logits in memory at a time (128 MiB in float32); beyond, they are computed again in the backward pass."""

    def sum(
        self,
        targets: Tensor,
        hidden: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> Tensor:
        """A float32 scalar. `targets` int64 [N] (-100 is left out) and either `logits` [N, V], or `hidden` [N, H] with
        the output layer's `weight` [V, H] and `bias` [V], whose logits never exist all at once for large vocabularies.
        For the labels of frames, `logits` [B, T, C] and `targets` int64 [B, T].

        torch's own chunked `linear_cross_entropy` is not used: with bfloat16 it sums in bfloat16 (measured 2 % off).
        """
        import torch

        parts = self._parts("sum", targets, hidden, weight, bias, logits)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def of_tokens(self, targets: Tensor, **prediction: Tensor) -> Tensor:
        """The terms of `sum`: float32 [N], 0 where the target is -100."""
        import torch

        return torch.cat(self._parts("none", targets, **prediction))

    def _parts(
        self,
        reduction: str,
        targets: Tensor,
        hidden: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> list[Tensor]:
        """The loss of each chunk of the targets, as F.cross_entropy reduces it."""
        from torch.nn import functional as F
        from torch.utils.checkpoint import checkpoint

        def score(logits: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(
                logits.float(), targets, ignore_index=-100, reduction=reduction, label_smoothing=self.label_smoothing
            )

        if logits is not None:
            return [score(*(flatten_frames(self, logits, targets) if logits.dim() > 2 else (logits, targets)))]

        def project(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
            return score(F.linear(hidden, weight, bias), targets)

        assert hidden is not None and weight is not None
        rows = max(1, self.chunk // len(weight))
        if len(hidden) <= rows:
            return [project(hidden, weight, bias, targets)]
        return [
            checkpoint(project, hidden[i : i + rows], weight, bias, targets[i : i + rows], use_reentrant=False)
            for i in range(0, len(hidden), rows)
        ]


class ModelLoss(Loss):
    """The loss that a model of transformers computes itself from its labels, as a sum over what it averages over."""

    type: Literal["model"] = "model"
    per_token: ClassVar[bool] = False

    def sum(self, loss: Tensor) -> Tensor:
        return loss
