"""Samples callback: predictions for the same few items at each evaluation, as text and audio."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.callbacks.tracking import guarded
from stentor.engine.callback import OBSERVES, Callback

if TYPE_CHECKING:
    import numpy as np
    from accelerate.tracking import GeneralTracker

    from stentor.data.batch import Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score

FILE = "samples.jsonl"
FOLDER = "samples"
RATE = 16000


@dataclass
class Sound:
    """Audio to send to a tracker."""

    kind: str  # `samples`: a recording; `spoken`: an output
    id: str
    samples: np.ndarray  # float32 [samples]
    rate: int


class Samples(Callback):
    """Write the predictions for a fixed set of samples to `samples.jsonl` at each evaluation, and to the trackers with
    audio.

    Audio outputs are written to `samples/step-000400/SET/ID.wav` and sent to the trackers each time. Tasks with audio
    outputs always have this callback.
    """

    type: Literal["samples"] = "samples"
    effects = OBSERVES
    count: int = Field(8, ge=1)
    """Number of items of each evaluation set. They are selected by a hash of their ids: the same in every run."""
    seed: int = 0
    """Random seed of the selection."""
    audio: bool = True
    """Also send the recordings to the trackers (once, because they do not change)."""
    max_seconds: float = Field(30.0, gt=0)
    """Maximum seconds of recordings to send; of longer ones, only the text is sent."""

    _sent: set[str] = PrivateAttr(default_factory=set)

    def on_start(self, trainer: Trainer) -> None:
        trainer.logger.forget_after(trainer.step, FILE)
        if trainer.main:
            for folder in self._folder(trainer).glob("step-*"):
                step = folder.name.removeprefix("step-")
                if step.isdigit() and int(step) > trainer.step:
                    shutil.rmtree(folder)

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        if not trainer.main:
            return
        probe = self.pick(predictions)
        with (trainer.folder / FILE).open("a", encoding="utf-8") as file:
            for p in probe:
                row = {"step": trainer.step, **trainer.logger.where(), "set": name, "id": p.id, "seconds": p.seconds}
                output = self._with_files(trainer, name, p)
                row |= {"reference": p.reference, "output": output, "record": p.record}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        trackers = list(trainer.accelerator.trackers)
        if not trackers:
            return
        rows = [(p.id, _answer_text(p.reference), _answer_text(p.output)) for p in probe]
        sounds = self._spoken(probe)
        if self.audio and name not in self._sent:
            self._sent.add(name)
            sounds += self._sounds(probe)
        for tracker in trackers:
            guarded(trainer, tracker, partial(_send, tracker, name, rows, sounds, trainer.step))

    def pick(self, predictions: list[Prediction]) -> list[Prediction]:
        """Return the `count` predictions with the smallest hash of (seed, id), independent of their order and run."""

        def rank(prediction: Prediction) -> bytes:
            return hashlib.blake2b(f"{self.seed}/{prediction.id}".encode(), digest_size=8).digest()

        return sorted(predictions, key=rank)[: self.count]

    def _folder(self, trainer: Trainer) -> Path:
        stage = trainer.logger.where().get("stage")
        return trainer.folder / FOLDER / f"stage-{stage}" if stage else trainer.folder / FOLDER

    def _with_files(self, trainer: Trainer, name: str, prediction: Prediction) -> dict[str, Any]:
        """Write the audio of an output to files and return the output with `{"file", "rate"}` instead of the audio.

        `audio` is the output itself; other audio, such as the recording decoded by the codec, is the same at each
        evaluation and written once, to `samples/NAME/SET/ID.wav`.
        """
        import soundfile

        from stentor.data.audio_base64 import decode_audio, is_encoded_audio

        output = dict(prediction.output)
        for key, value in output.items():
            if not is_encoded_audio(value):
                continue
            kind = f"step-{trainer.step:06d}" if key == "audio" else key
            path = self._folder(trainer) / kind / file_name(name) / f"{file_name(prediction.id)}.wav"
            if key == "audio" or not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(path, decode_audio(value), value["rate"], subtype="PCM_16")
            output[key] = {"file": path.relative_to(trainer.folder).as_posix(), "rate": value["rate"]}
        return output

    def _spoken(self, probe: list[Prediction]) -> list[Sound]:
        from stentor.data.audio_base64 import decode_audio, is_encoded_audio

        answers = [(p.id, p.output["audio"]) for p in probe if is_encoded_audio(p.output.get("audio"))]
        return [Sound("spoken", name, decode_audio(sound), sound["rate"]) for name, sound in answers]

    def _sounds(self, probe: list[Prediction]) -> list[Sound]:
        from stentor.data.load_audio import load_record
        from stentor.errors import AudioError

        sounds = []
        for p in probe:
            if p.seconds <= self.max_seconds:
                try:
                    sound = load_record(p.record, RATE)
                except AudioError:  # moved or deleted since it was decoded; its text is still worth showing
                    continue
                if sound is not None:
                    sounds.append(Sound("samples", p.id, sound, RATE))
        return sounds


def file_name(name: str) -> str:
    """Return a name that is valid on any file system and unique for each id."""
    plain = re.sub(r"[^\w.-]", "_", name)[:80].lstrip(".")
    return plain if plain and plain == name else f"{plain}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _answer_text(answer: dict[str, Any]) -> str:
    from stentor.data.audio_base64 import is_encoded_audio

    text = answer.get("text")
    answer = {k: v for k, v in answer.items() if not is_encoded_audio(v)}
    return text if isinstance(text, str) else json.dumps(answer, ensure_ascii=False)


def _send(tracker: GeneralTracker, name: str, rows: list[tuple[str, str, str]], sounds: list[Sound], step: int) -> None:
    """Send texts as a table and audio as players, in the format of the tracker."""
    columns = ["id", "reference", "output"]
    if tracker.name == "tensorboard":
        cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * 3, *cells])
        tracker.writer.add_text(f"samples/{name}", table, step)
        for sound in sounds:
            tag = f"{sound.kind}/{name}/{sound.id}"
            tracker.writer.add_audio(tag, sound.samples[None], step, sample_rate=sound.rate)
    elif tracker.name == "wandb":
        import wandb

        values: dict[str, Any] = {f"samples/{name}": wandb.Table(columns=columns, data=[list(row) for row in rows])}
        for kind, key in (("samples", "audio"), ("spoken", "spoken")):
            players = [wandb.Audio(s.samples, sample_rate=s.rate, caption=s.id) for s in sounds if s.kind == kind]
            if players:
                values[f"{key}/{name}"] = players
        tracker.log(values, step=step)
    elif tracker.name == "trackio":
        import trackio

        values = {f"samples/{name}": trackio.Table(columns=columns, data=[list(row) for row in rows])}
        for sound in sounds:
            key = {"samples": "audio"}.get(sound.kind, sound.kind)
            values[f"{key}/{name}/{sound.id}"] = trackio.Audio(sound.samples, caption=sound.id, sample_rate=sound.rate)
        tracker.log(values, step=step)
