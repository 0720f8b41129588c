"""The same few items decoded at each evaluation, to be read and heard: metrics say how much, samples say what."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.callbacks.base import Callback
from stentor.callbacks.tracking import guarded

if TYPE_CHECKING:
    import numpy as np
    from accelerate.tracking import GeneralTracker

    from stentor.engine.trainer import Trainer
    from stentor.tasks.base import Prediction, Score

FILE = "samples.jsonl"
RATE = 16000


class Samples(Callback):
    """Write a fixed probe set's predictions to `samples.jsonl` at each evaluation, and to the trackers with audio."""

    type: Literal["samples"] = "samples"
    count: int = Field(8, ge=1)
    """Items of each evaluation set. They are picked by a hash of their ids, so they are the same in every run."""
    seed: int = 0
    """Another seed picks other items."""
    audio: bool = True
    """Send the recordings to the trackers as well (once: they do not change)."""
    max_seconds: float = Field(30.0, gt=0)
    """Longer recordings are sent as text only."""

    _heard: set[str] = PrivateAttr(default_factory=set)

    def on_start(self, trainer: Trainer) -> None:
        trainer.journal.forget_after(trainer.step, FILE)

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        if not trainer.main:
            return
        probe = self.pick(predictions)
        with (trainer.folder / FILE).open("a", encoding="utf-8") as file:
            for p in probe:
                row = {
                    "step": trainer.step,
                    **trainer.journal.where(),
                    "set": name,
                    "id": p.id,
                    "reference": p.reference,
                    "output": p.output,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        trackers = list(trainer.accelerator.trackers)
        if not trackers:
            return
        rows = [(p.id, _said(p.reference), _said(p.output)) for p in probe]
        sounds: dict[str, np.ndarray] = {}
        if self.audio and name not in self._heard:
            self._heard.add(name)
            sounds = self._sounds(probe)
        for tracker in trackers:
            guarded(trainer, tracker, lambda tracker=tracker: _send(tracker, name, rows, sounds, trainer.step))

    def pick(self, predictions: list[Prediction]) -> list[Prediction]:
        """The `count` predictions with the smallest hash of (seed, id): independent of their order and of the run."""

        def rank(prediction: Prediction) -> bytes:
            return hashlib.blake2b(f"{self.seed}/{prediction.id}".encode(), digest_size=8).digest()

        return sorted(predictions, key=rank)[: self.count]

    def _sounds(self, probe: list[Prediction]) -> dict[str, np.ndarray]:
        from stentor.data.record import load_record
        from stentor.errors import AudioError

        sounds = {}
        for p in probe:
            if p.seconds <= self.max_seconds:
                try:
                    sound = load_record(p.record, RATE)
                except AudioError:  # moved or deleted since it was decoded; its text is still worth showing
                    continue
                if sound is not None:
                    sounds[p.id] = sound
        return sounds


def _said(answer: dict[str, Any]) -> str:
    text = answer.get("text")
    return text if isinstance(text, str) else json.dumps(answer, ensure_ascii=False)


def _send(
    tracker: GeneralTracker, name: str, rows: list[tuple[str, str, str]], sounds: dict[str, np.ndarray], step: int
) -> None:
    """Show texts as a table and sounds as players, in each tracker's own way. Sounds: float32 [samples] at 16 kHz."""
    columns = ["id", "reference", "output"]
    if tracker.name == "tensorboard":
        cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * 3, *cells])
        tracker.writer.add_text(f"samples/{name}", table, step)
        for identity, sound in sounds.items():
            tracker.writer.add_audio(f"samples/{name}/{identity}", sound[None], step, sample_rate=RATE)
    elif tracker.name == "wandb":
        import wandb

        values: dict[str, Any] = {f"samples/{name}": wandb.Table(columns=columns, data=[list(row) for row in rows])}
        if sounds:
            values[f"audio/{name}"] = [wandb.Audio(s, sample_rate=RATE, caption=i) for i, s in sounds.items()]
        tracker.log(values, step=step)
    elif tracker.name == "trackio":
        import trackio

        values = {f"samples/{name}": trackio.Table(columns=columns, data=[list(row) for row in rows])}
        for identity, sound in sounds.items():
            values[f"audio/{name}/{identity}"] = trackio.Audio(sound, caption=identity, sample_rate=RATE)
        tracker.log(values, step=step)
