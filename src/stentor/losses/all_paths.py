"""Losses over all alignments of a target with the frames: CTC, RNN-T and TDT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor, nn


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
    """Extra weight of tokens over blanks in the gradient, for a model that answers early (FastEmit, arXiv
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


class TDTLoss(Loss):
    """Negative log-probability of all alignments by tokens and durations (token-and-duration transducer, Xu et al.
    2023, arXiv 2304.06795), summed. As for `rnnt`, the joint is run on some rows at a time."""

    type: Literal["tdt"] = "tdt"
    rows: int = Field(8192, ge=1)
    """Pairs of a frame and a token whose scores over the vocabulary are in memory at a time. Fewer take less memory, as
    exact; a batch with no more pairs than that is computed once instead of twice."""
    sigma: float = Field(0.0, ge=0)
    """Amount subtracted from the log-probability of each token and blank, so that few steps are better than many:
    models learn to take long durations. Parakeet was trained with 0.02."""
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
