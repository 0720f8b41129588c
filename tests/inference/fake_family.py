"""A model family for tests: it "hears" how loud a window is and says so, one token per character."""

import json
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from stentor.models.base import Bundle, Family
from stentor.tasks.base import Batch


class Meter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.batches = []

    def generate(self, inputs, max_new_tokens, beams=1, temperature=0.0, generator=None):
        self.batches.append(inputs["length"].tolist())
        texts = [f"level {round(-x)}" for x in inputs["level"].tolist()]
        return [([ord(c) for c in text], [-0.1] * len(text)) for text in texts]


class MeterProcessor:
    sample_rate = 16000
    max_seconds = None
    ctc = None

    def collate(self, examples, packed=False, labels=True):
        levels = [10 * np.log10(np.square(e.audio).mean() + 1e-12) for e in examples]
        inputs = {"level": torch.tensor(levels), "length": torch.tensor([len(e.audio) for e in examples])}
        return Batch(inputs, {}, [e.id for e in examples])

    def decode(self, ids):
        return "".join(map(chr, ids))

    def max_new_tokens(self, seconds):
        return 100


class MeterFamily(Family):
    """Says how loud the audio is."""

    type: Literal["test_meter"] = "test_meter"
    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)

    @classmethod
    def load(cls, folder: Path, trainable: bool = False) -> Bundle:
        return Bundle(Meter(), MeterProcessor(), cls())


def write_export(folder: Path, task="transcribe", **config) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "test_meter", **config}))
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": task}, "model": {"type": "test_meter"}}))
    return folder
