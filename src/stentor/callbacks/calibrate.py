"""Calibration callback: a logistic map to confidences, fitted on held-out words at each evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.callbacks.base import Callback
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.data.batch import Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score


class Calibrate(Callback):
    """Fit the map from a word's signs of certainty to its confidence. For the task `words`."""

    type: Literal["calibrate"] = "calibrate"
    set: str | None = None
    """The evaluation set that the map is fitted on, one that nothing else is claimed from. Null: the first."""
    least: int = Field(100, ge=1)
    """With fewer recognised words the map stays as it is."""

    def on_start(self, trainer: Trainer) -> None:
        sets = list(trainer.config.data.eval)
        if not trainer.config.task.is_a(["words"]):
            raise ConfigError(
                f"callbacks: calibrate is for the task words, not {trainer.config.task.type}: take it out, or put it "
                "into the stage that learns words."
            )
        if not sets or self.set not in (None, *sets):
            known = f"has no '{self.set}', only {', '.join(sets)}" if sets else "is empty"
            raise ConfigError(f"callbacks: calibrate needs an evaluation set, and data.eval {known}.")

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        import torch

        if name != (self.set or next(iter(trainer.config.data.eval))):
            return
        normalizer = trainer.config.task.normalizer  # type: ignore[attr-defined]
        fitted = self.fitted(predictions, normalizer) if trainer.main else None
        fitted = trainer.communicator.gather(fitted)[0]
        if fitted is None:
            return
        # The model holds the average of its weights while it is scored, where there is one; both must know.
        buffer = "aligner.calibration"
        holders = [trainer.bundle.model.get_buffer(buffer)]
        holders += [trainer.ema.shadow[buffer]] if trainer.ema else []
        for tensor in holders:
            tensor.copy_(torch.tensor(fitted))

    def fitted(self, predictions: list[Prediction], normalizer: str) -> list[float] | None:
        """The map (see `stentor.metrics.calibration`) for these predictions; None when there are too few words.

        A word is right when the reference has it there, as the expected calibration error counts it.
        """
        from stentor.metrics.calibration import fit
        from stentor.metrics.word_match import match

        signs: list[list[float]] = []
        right: list[bool] = []
        for p in predictions:
            matches = match(p.reference["words"], p.output["words"], normalizer, p.reference.get("language"))
            signs += [word["signs"] for word in matches.hypothesis]
            right += matches.right
        return fit(signs, right) if len(signs) >= self.least else None
