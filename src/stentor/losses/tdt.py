"""TDT loss: the sum over all alignments of a transducer that predicts how many frames each step goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor, nn


class TDTLoss(Loss):
    """Negative log-probability of all alignments by tokens and durations (token-and-duration transducer, Xu et al.
    2023, arXiv 2304.06795), summed. As for `rnnt`, the joint is run on some rows at a time."""

    type: Literal["tdt"] = "tdt"
    rows: int = Field(8192, ge=1)
    """Pairs of a frame and a token whose scores over the vocabulary are in memory at a time. Fewer take less memory, as
    exact; a batch with no more pairs than that is computed once instead of twice."""
    sigma: float = Field(0.0, ge=0)
    """What is taken from the log-probability of each token and blank, so that few steps are better than many: models
    learn to take long durations. Parakeet was trained with 0.02."""
    omega: float = Field(0.0, ge=0, le=1)
    """Share of the plain RNN-T loss of the same tokens, without durations, in the loss: (1 - omega) TDT + omega RNN-T.
    NeMo draws one of the two for each batch, with this probability; Parakeet was trained with 0.1."""

    def sum(
        self,
        encoder: Tensor,
        predictor: Tensor,
        joint: nn.Module,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        blank: int,
        durations: Sequence[int],
    ) -> Tensor:
        """A scalar, float32 (float64 if the logits are). `durations` are the frames that the joint's last logits stand
        for, those before them are of the tokens; the other arguments are those of `RNNTLoss.sum`.

        Items that no path of these durations aligns count as zero.
        """
        from stentor.losses.transducer.lattice import RNNT_ARCS, Lattice

        lattice = Lattice(lengths, targets, target_lengths, blank)
        tokens, steps = lattice.scores(joint, encoder, predictor, self.rows, len(durations))
        scores, arcs = lattice.arcs(tokens, steps, durations)
        loss = (1 - self.omega) * lattice.loss(scores - self.sigma, arcs)
        return loss + self.omega * lattice.loss(tokens, RNNT_ARCS) if self.omega else loss

    def unregularised(self) -> Loss:
        return self.model_copy(update={"sigma": 0.0, "omega": 0.0})
