"""Sequence losses: terms over whole texts that the model itself wrote for a clip, its hypotheses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-4
"""Constant that is added to a standard deviation before division."""


class SequenceLoss(Loss):
    """Base of sequence losses. Their hypotheses are written without a gradient before the forward pass of a
    micro-batch (`Task.add_hypotheses`), which then says how likely each is. One target is one clip."""

    hypotheses: int = Field(4, ge=2)
    """Texts that are written for each clip in each step."""
    units: Literal["words", "characters"] = "words"
    """Unit of the errors, after the task's normalizer."""
    reads: ClassVar[str | None] = "hypotheses"
    evaluated: ClassVar[bool] = False
    search: ClassVar[Literal["best", "sampled"]]
    """Hypotheses: the best of a beam search, or texts sampled from the model."""
    temperature: float

    @property
    def unit(self) -> Literal["word", "character"]:
        """`units`, as the metrics call them."""
        return "word" if self.units == "words" else "character"

    def incompatible_with(self, task: Any, family: Any) -> tuple[str, str] | None:
        if self.search not in task.hypotheses:
            return "type", f"the task {task.type} writes no texts that it could be measured on: leave it out"
        if family.writes(self.search):
            return None
        kinds = {name: kind for name, kind in family.choices().items() if task.type in kind.tasks}
        able = ", ".join(sorted(name for name, kind in kinds.items() if self.search in kind.hypotheses))
        what = {"best": "has no list of best texts", "sampled": "cannot draw texts at random"}[self.search]
        return "type", f"a model of the family {family.type} with these settings {what}; families that can: {able}"


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
    """Weight of log p - log p_start that is subtracted from a reward, where p_start is the model without its adapters:
    it then stays near what it was. Needs `model.lora`."""
    search: ClassVar[Literal["best", "sampled"]] = "sampled"

    def incompatible_with(self, task: Any, family: Any) -> tuple[str, str] | None:
        if self.kl and dict(family).get("lora") is None:
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


def sequence_terms(losses: Mapping[str, Loss]) -> dict[str, SequenceLoss]:
    """The terms that are sequence losses."""
    return {name: loss for name, loss in losses.items() if isinstance(loss, SequenceLoss)}


def by_clip(values: Tensor, clips: Tensor, fill: float) -> Tensor:
    """Values [R] of hypotheses, which belong to `clips` int64 [R] in ascending order, as a table [clips, most
    hypotheses of a clip] with `fill` where a clip has fewer."""
    import torch

    counts = torch.bincount(clips)
    place = torch.arange(len(clips), device=clips.device) - (counts.cumsum(0) - counts)[clips]
    table = values.new_full((len(counts), int(counts.max())), fill)
    return table.index_put((clips, place), values)
