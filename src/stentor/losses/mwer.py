"""MWER loss: minimum word error rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.losses.sequence import SequenceLoss, by_clip

if TYPE_CHECKING:
    from torch import Tensor


class MWER(SequenceLoss):
    """Expected number of errors over the best hypotheses of a beam search (minimum word error rate, Prabhavalkar et al.
    2018, arXiv 1712.01818; for transducers Weng et al. 2020, arXiv 1911.11928), summed over clips.

    The probabilities p of the hypotheses are made to add up to 1, and the mean of their errors W is the baseline:
    sum_n p_n (W_n - mean W). It is used beside the model's ordinary loss, on a model that was trained with that.
    """

    type: Literal["mwer"] = "mwer"
    temperature: float = Field(1.0, gt=0)
    """By what log-probabilities are divided before they are made to add up to 1. Above 1, less likely hypotheses count
    more."""
    search: ClassVar[Literal["best", "sampled"]] = "best"

    def sum(self, log_probs: Tensor, errors: Tensor, clips: Tensor, **_: Any) -> Tensor:
        """A float32 scalar: of the hypotheses [R] of all clips, log-probabilities, `errors` and the number of the clip
        (ascending)."""
        import torch

        table = by_clip(log_probs.float() / self.temperature, clips, -torch.inf)
        baseline = by_clip(errors, clips, torch.nan).nanmean(1, keepdim=True)
        return (table.softmax(1) * (by_clip(errors, clips, 0.0) - baseline)).sum()
