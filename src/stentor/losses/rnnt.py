"""RNN-T loss: the sum over all alignments of a transducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor, nn


class RNNTLoss(Loss):
    """Negative log-probability of all alignments of the target with the frames (Graves 2012, arXiv 1211.3711), summed.

    The lattice of probabilities is never in memory as a whole: the joint is run on some rows at a time, and again in
    the backward pass.
    """

    type: Literal["rnnt"] = "rnnt"
    rows: int = Field(8192, ge=1)
    """Pairs of a frame and a token whose scores over the vocabulary are in memory at a time. Fewer take less memory, as
    exact; a batch with no more pairs than that is computed once instead of twice."""
    fastemit: float = Field(0.0, ge=0)
    """How much more the gradient favours tokens over waiting, for a model that shall answer early (FastEmit, arXiv
    2010.11148, where 0.001 to 0.01 were good). The loss itself stays as it is."""

    def sum(
        self,
        encoder: Tensor,
        predictor: Tensor,
        joint: nn.Module,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        blank: int,
    ) -> Tensor:
        """A scalar, float32 (float64 if the logits are).

        Args:
            encoder: states of the frames, [B, T, J].
            predictor: states after the start and after each token, [B, U + 1, J].
            joint: takes a state of each kind, [N, J], and answers logits [N, V].
            lengths: frames of each item, int64 [B].
            targets: ids of tokens, int64 [B, U], padded with anything.
            target_lengths: tokens of each item, int64 [B].
            blank: the id that means no token.

        Items without frames but with tokens count as zero.
        """
        from stentor.losses.transducer.lattice import RNNT_ARCS, Lattice

        lattice = Lattice(lengths, targets, target_lengths, blank)
        scores, _ = lattice.scores(joint, encoder, predictor, self.rows)
        return lattice.loss(scores, RNNT_ARCS, emphasis=1 + self.fastemit)
