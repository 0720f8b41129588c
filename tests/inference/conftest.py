"""A model for the tests of this folder: it "hears" how loud a window is and says so, one token per character."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import soundfile

sys.path.extend([str(Path(__file__).parent), str(Path(__file__).parents[1] / "models")])
from speaking import make_model

RATE = 16000


@pytest.fixture
def run(capsys):
    """Runs `stentor ...` in this process; answers its exit code and what it wrote to standard output and error."""
    from stentor.cli import main

    def command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return main([str(a) for a in arguments]), *capsys.readouterr()

    return command


@pytest.fixture(scope="session")
def talker(tmp_path_factory) -> Path:
    """The export folder of a small untrained model for the task `speak`."""
    return make_model(tmp_path_factory.mktemp("talker") / "model")


@pytest.fixture
def meter(monkeypatch):
    """The family `test_meter`, known while the test runs; its models keep the window lengths of each batch."""
    import torch

    from stentor.data.batch import Batch
    from stentor.models.base import Bundle, Family
    from stentor.models.contracts import Capabilities, Recognizer

    class Meter(torch.nn.Module, Recognizer):
        capabilities = Capabilities(aligns="words")

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.batches = []
            self.aligner = Clock()

        def generate(self, inputs, max_new_tokens, eos_ids, beams=1, temperature=0.0, generators=None):
            self.batches.append(inputs["length"].tolist())
            texts = [f"level {round(-x)}" for x in inputs["level"].tolist()]
            return [([ord(c) for c in text], [-0.1] * len(text)) for text in texts]

        def align(self, level, length, feature_lengths):
            """Two words: 0.1 to 0.4 s and 0.5 s to the end."""
            ends = length / RATE
            start, end = torch.tensor([0.1, 0.5]).expand(len(ends), 2), torch.stack([ends * 0 + 0.4, ends + 0.2], 1)
            return torch.stack([start, end], 2), torch.ones(len(ends), 2), torch.zeros(len(ends), 2)

    class Clock:
        calibration = torch.tensor([1.0, 0.0, 0.0])

        def points(self, lengths):
            return lengths // (RATE // 10)

    class MeterProcessor:
        sample_rate = RATE
        max_seconds = None
        eos_id = 0
        ctc = None

        def tokens(self, cut, seconds):
            return 1

        def collate(self, examples, packed=False, labels=True):
            levels = [10 * np.log10(np.square(e.audio).max() + 1e-12) for e in examples]
            inputs = {"level": torch.tensor(levels), "length": torch.tensor([len(e.audio) for e in examples])}
            if labels:
                inputs["feature_lengths"] = inputs["length"]
            return Batch(inputs, {}, [e.id for e in examples])

        def decode(self, ids):
            return "".join(map(chr, ids))

        def max_new_tokens(self, seconds):
            return 100

    class MeterFamily(Family):
        type: Literal["test_meter"] = "test_meter"
        tasks: ClassVar[tuple[str, ...]] = ("transcribe", "words")

        @classmethod
        def load(cls, folder: Path, trainable: bool = False) -> Bundle:
            return Bundle(Meter(), MeterProcessor(), cls())

    return MeterFamily


@pytest.fixture
def export(tmp_path, meter):
    """Write an export folder of the family; returns its path."""

    def write(folder: Path = tmp_path / "model", task: str = "transcribe") -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "test_meter"}))
        (folder / "training_config.json").write_text(json.dumps({"task": {"type": task}}))
        return folder

    return write


@pytest.fixture
def tone(tmp_path):
    """Write a file of tones that swell and fade four times a second, as syllables do; returns its path.

    `tone("a.wav", (seconds, dB of full scale), ...)`, None for silence.
    """

    def write(name: str, *parts: tuple[float, float | None], rate: int = RATE) -> Path:
        audio = []
        for seconds, level in parts:
            count = round(seconds * rate)
            gain = 0 if level is None else 10 ** (level / 20)
            time = np.arange(count) / rate
            audio.append(gain * np.sin(2 * np.pi * 440 * time) * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time)))
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.concatenate(audio), rate)
        return path

    return write


@pytest.fixture(scope="session")
def tiny_family():
    """Makes the config of a tiny speech LLM with a CTC head; keywords are other keys of `model:`."""
    from tiny_speech_llm import family

    return partial(family, ctc={"units": "characters"})


@pytest.fixture(scope="session")
def ctc_export(tmp_path_factory, tiny_family):
    """An export of ours with a CTC head, untrained, that believes every text about as likely as any other."""
    from stentor.models.base import TaskRequirements

    family = tiny_family()
    bundle = family.build(
        TaskRequirements("transcribe", ("text", "ctc"), texts=lambda: ["one two three four five six"])
    )
    bundle.model.ctc_head.weight.data.mul_(0.01)
    folder = tmp_path_factory.mktemp("ctc") / "export"
    family.save(bundle, bundle.model.state_dict(), folder)
    return folder


PITCHES = (300.0, 500.0, 700.0, 900.0, 1100.0, 1300.0)
"""The voices that the models of `tones` tell apart: one frequency each."""


@pytest.fixture
def tones(monkeypatch):
    """The family `test_tones`, known while the test runs: a diarizer that hears which of `PITCHES` sound in a frame of
    0.1 s. In each window it gives those that sound most to its outputs, in an order that no other window knows.

    `tones.slots`: its outputs. `tones.voices`: whether its models have embeddings. `tones.speech`: whether they have
    one output, speech or not. `tones.windows`: the samples of each window they were given.
    """
    import torch

    from stentor.data.batch import Batch
    from stentor.models.base import Bundle, Family
    from stentor.models.transformer.modeling import FrameOutput

    frame = RATE // 10

    class Ears(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def label_frames(self, features, lengths):
            slots = TonesFamily.slots
            logits = torch.full((len(features), features.shape[1], slots), -3.0)
            voices = torch.zeros(len(features), features.shape[1], len(PITCHES))
            for row, (levels, length) in enumerate(zip(features, lengths.tolist(), strict=True)):
                sounds = levels[:length] > 0.1
                order = [int(k) for k in sounds.sum(0).argsort(descending=True)[:slots] if sounds[:, k].any()]
                turned = round(1e6 * float(levels[:length].sum())) % slots
                for slot, k in enumerate(order):
                    logits[row, :length, (slot + turned) % slots][sounds[:, k]] = 3.0
                voices[row, :length] = sounds.float()
            if TonesFamily.speech:
                logits = logits.amax(2, keepdim=True)
            return FrameOutput(logits, voices if TonesFamily.voices else None, lengths)

    class TonesProcessor:
        sample_rate = RATE
        max_seconds = None
        frame_seconds = 0.1

        def frames(self, samples):
            return max(1, -(-samples // frame))

        def tokens(self, cut, seconds):
            return self.frames(round(seconds * RATE))

        def collate(self, examples, packed=False, labels=True):
            TonesFamily.windows += [len(e.audio) for e in examples]
            lengths = [self.frames(len(e.audio)) for e in examples]
            features = torch.zeros(len(examples), max(lengths), len(PITCHES))
            for row, (e, length) in enumerate(zip(examples, lengths, strict=True)):
                audio = np.pad(e.audio, (0, length * frame - len(e.audio))).reshape(length, frame)
                time = np.arange(frame) / RATE
                for k, pitch in enumerate(PITCHES):
                    features[row, :length, k] = torch.tensor(np.abs(audio @ np.exp(-2j * np.pi * pitch * time)) / frame)
            return Batch({"features": features, "lengths": torch.tensor(lengths)}, {}, [e.id for e in examples])

    class TonesFamily(Family):
        type: Literal["test_tones"] = "test_tones"
        tasks: ClassVar[tuple[str, ...]] = ("diarize",)
        voices: ClassVar[bool] = True
        speech: ClassVar[bool] = False
        slots: ClassVar[int] = 2
        windows: ClassVar[list[int]] = []

        @classmethod
        def load(cls, folder: Path, trainable: bool = False) -> Bundle:
            return Bundle(Ears(), TonesProcessor(), cls())

    return TonesFamily


@pytest.fixture
def diarizer(tmp_path, tones):
    """Write an export folder of `test_tones` with windows of 10 s; keywords are keys of `task:`. Returns its path."""

    def write(folder: Path = tmp_path / "diarizer", **task: object) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "test_tones"}))
        task = {"type": "diarize", "labels": {"type": "speaker", "speakers": 2}, "chunk": 10.0, **task}
        (folder / "training_config.json").write_text(json.dumps({"task": task, "train": {}}))
        return folder

    return write


@pytest.fixture
def talk(tmp_path):
    """Write a conversation of (voice of PITCHES, start, end) turns in seconds; returns its path."""

    def write(name: str, seconds: float, turns, rate: int = RATE) -> Path:
        time = np.arange(round(seconds * rate)) / rate
        audio = np.zeros(len(time))
        for voice, start, end in turns:
            inside = (time >= start) & (time < end)
            swell = 0.75 - 0.25 * np.cos(2 * np.pi * 4 * time[inside])  # what is as loud all the time is no speech
            audio[inside] += 0.45 * swell * np.sin(2 * np.pi * PITCHES[voice] * time[inside])
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, audio, rate)
        return path

    return write
