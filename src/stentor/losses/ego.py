"""Ego loss: cross entropy of the activity around each speaker as the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.losses.diarization import assign, pairwise_sums

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 5
"""The target alone, the target and others, one other, several others, no one."""


class EgoLoss(Loss):
    """Cross entropy over the five classes of each target speaker, for the order of speakers that fits an item best.

    It goes with the labels `ego`.
    """

    type: Literal["ego"] = "ego"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target's probability that is spread evenly over the classes."""

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, S * 5] against the speakers' activity, `targets` [B, T, S] of 0 and 1
        (frames with a -100 are left out)."""
        from torch.nn import functional as F

        speakers = targets.shape[-1]
        if logits.shape[-1] != speakers * CLASSES:
            raise ConfigError(
                f"losses: `ego` over {speakers} speakers needs a model with {speakers * CLASSES} outputs, not "
                f"{logits.shape[-1]}. It goes with the labels `ego`."
            )
        valid = (targets != -100).all(-1, keepdim=True)
        scores = logits.float().masked_fill(~valid, 0).unflatten(-1, (speakers, CLASSES))
        classes = ego_classes(targets > 0.5)
        one_hot = F.one_hot(classes, CLASSES) * valid[..., None]
        # [B, T, S, 5] as [B, T * 5, S], so that each output is compared with each speaker as its target.
        both = (scores.detach().log_softmax(-1), one_hot.float())
        outputs, references = (x.transpose(2, 3).flatten(1, 2) for x in both)
        order = assign(-pairwise_sums(outputs, references))[:, None].expand_as(classes)
        matched = classes.gather(2, order).masked_fill(~valid, -100)
        smoothing = self.label_smoothing
        return F.cross_entropy(scores.flatten(0, 2), matched.flatten(), reduction="sum", label_smoothing=smoothing)


def ego_classes(active: Tensor) -> Tensor:
    """The class of each frame with each speaker as the target: int64 [..., S] from activity bool [..., S].

    Two speakers in three frames:

        [1, 0] -> [0, 2]  # the target alone; one other
        [1, 1] -> [1, 1]  # the target and others
        [0, 0] -> [4, 4]  # no speaker
    """
    others = active.sum(-1, keepdim=True) - active.long()
    around = others.clamp(max=2) + 1  # 2 for one other, 3 for several
    around = around.where(others > 0, around.new_tensor(CLASSES - 1))
    return others.clamp(max=1).where(active, around)
