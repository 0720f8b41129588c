"""Diarization losses: activity of speakers in each frame, whose order has no meaning."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations, permutations
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.losses.elementwise import BinaryCrossEntropy, masked_pair

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ENUMERATED = 6
"""Most slots whose permutations (720) are all tried at once, on the device; beyond, scipy assigns on the CPU."""


class PermutationInvariantBCE(BinaryCrossEntropy):
    """Binary cross entropy of each speaker's activity, for the order of speakers that fits an item best.

    Fujita et al. 2019, "End-to-end neural speaker diarization with permutation-free objectives".
    """

    type: Literal["pit_bce"] = "pit_bce"

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, S] against `targets` [B, T, S] of 0 and 1 (-100 is left out)."""
        from torch.nn import functional as F

        _, activity, valid = masked_pair(self, logits, targets)
        # By frames, not entries: an output may be matched with a target that counts where its own does not.
        logits = logits.float().masked_fill(~valid.any(-1, keepdim=True), 0)
        smoothed, detached = self.smoothed(activity), logits.detach()
        on = pairwise_sums(F.softplus(-detached), smoothed * valid)
        off = pairwise_sums(F.softplus(detached), (1 - smoothed) * valid)
        order = assign(self.pos_weight * on + off)[:, None].expand_as(targets)
        return self.entries(logits, activity.gather(2, order)).masked_fill(~valid.gather(2, order), 0).sum()


class ArrivalBCE(BinaryCrossEntropy):
    """Binary cross entropy of each speaker's activity, with speakers in the order in which they first speak.

    The sort loss of Sortformer (Park et al. 2024, arXiv 2409.06656): the output of a model trained with it needs no
    permutation.
    """

    type: Literal["ats_bce"] = "ats_bce"

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, S] against `targets` [B, T, S] of 0 and 1 (-100 is left out)."""
        active = targets > 0.5
        frames = targets.shape[1]
        first = active.float().argmax(1).masked_fill(~active.any(1), frames) if frames else active.sum(1)
        order = first.argsort(dim=1, stable=True)[:, None].expand_as(targets)
        return super().sum(logits, targets.gather(2, order))


class PowersetLoss(Loss):
    """Cross entropy over sets of speakers, for the order of speakers that fits an item best.

    Plaquet and Bredin 2023, "Powerset multi-class cross entropy loss for neural speaker diarization".
    """

    type: Literal["powerset"] = "powerset"
    permutation: Literal["hard", "loss"] = "hard"
    """Criterion for the order of speakers: the frames in which the most likely set is right, as in the paper, or
    the cross entropy itself."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target's probability that is spread evenly over the sets."""

    per_frame: ClassVar[bool] = True

    def sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A float32 scalar: `logits` [B, T, classes] over the sets of `powerset_table` against the speakers' activity,
        `targets` [B, T, S] of 0 and 1 (frames with a -100 are left out). Where more speak at once than a set can hold,
        the set of those who come first in `targets` is meant."""
        from torch.nn import functional as F

        table, class_of_bits = (t.to(logits.device) for t in powerset_lookup(targets.shape[-1], logits.shape[-1]))
        valid = (targets != -100).all(-1)
        logits = logits.float().masked_fill(~valid[..., None], 0)
        active = table[class_of_bits[as_bits(targets > 0.5)]] & valid[..., None]  # never more than a set can hold
        if self.permutation == "hard":
            agreement = pairwise_sums(table[logits.detach().argmax(-1)].float(), active.float())
            order = assign(-agreement)
        else:
            order = least_cross_entropy_order(logits.detach(), active, table, class_of_bits)
        reordered = active.gather(2, order[:, None].expand_as(active))
        classes = class_of_bits[as_bits(reordered)].masked_fill(~valid, -100)
        smoothing = self.label_smoothing
        return F.cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="sum", label_smoothing=smoothing)


def pairwise_sums(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sums over the frames of the products of each output with each target, float32: [B, T, S] x 2 -> [B, S, S]."""
    import torch

    with torch.autocast(outputs.device.type, enabled=False):  # which would multiply in half precision
        return outputs.transpose(1, 2) @ targets


def assign(cost: Tensor) -> Tensor:
    """The permutation of least cost, exactly: int64 [B, S], for `cost` [B, S, S] of giving the output i the target j.
    Element i is the target of the output i. Of several the first in lexicographic order, up to `ENUMERATED` slots."""
    import torch

    slots = cost.shape[-1]
    if slots <= ENUMERATED:
        orders = torch.tensor(every_order(slots), device=cost.device)  # [S!, S]
        totals = cost[:, torch.arange(slots, device=cost.device), orders].sum(-1)
        return orders[totals.argmin(1)]
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    assignments = [linear_sum_assignment(item)[1] for item in cost.detach().nan_to_num().cpu().double().numpy()]
    return torch.as_tensor(np.array(assignments, dtype=np.int64).reshape(-1, slots), device=cost.device)


@lru_cache
def every_order(slots: int) -> list[tuple[int, ...]]:
    """All permutations of `slots` numbers, in lexicographic order."""
    return list(permutations(range(slots)))


def as_bits(active: Tensor) -> Tensor:
    """Speakers' activity, bool [..., S], as one number, int64 [...]: bit s is speaker s."""
    import torch

    return (active << torch.arange(active.shape[-1], device=active.device)).sum(-1)


def powerset_table(speakers: int, at_once: int) -> np.ndarray:
    """Active speakers of each class, bool [classes, speakers]: all sets of at most `at_once` speakers, by size, those
    of one size in lexicographic order.

    Three speakers, of whom at most two speak at once:

        [0, 0, 0]  # class 0: no speaker
        [1, 0, 0]  # class 1: speaker 1
        [0, 1, 0]  # class 2: speaker 2
        [0, 0, 1]  # class 3: speaker 3
        [1, 1, 0]  # class 4: speakers 1 and 2
        [1, 0, 1]  # class 5: speakers 1 and 3
        [0, 1, 1]  # class 6: speakers 2 and 3
    """
    import numpy as np

    sets = [members for size in range(at_once + 1) for members in combinations(range(speakers), size)]
    table = np.zeros((len(sets), speakers), bool)
    for row, members in zip(table, sets):
        row[list(members)] = True
    return table


@lru_cache
def powerset_lookup(speakers: int, classes: int) -> tuple[Tensor, Tensor]:
    """(`powerset_table` bool [classes, speakers], class of each activity `as_bits` int64 [2^speakers]). An activity of
    more speakers than any class holds gets the class of its first ones. Raises ConfigError when so many classes are no
    powerset of so many speakers."""
    import torch

    sizes = [sum(math.comb(speakers, n) for n in range(most + 1)) for most in range(1, speakers + 1)]
    if classes not in sizes:
        raise ConfigError(
            f"losses: `powerset` over {speakers} speakers needs a model with {' or '.join(map(str, sizes))} outputs "
            f"(1, 2 ... speakers at once), not {classes}. It goes with the labels `powerset`."
        )
    at_once = sizes.index(classes) + 1
    table = torch.as_tensor(powerset_table(speakers, at_once))
    class_of = {int(number): i for i, number in enumerate(as_bits(table))}
    class_of_bits = []
    for number in range(2**speakers):
        first = [s for s in range(speakers) if number >> s & 1][:at_once]
        class_of_bits.append(class_of[sum(1 << s for s in first)])
    return table, torch.tensor(class_of_bits)


def least_cross_entropy_order(logits: Tensor, active: Tensor, table: Tensor, class_of_bits: Tensor) -> Tensor:
    """The permutation of least cross entropy, int64 [B, S] as `assign` gives it. `logits` [B, T, classes] (0 in frames
    that are left out), `active` bool [B, T, S]."""
    import torch
    from torch.nn import functional as F

    speakers, classes = active.shape[-1], len(table)
    if speakers > ENUMERATED:
        raise ConfigError(
            f"losses: `powerset` with `permutation: loss` tries all orders of up to {ENUMERATED} speakers; for "
            f"{speakers}, write `permutation: hard`."
        )
    orders = torch.tensor(every_order(speakers), device=logits.device)
    permuted = class_of_bits[as_bits(table[:, orders])]  # [classes, orders]: the class under each order of speakers
    one_hot = F.one_hot(class_of_bits[as_bits(active)], classes).float()
    # Frames that are left out cost the same in each order.
    cost = pairwise_sums(one_hot, -logits.log_softmax(-1))  # [B, classes, classes]
    return orders[cost.gather(2, permuted.expand(len(cost), -1, -1)).sum(1).argmin(1)]
