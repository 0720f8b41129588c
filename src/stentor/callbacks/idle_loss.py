"""Idle loss callback: warn of loss terms that teach nothing, because their value or their gradient is 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.engine.callback import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.data.batch import Batch
    from stentor.engine.trainer import Trainer

KINDS = {
    "targets": ("has no targets", "no record has what it is computed from"),
    "value": ("is 0", "it does not fit these labels and outputs, or there is nothing to tell apart"),
    "gradient": ("has no gradient", "its value does not depend on anything that is trained"),
}
"""Needs of a term, in order: how a warning says that one is missing, and the reason."""


class IdleLoss(Callback):
    """Warn of loss terms without targets, and of those whose value or gradient is 0 in each of the first steps.

    All runs have this callback. Terms with the weight 0 are left out.
    """

    type: Literal["idle_loss"] = "idle_loss"
    steps: int = Field(3, ge=1)
    """Number of steps that are watched."""

    _seen: Counter[tuple[str, str]] | None = PrivateAttr(None)
    """Micro-batches in which a term had each of the `KINDS`. None: nothing is watched."""

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        if not trainer.step and self._seen is None:
            self._seen = Counter()
            for term, loss in trainer.losses.items():
                loss.watch(partial(self._see, term, trainer.backend.sharded))
        if self._seen is not None and batch.ids:
            for term, count in trainer.task.counts(batch).items():
                self._seen[term, "targets"] += bool(count)

    def _see(self, term: str, sharded: bool, value: Tensor, inputs: Mapping[str, Any]) -> None:
        assert self._seen is not None
        self._seen[term, "value"] += bool(value.detach() != 0)
        # The gradient of a sharded model's outputs would gather its weights.
        if value.requires_grad and not self._seen[term, "gradient"]:
            self._seen[term, "gradient"] += sharded or has_gradient(value, inputs)

    def on_step(self, trainer: Trainer) -> None:
        if self._seen is None or trainer.step < min(self.steps, trainer.total_steps):
            return
        for loss in trainer.losses.values():
            loss.watch(None)
        keys = [(term, kind) for term in trainer.losses for kind in KINDS]
        seen = dict(zip(keys, trainer.communicator.sum([float(self._seen[key]) for key in keys])))
        self._seen = None
        steps = "step" if trainer.step == 1 else f"{trainer.step} steps"
        idle: dict[str, str] = {}
        for term, loss in trainer.losses.items():
            missing = next((kind for kind in KINDS if not seen[term, kind]), None)
            if missing is not None and loss.weight:
                what, why = KINDS[missing]
                idle[term] = missing
                trainer.say(
                    f"Warning: losses.{term} (`{loss.type}`) {what} in the first {steps}, so it teaches the model "
                    f"nothing: {why}. Use another loss, or leave the term out."
                )
        if idle:
            trainer.event("idle_loss", terms=idle)


def has_gradient(value: Tensor, inputs: Mapping[str, Any]) -> bool:
    """Return whether a loss changes with one of its inputs, the outputs of the model. The graph is kept."""
    import torch

    tensors = [x for x in inputs.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [x for x in tensors if not isinstance(x, torch.nn.Parameter)] or tensors
    if not outputs:  # the model computed the loss
        return True
    gradients = torch.autograd.grad(value, outputs, retain_graph=True, allow_unused=True)
    return any(bool((g != 0).any()) for g in gradients if g is not None)
