"""Calibration callback: fit confidences and the delays of word times on held-out words at each evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from stentor.engine.callback import Callback
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.data.batch import Prediction
    from stentor.engine.setup import RunConfig
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score


class Calibrate(Callback):
    """Calibrate word confidences and, in transducers, the delay of word times. For the task `words`."""

    type: Literal["calibrate"] = "calibrate"
    set: str | None = None
    """Evaluation set to fit on. Do not report other results on it. Null: the first one."""
    least: int = Field(100, ge=1)
    """Minimum number of recognised words; with fewer, the calibration is not changed."""

    def check(self, config: RunConfig) -> None:
        sets = list(config.data.eval)
        if not config.task.is_a(["words"]):
            raise ConfigError(
                f"callbacks: calibrate is for the task words, not {config.task.type}: remove it, or move it to "
                "the stage with the task words."
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
        # With `train.ema`, the model has the averaged weights during evaluation; both copies must be updated.
        holders = [dict(trainer.bundle.model.named_buffers()), *([trainer.ema.shadow] if trainer.ema else [])]
        for name, values in fitted.items():
            for tensors in holders:
                for buffer in (n for n in tensors if n.rpartition(".")[2] == name):
                    values_before = tensors[buffer] if name == "delays" else 0.0
                    tensors[buffer].copy_(torch.tensor(values) + values_before)

    def fitted(self, predictions: list[Prediction], normalizer: str) -> dict[str, list[float]] | None:
        """Return the new values of the model's buffers: `calibration`, the map (see `stentor.metrics.calibration`), and
        `delays`, the median seconds by which starts and ends of words are early. None if there are too few words.

        A word is right if the reference has it there, as in the expected calibration error.
        """
        from statistics import median

        from stentor.metrics.calibration import fit
        from stentor.metrics.word_match import match

        signs: list[list[float]] = []
        right: list[bool] = []
        errors: dict[str, list[float]] = {"start": [], "end": []}
        for p in predictions:
            matches = match(p.reference["words"], p.output["words"], normalizer, p.reference.get("language"))
            signs += [word["signs"] for word in matches.hypothesis]
            right += matches.right
            for slot, milliseconds in errors.items():
                milliseconds += matches.errors(slot)
        if len(signs) < self.least:
            return None
        delays = [-median(milliseconds or [0.0]) / 1000 for milliseconds in errors.values()]
        return {"calibration": fit(signs, right), "delays": delays}
