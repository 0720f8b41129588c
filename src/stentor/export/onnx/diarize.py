"""ONNX graphs of a model that labels frames, and the program that makes the diarization of a recording of them.

features.onnx   audio of a window to features, see `export.onnx.frontend`
diarizer.onnx   features, lengths [B] -> logits [B, T, C], frames [B], embeddings [B, T, E] where there are any, scores
                [B, T', S] (probabilities of the speakers, T' = T times `windows.upsample`), log_probs [B, T', C] where
                labels are sets of speakers
voices.onnx     what tells the speakers of a window apart, [S, E], from the activity bool [T', S] and the embeddings or,
                without, the audio: long-term spectra
onnx_config.json  labels and settings of the windows
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.onnx.exporter import GraphExporter, usage_of, write_facts
from stentor.export.onnx.frontend import Spectra, samples_at, write_frontend
from stentor.export.onnx.trace import trace
from stentor.export.program import write_program
from stentor.inference.model import Model
from stentor.losses.ego import CLASSES
from stentor.models.base import Bundle
from stentor.models.transformer.export import write_config
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.binary import Detection
from stentor.tasks.diarize.labels.powerset import Powerset
from stentor.tasks.diarize.labels.speaker import Ego, SpeakerLabels
from stentor.tasks.diarize.speakers import mel_bands
from stentor.tasks.diarize.task import Diarize

PROGRAM = "diarize.py"
USAGE = """\
Windows, decisions and clustering of voices are those of `stentor diarize`.
"""


class DiarizerGraph(nn.Module):
    """The model with the probabilities of its labels."""

    def __init__(self, model: Any, labels: Labels, upsample: int):
        super().__init__()
        self.model, self.labels, self.upsample = model, labels, upsample
        table = torch.from_numpy(labels.table).float() if isinstance(labels, Powerset) else None
        self.register_buffer("table", table, persistent=False)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        output = self.model.label_frames(features, lengths)
        logits = upsampled(output.logits, output.lengths, self.upsample) if self.upsample > 1 else output.logits
        found: tuple[Tensor, ...] = (output.logits, output.lengths, self.scores(logits))
        if isinstance(self.table, Tensor):
            found = (*found, logits.log_softmax(-1))
        return found if output.embeddings is None else (*found, output.embeddings)

    def scores(self, logits: Tensor) -> Tensor:
        """Probabilities [B, T, S], as `Labels.decode`."""
        if isinstance(self.table, Tensor):
            return logits.softmax(-1) @ self.table
        if isinstance(self.labels, Ego):
            return logits.unflatten(2, (-1, CLASSES)).softmax(-1)[..., :2].sum(3)
        return logits.sigmoid()


def upsampled(logits: Tensor, lengths: Tensor, factor: int) -> Tensor:
    """See `stentor.tasks.diarize.inference.upsampled`."""
    places = ((torch.arange(logits.shape[1] * factor) + 0.5) / factor - 0.5).clamp(min=0)
    last = lengths[:, None] - 1
    places = torch.minimum(places, last.float())
    before = places.long()
    share = (places - before)[..., None]
    rows = torch.arange(logits.shape[0])[:, None]
    return logits[rows, before] * (1 - share) + logits[rows, torch.minimum(before + 1, last)] * share


class EmbeddingsGraph(nn.Module):
    """Unit vectors [S, E] of a window's speakers: means of embeddings, see `stentor.tasks.diarize.speakers.pools`."""

    def __init__(self, upsample: int):
        super().__init__()
        self.upsample = upsample

    def forward(self, embeddings: Tensor, active: Tensor) -> Tensor:
        frames = embeddings[0].repeat_interleave(self.upsample, 0)[: active.shape[0]]
        return F.normalize(chosen(active).T @ frames, dim=1, eps=1e-9)


class SpectraGraph(nn.Module):
    """The long-term spectra [S, 128] of a window's speakers, see `stentor.tasks.diarize.speakers.spectra`."""

    window: Tensor

    def __init__(self, rate: int, frame_seconds: float):
        super().__init__()
        self.size = 2 ** round(np.log2(0.064 * rate))
        self.decisions = self.size / 2 / rate / frame_seconds
        """Decisions of the model for each spectrum."""
        self.register_buffer("window", torch.from_numpy(np.hanning(self.size)).float())
        self.spectra = Spectra(self.size, torch.from_numpy(mel_bands(self.size, rate)))

    def forward(self, audio: Tensor, active: Tensor) -> Tensor:
        size, half = torch.sym_max(audio.shape[1], self.size), self.size // 2
        places = torch.arange((size - half) // half)[:, None] * half + torch.arange(self.size)
        frames = samples_at(audio, places.flatten()).view(-1, self.size) * self.window
        mels = (self.spectra(frames)[0].T + 1e-8).log()
        frames = ((torch.arange(mels.shape[0]) + 1) * self.decisions).long().clamp(max=active.shape[0] - 1)
        present = chosen(active)[frames] > 0  # [N, S]
        level = mels.mean(1, keepdim=True)
        ranked = level.masked_fill(~present, torch.inf).sort(0).values
        count = present.sum(0, keepdim=True)
        middle = (ranked.gather(0, (count - 1).clamp(min=0) // 2) + ranked.gather(0, count // 2)) / 2
        loud = (present & (level >= middle)).float()  # the louder half
        total = loud.sum(0)[:, None].clamp(min=1)
        mean = loud.T @ mels / total
        spread = (loud.T[..., None] * (mels - mean[:, None]).square()).sum(1) / total
        return torch.cat([mean, spread.sqrt()], 1)


def chosen(active: Tensor) -> Tensor:
    """Averaging weights [T, S] over the frames that tell a speaker's voice: those without others, if any."""
    alone = active & (active.sum(1, keepdim=True) == 1)
    weights = (alone | (active & ~alone.any(0))).float()
    return weights / weights.sum(0).clamp(min=1)


class DiarizerOnnx(GraphExporter):
    """Graphs of a diarizer with a program that runs them."""

    usage = usage_of(
        "python diarize.py meeting.wav --speakers 3 > meeting.rttm", USAGE, "windows, decisions, clustering, RTTM"
    )
    pieces = 3

    def write_graphs(self, model: Model, folder: Path) -> None:
        task, bundle = frame_task(model), model.bundle
        graphs = {
            "features": write_frontend(bundle.processor, folder),
            "diarizer": write_diarizer(bundle, task, folder),
            "voices": write_voices(bundle, task, folder),
        }
        bundle.processor.save(folder)
        write_config(bundle, folder)
        graphs = {name: graph for name, graph in graphs.items() if graph}
        embedding: int | None = bundle.family.embedding  # type: ignore[attr-defined]
        write_facts(folder, "diarize", graphs, program_facts(bundle.processor, task, embedding))
        write_program(folder, "diarize", PROGRAM, parts=("audio",))

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        diarizer = runpy.run_path(str(folder / PROGRAM))["Diarizer"](folder)
        return [{"segments": diarizer.diarize(e.audio), "frame_seconds": diarizer.seconds} for e in examples]


def frame_task(model: Model) -> Diarize:
    """The task of a diarizer. Raises ConfigError for settings that only Stentor runs."""
    task = model.task
    if not isinstance(task, Diarize) or not isinstance(task.labels, Powerset | SpeakerLabels | Detection):
        raise ConfigError("Labels of a plug-in (`task.labels`) cannot be exported: --format hf is what there is.")
    if task.windows.clustering == "vbx":
        raise ConfigError("`task.windows.clustering: vbx` runs in Stentor alone: set it to agglomerative to export.")
    if task.windows.embedding is not None:
        raise ConfigError(
            "`task.windows.embedding`, another model for the voices, cannot be exported: leave it out, and the voices "
            "are compared by the model's own embeddings (`model.embedding`) or by their spectra."
        )
    return task


def write_diarizer(bundle: Bundle, task: Diarize, folder: Path) -> dict[str, Any]:
    """Write `diarizer.onnx`; returns its entry of the graphs."""
    processor: Any = bundle.processor
    noise = (0.1 * np.random.default_rng(0).standard_normal((2, 42_000))).astype(np.float32)
    inputs = processor.collate([Example("a", noise[0]), Example("b", noise[1, :30_000])], labels=False).inputs
    graph = DiarizerGraph(bundle.model, task.labels, task.windows.upsample)
    outputs = ["logits", "frames", "scores"] + ["log_probs"] * isinstance(task.labels, Powerset)
    outputs += ["embeddings"] * bool(bundle.family.embedding)  # type: ignore[attr-defined]
    time = 2 if processor.pretrained is not None and processor.pretrained.shape.kind == "mel" else 1
    trace(graph, inputs, {"features": (0, time), "lengths": (0,)}, outputs, folder / "diarizer.onnx", "diarizer")
    return {"file": "diarizer.onnx", "outputs": outputs}


def write_voices(bundle: Bundle, task: Diarize, folder: Path) -> dict[str, Any] | None:
    """Write `voices.onnx`; returns its entry of the graphs. None where labels are no speakers."""
    if not task.labels.permutes:
        return None
    embedding: int | None = bundle.family.embedding  # type: ignore[attr-defined]
    graph: nn.Module
    processor, upsample = bundle.processor, task.windows.upsample
    active = torch.rand(5 * upsample, task.labels.slots or 1) > 0.5
    if embedding:
        graph, inputs = EmbeddingsGraph(upsample), {"embeddings": torch.randn(1, 7, embedding)}
    else:
        seconds = processor.frame_seconds / upsample  # type: ignore[attr-defined]
        graph, inputs = SpectraGraph(processor.sample_rate, seconds), {"audio": torch.randn(1, 42_000)}
    axes = dict.fromkeys(inputs, (1,)) | {"active": (0,)}
    trace(graph, inputs | {"active": active}, axes, ["voices"], folder / "voices.onnx", "vectors of voices")
    return {"file": "voices.onnx", "outputs": ["voices"]}


def program_facts(processor: Any, task: Diarize, embeddings: int | None) -> dict[str, Any]:
    """Facts of `onnx_config.json` that `diarize.py` reads besides the graphs."""
    w, labels = task.windows, task.labels
    window = w.window or task.chunk
    longer = size = round(window * processor.sample_rate)
    while processor.frames(longer) <= processor.frames(size):
        longer += 1
    settings = w.model_dump(
        exclude={"batch", "speakers", "min_speakers", "max_speakers", "clustering", "vbx", "window"}
    )
    sets = labels.table.tolist() if isinstance(labels, Powerset) else None
    speakers = {"embeddings": bool(embeddings), "least": w.bounds[0], "most": w.bounds[1]}
    return {
        "sample_rate": processor.sample_rate,
        "frame_seconds": processor.frame_seconds,
        "labels": {"sets": sets, "permutes": labels.permutes, "names": labels.names},
        "windows": {**settings, "window": window, "longer": longer, **speakers},
    }
