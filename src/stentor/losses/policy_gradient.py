"""Policy gradient: rewards of texts, or of speech, that were drawn from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.losses.sequence import SequenceLoss, by_clip

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-4
"""What is added to a standard deviation that is divided by."""


class PolicyGradient(SequenceLoss):
    """Group-relative policy gradient (GRPO, Shao et al. 2024, arXiv 2402.03300; for recognition arXiv 2509.01939) with
    one step for each group of samples, summed over clips.

    The reward of a hypothesis is minus its error rate, its advantage A how much that is above the mean of its group:
    -1/G sum_g A_g log p_g. The log-probability of a text is the sum over its tokens, not their mean, which would favour
    long wrong texts (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). Without `normalize` it is the sampled minimum word
    error rate of Shannon 2017 (arXiv 1706.02776).
    """

    type: Literal["policy_gradient"] = "policy_gradient"
    hypotheses: int = Field(8, ge=2)
    """Texts (or utterances) that are drawn for each clip in each step: a group."""
    temperature: float = Field(1.0, gt=0)
    """Temperature at which they are drawn, and at which their probabilities are taken."""
    normalize: bool = True
    """Divide advantages by the standard deviation of the group's rewards. False: clips with little to gain count
    less (Dr. GRPO)."""
    kl: float = Field(0.0, ge=0)
    """How much of log p - log p_start is taken from a reward, where p_start is the model without its adapters: it then
    stays near what it was. Needs `model.lora`."""
    search: ClassVar[Literal["best", "sampled"]] = "sampled"

    def incompatible_with(self, task: Any, family: Any) -> tuple[str, str] | None:
        if self.kl and getattr(family, "lora", None) is None:
            return "kl", "it compares with the model without its adapters: set `model.lora`, or leave `kl` out"
        return super().incompatible_with(task, family)

    def sum(
        self,
        log_probs: Tensor,
        errors: Tensor,
        clips: Tensor,
        copies: Tensor,
        units: Tensor,
        start_log_probs: Tensor | None = None,
    ) -> Tensor:
        """A float32 scalar. Of the different hypotheses [R] of all clips: log-probabilities, `errors`, the number of
        the clip (ascending), how often each was drawn, the units of the reference, and log-probabilities under the
        model that training began with."""
        log_probs = log_probs.float()
        rewards = -errors / units.clamp(min=1)
        if self.kl:
            assert start_log_probs is not None
            rewards = rewards - self.kl * (log_probs.detach() - start_log_probs)
        share = by_clip(copies.float(), clips, 0.0)
        share = share / share.sum(1, keepdim=True)
        table = by_clip(rewards, clips, 0.0)
        advantages = table - (share * table).sum(1, keepdim=True)
        if self.normalize:
            advantages = advantages / ((share * advantages.square()).sum(1, keepdim=True).sqrt() + EPSILON)
        return -(share * advantages * by_clip(log_probs, clips, 0.0)).sum()
