"""Sequence losses: terms over whole texts that the model itself wrote for a clip, its hypotheses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor


class SequenceLoss(Loss):
    """Base of sequence losses. Their hypotheses are written without a gradient before the forward pass of a
    micro-batch (`Task.add_hypotheses`), which then says how likely each is. One target is one clip."""

    hypotheses: int = Field(4, ge=2)
    """Texts that are written for each clip in each step."""
    units: Literal["words", "characters"] = "words"
    """What errors are counted in, after the task's normalizer."""
    reads: ClassVar[str | None] = "hypotheses"
    evaluated: ClassVar[bool] = False
    search: ClassVar[Literal["best", "sampled"]]
    """Which hypotheses: the likeliest ones that a beam search finds, or texts drawn from the model."""
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
