"""CTC loss (connectionist temporal classification)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class CTCLoss(Loss):
    """Negative log-probability of all alignments of the target with the frames (Graves et al. 2006), summed."""

    type: Literal["ctc"] = "ctc"

    def sum(self, log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """`log_probs` [T, B, C] with blank = 0, `lengths` [B] frames, `targets` flat, `target_lengths` [B]. Items whose
        target cannot be aligned with their frames (too few of them) count as zero; families leave such items out
        beforehand so that their targets are not in the denominator either."""
        from torch.nn import functional as F

        if log_probs.shape[1] == 0:
            return log_probs.sum()  # no item has a target: a zero that keeps the head in the graph
        return F.ctc_loss(log_probs.float(), targets, lengths, target_lengths, reduction="sum", zero_infinity=True)
