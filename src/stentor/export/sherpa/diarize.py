"""Diarizers in sherpa-onnx's pyannote layout: a segmentation model, and an extractor of speaker embeddings.

segmentation.onnx   x [1, 1, samples] of a window at 16 kHz -> y [1, F, classes], log-probabilities of sets of at most
                    two speakers, by size and in lexicographic order
embedding.onnx      x [1, T, 80], Kaldi's fbank -> embedding [1, E], for models with embeddings of such features

Checked with sherpa-onnx 2.0.1 (csrc/offline-speaker-segmentation-pyannote-model.cc, speaker-embedding-extractor-*.cc):
segmentation needs the metadata sample_rate, window_size, receptive_field_size, receptive_field_shift (in samples),
num_speakers, powerset_max_classes (2 at most) and num_classes; an extractor of the framework `wespeaker` output_dim,
sample_rate, normalize_samples (1: audio from -1 to 1) and language.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.audio.kaldi import KaldiFeatures
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.onnx.diarize import frame_task, upsampled
from stentor.export.onnx.frontend import KaldiFrontend, frontend
from stentor.export.onnx.trace import add_metadata, trace
from stentor.export.sherpa.exporter import SherpaExporter
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.powerset import Powerset
from stentor.tasks.diarize.labels.speaker import SpeakerLabels
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.windows import Windows

SEGMENTATION, EMBEDDING = "segmentation.onnx", "embedding.onnx"
SHORTEST = 160
"""Least samples of a frame: sherpa-onnx leaves out speakers with fewer than ten frames in a window, and pyannote's have
270."""
USAGE = """\
`segmentation.onnx` is a segmentation model in pyannote's layout for `OfflineSpeakerDiarization`, and `embedding.onnx`,
where it is there, an extractor of the model's own speaker embeddings. Without it, take one of sherpa-onnx's releases.
Windows are stitched by sherpa-onnx, not by Stentor's clustering.

```python
import sherpa_onnx, soundfile
segmentation = sherpa_onnx.OfflineSpeakerSegmentationModelConfig(
    pyannote=sherpa_onnx.OfflineSpeakerSegmentationPyannoteModelConfig(model="{folder}/segmentation.onnx"))
diarizer = sherpa_onnx.OfflineSpeakerDiarization(sherpa_onnx.OfflineSpeakerDiarizationConfig(
    segmentation=segmentation,
    embedding=sherpa_onnx.SpeakerEmbeddingExtractorConfig(model="{folder}/embedding.onnx"),
    clustering=sherpa_onnx.FastClusteringConfig(num_clusters=-1, threshold=0.5),  # or the number of speakers
    min_duration_on=0.0, min_duration_off=0.0))
audio, rate = soundfile.read("meeting.wav", dtype="float32")  # mono, 16 kHz
for segment in diarizer.process(audio).sort_by_start_time():
    print(segment.start, segment.end, segment.speaker)
```
"""


class Segmentation(nn.Module):
    """Audio [1, 1, samples] of a window to log-probabilities [1, F, classes] of sets of speakers."""

    def __init__(self, bundle: Bundle, task: Diarize, repeats: int):
        super().__init__()
        self.features, self.model = frontend(bundle.processor), bundle.model
        self.labels, self.upsample, self.repeats = task.labels, task.windows.upsample, repeats
        sets = torch.tensor(speaker_sets(task.labels), dtype=torch.float32)
        self.register_buffer("sets", sets, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        output = self.model.label_frames(*self.features(x[:, 0]))
        logits = output.logits
        logits = logits if self.upsample == 1 else upsampled(logits, output.lengths, self.upsample)
        sets: Any = self.sets
        if isinstance(self.labels, Powerset):
            scores = logits.log_softmax(-1)[..., : len(sets)]
        else:
            scores = F.logsigmoid(logits) @ sets.T + F.logsigmoid(-logits) @ (1 - sets).T
        return scores.repeat_interleave(self.repeats, 1)


class Extractor(nn.Module):
    """Kaldi's fbank [1, T, 80] to the unit vector [1, E] of a voice."""

    def __init__(self, bundle: Bundle):
        super().__init__()
        self.features, self.model = frontend(bundle.processor), bundle.model

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.features, KaldiFrontend)
        output = self.model.label_frames(*self.features.joined(x.transpose(1, 2)))
        return F.normalize(output.embeddings.mean(1), dim=1, eps=1e-9)


class MeanSpectrum(nn.Module):
    """Stands in for an extractor where there is none: windows alone need no voices, but sherpa-onnx wants a model."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class DiarizerSherpa(SherpaExporter):
    """A diarizer for `OfflineSpeakerDiarization`."""

    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        if bundle.processor.sample_rate != 16000:
            return f"sherpa-onnx reads audio at 16 kHz, and this model at {bundle.processor.sample_rate} Hz"
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        task, bundle = speaker_task(model), model.bundle
        size, step = window_samples(task), frame_samples(bundle, task)
        repeats = next(n for n in range(max(step // SHORTEST, 1), 0, -1) if step % n == 0)
        sets = speaker_sets(task.labels)
        path = folder / SEGMENTATION
        graph = Segmentation(bundle, task, repeats)
        trace(graph, {"x": torch.randn(1, 1, size)}, {"x": ()}, ["y"], path, "segmentation model")
        facts = {
            "model_type": "pyannote-segmentation-3.0",
            "sample_rate": 16000,
            "window_size": size,
            "receptive_field_size": 0,
            "receptive_field_shift": step // repeats,
            "num_speakers": len(sets[0]),
            "powerset_max_classes": max(map(sum, sets)),
            "num_classes": len(sets),
        }
        add_metadata(path, facts)
        if has_extractor(bundle):
            write_extractor(Extractor(bundle), folder / EMBEDDING, bundle.family.embedding)  # type: ignore[attr-defined]

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import sherpa_onnx as sherpa

        task = speaker_task(model)
        with TemporaryDirectory() as temporary:
            extractor = folder / EMBEDDING
            if not extractor.is_file():
                extractor = Path(temporary) / EMBEDDING
                write_extractor(MeanSpectrum(), extractor, 80)
            settings = sherpa.OfflineSpeakerSegmentationPyannoteModelConfig(model=str(folder / SEGMENTATION))
            config = sherpa.OfflineSpeakerDiarizationConfig(
                segmentation=sherpa.OfflineSpeakerSegmentationModelConfig(pyannote=settings),
                embedding=sherpa.SpeakerEmbeddingExtractorConfig(model=str(extractor)),
                clustering=sherpa.FastClusteringConfig(num_clusters=task.windows.speakers or -1, threshold=0.5),
                min_duration_on=task.windows.min_on,
                min_duration_off=task.windows.min_off,
            )
            diarizer = sherpa.OfflineSpeakerDiarization(config)
            found = [diarizer.process(audio).sort_by_start_time() for audio in windows_of(task, examples)]
        seconds = frame_samples(model.bundle, task) / 16000
        return [{"segments": named(segments), "frame_seconds": seconds} for segments in found]

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Whole windows, decided frame by frame as sherpa-onnx does: without costs, thresholds and median."""
        task = speaker_task(model)
        plain = Windows(upsample=task.windows.upsample, min_on=task.windows.min_on, min_off=task.windows.min_off)
        task = task.model_copy(update={"windows": plain})
        clips = [Example(e.id, audio) for e, audio in zip(examples, windows_of(task, examples))]
        return task.predict(model.bundle, clips)


def named(segments: Sequence[Any]) -> list[dict[str, Any]]:
    """sherpa-onnx's segments, in order of time, with Stentor's names of speakers."""
    numbers: dict[int, int] = {}
    names = [f"speaker_{numbers.setdefault(s.speaker, len(numbers) + 1)}" for s in segments]
    return [{"speaker": n, "start": round(s.start, 3), "end": round(s.end, 3)} for n, s in zip(names, segments)]


def speaker_task(model: Model) -> Diarize:
    """The task. Raises ConfigError for labels that are no speakers."""
    task = frame_task(model)
    if not isinstance(task.labels, Powerset) and type(task.labels) is not SpeakerLabels:
        raise ConfigError(
            f"--format sherpa: sherpa-onnx's diarization takes labels of speakers (`powerset`, `speaker`), not "
            f"`{task.labels.type}`."
        )
    return task


def speaker_sets(labels: Labels) -> list[list[int]]:
    """The sets of at most two speakers in pyannote's order, as 0 and 1 for each speaker."""
    speakers = range(labels.slots or 0)
    most = min(labels.at_once if isinstance(labels, Powerset) else 2, 2, len(speakers))
    sets = [chosen for size in range(most + 1) for chosen in combinations(speakers, size)]
    return [[int(k in chosen) for k in speakers] for chosen in sets]


def window_samples(task: Diarize) -> int:
    return round((task.windows.window or task.chunk) * 16000)


def frame_samples(bundle: Bundle, task: Diarize) -> int:
    """Samples of a decision. Raises ConfigError where that is no whole number."""
    samples = bundle.processor.frame_seconds * 16000 / task.windows.upsample  # type: ignore[attr-defined]
    if abs(samples - round(samples)) > 1e-6:
        raise ConfigError(f"`task.windows.upsample: {task.windows.upsample}` gives frames of {samples:g} samples.")
    return round(samples)


def windows_of(task: Diarize, examples: Sequence[Example]) -> list[np.ndarray]:
    """The first window of each clip, with the silence that sherpa-onnx adds to shorter ones."""
    size = window_samples(task)
    clips = [e.audio[:size] for e in examples if e.audio is not None]
    return [np.pad(clip, (0, size - len(clip))) for clip in clips]


def has_extractor(bundle: Bundle) -> bool:
    """Whether the model has embeddings of the features that sherpa-onnx computes for extractors."""
    features = bundle.processor.features  # type: ignore[attr-defined]
    if bundle.family.embedding is None or features is None:  # type: ignore[attr-defined]
        return False
    names = KaldiFeatures.model_fields.keys() - {"dither"}
    return features.model_dump(include=names) == KaldiFeatures().model_dump(include=names)


def write_extractor(graph: nn.Module, path: Path, size: int) -> None:
    """Write an extractor of vectors of `size`."""
    trace(graph, {"x": torch.randn(1, 97, 80)}, {"x": (1,)}, ["embedding"], path, "speaker embeddings")
    facts = {"framework": "wespeaker", "output_dim": size, "sample_rate": 16000, "normalize_samples": 1}
    add_metadata(path, facts | {"language": "any"})
