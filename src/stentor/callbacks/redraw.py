"""Redraw callback: new random features of linear attention during training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PrivateAttr

from stentor.engine.callback import Callback
from stentor.errors import ConfigError
from stentor.models.base import RandomFeatures

if TYPE_CHECKING:
    from torch import nn

    from stentor.data.batch import Batch
    from stentor.engine.trainer import Trainer


class Redraw(Callback):
    """Redraw the random features of linear attention (FAVOR+) every `every` steps, so that the model does not depend on
    one draw.

    They change right before the first batch of a step, so evaluations and checkpoints have those of the last step. The
    draw only depends on `train.seed`, the step and the layer, so it is the same on all processes and after a resume.
    Weights are averaged (`train.ema`, `train.use: average`) over draws; the features are not.
    """

    type: Literal["redraw"] = "redraw"
    every: int = Field(1000, ge=1)
    """Steps between two draws."""

    _drawn_at: int = PrivateAttr(0)

    def check_model(self, model: nn.Module) -> None:
        modules = random_features(model)
        if not modules:
            raise ConfigError(
                "callbacks: `redraw` finds no random features in this model: use linear attention (`linear` or "
                "`causal_linear`), or leave the callback out."
            )
        if all(m.fixed for m in modules):
            raise ConfigError(
                "callbacks: `redraw` cannot change the model's random features, because they are fixed "
                "(`model.fixed_projection`): leave out one of the two."
            )

    def on_start(self, trainer: Trainer) -> None:
        self.check_model(trainer.bundle.model)
        self._drawn_at = 0
        train = trainer.config.train
        if train.ema is not None or (train.use in ("average", "greedy") and train.keep_best > 1):
            trainer.say(
                f"Random features are redrawn every {self.every} steps: averages only include the weights, with the "
                "newest features (`train.ema`) or those of the best checkpoint (`train.use: average`)."
            )

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        if trainer.step % self.every == 0 and trainer.step != self._drawn_at:
            import torch

            self._drawn_at = trainer.step
            for layer, module in enumerate(random_features(trainer.bundle.model)):
                if not module.fixed:
                    seed = seed_of(trainer.config.train.seed, trainer.step, layer)
                    module.redraw(torch.Generator().manual_seed(seed))
            trainer.event("redrawn", step=trainer.step)


def random_features(model: nn.Module) -> list[RandomFeatures]:
    return [m for m in model.modules() if isinstance(m, RandomFeatures)]


def seed_of(run: int, step: int, layer: int) -> int:
    """Return the seed of one draw, 63 bits, independent between runs, steps and layers."""
    import numpy as np

    return int(np.random.SeedSequence([run, step, layer]).generate_state(1, np.uint64)[0]) >> 1
