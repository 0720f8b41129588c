"""A stand-in for the trainer: what callbacks may use of it, with memory of what they did."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stentor.engine.run_logger import RunLogger
from stentor.engine.section import Schedule, Train
from stentor.engine.steering import Steering
from stentor.losses.token import CrossEntropy
from stentor.tasks.transcribe import Transcribe


class FakeTrainer:
    def __init__(self, folder: Path, sets: tuple[str, ...] = ("dev",)):
        self.folder, self.main, self.world = folder, True, 1
        self.step, self.epoch, self.total_steps = 0, 0, 100
        self.config = SimpleNamespace(
            name="fake",
            data=SimpleNamespace(eval=dict.fromkeys(sets)),
            train=Train(log_every=10),
            schedule=Schedule(),
            task=Transcribe(),
            callbacks=[],
            plain=lambda: {"name": "fake", "optim": {"lr": 1e-3}},
        )
        self.steering = Steering(self.config, {"text": CrossEntropy()})
        self.accelerator = SimpleNamespace(trackers=[])
        self.logger = RunLogger(folder, main=True)
        self.messages: list[str] = []
        self.extra: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []
        self.stopped: str | None = None
        self.restored = 0
        self.progress = SimpleNamespace(best=[])

    def say(self, line: str) -> None:
        self.messages.append(line)

    def log(self, metrics: dict[str, Any]) -> None:
        self.logged.append({"step": self.step, **metrics})

    def stop(self, reason: str) -> None:
        self.stopped = reason

    def restore_best(self) -> None:
        self.restored += 1


@pytest.fixture
def trainer(tmp_path: Path) -> FakeTrainer:
    return FakeTrainer(tmp_path)
