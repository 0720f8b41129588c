"""Window inference: recordings of any length through a model that labels frames, as overlapping windows in batches.

Audio streams by: of a window only its scores (a few bytes per frame) and one voice embedding per speaker are stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from scipy.special import log_softmax

from stentor.audio.activity import runs
from stentor.audio.io import SILENCE
from stentor.data.batch import Example
from stentor.errors import AudioError
from stentor.models.base import Bundle
from stentor.section.contract import violation
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.speakers import embedder, nonoverlapping_frames, pools, spectra
from stentor.tasks.diarize.windows import Windows

LEAST_SILENCE = 0.5
"""Minimum seconds of digital silence in which speech of the model's output is ignored."""


class FrameTask(Protocol):
    """Settings of the task `diarize` that windows are labelled by."""

    labels: Labels
    windows: Windows
    chunk: float


@dataclass
class WindowOutputs:
    """A model's outputs for the windows of one recording. Frames are counted from the start of the recording."""

    frame_seconds: float
    samples: int
    rate: int
    starts: np.ndarray  # first frame of each window, int64 [W], rising
    lengths: np.ndarray  # frames of each window, int64 [W]; the others of T are padding
    scores: np.ndarray
    """Probability that each of the window's own S speakers talks, float16 [W, T, S]; 0 where padded."""
    hard: np.ndarray | None
    """The most probable set of speakers, bool [W, T, S], for labels whose classes are sets of speakers."""
    embeddings: np.ndarray | None
    """Unit vector of each speaker's voice, float32 [W, S, E]; 0 where a speaker is silent. None: the model has none."""
    spectra: np.ndarray | None
    """Long-term spectrum of each speaker, float32 [W, S, E], where there are no embeddings; 0 where silent."""
    nonoverlapping: np.ndarray
    """Frames in which only that speaker talks, int32 [W, S]: how much an embedding is worth."""
    classes: np.ndarray | None = None
    """Probabilities of the classes, float16 [W, T, S, classes], see `Labels.class_scores`; 0 where padded."""

    @property
    def frames(self) -> int:
        return int(self.starts[-1] + self.lengths[-1])

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return self.samples / self.rate


@dataclass
class _Job:
    """One recording in progress: outputs of its windows, how many were cut (all of them when `complete`), samples."""

    starts: list[int] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    hard: list[np.ndarray] = field(default_factory=list)
    embeddings: list[np.ndarray] = field(default_factory=list)
    spectra: list[np.ndarray] = field(default_factory=list)
    nonoverlapping: list[np.ndarray] = field(default_factory=list)
    classes: list[np.ndarray] = field(default_factory=list)
    samples: int = 0
    cut: int = 0
    complete: bool = False


def run_windows(bundle: Bundle, task: FrameTask, recordings: Iterable[Iterable[np.ndarray]]) -> Iterator[WindowOutputs]:
    """The windows of each recording, in their order; a recording is mono audio at the processor's rate in blocks of any
    size, float32 [samples]. Windows of several recordings share batches.

    A recording that is shorter than a window is one window, as it is. Raises AudioError for one without a sample.
    """
    jobs: list[_Job] = []
    waiting: list[tuple[_Job, int, np.ndarray]] = []
    for blocks in recordings:
        job = _Job()
        jobs.append(job)
        for start, audio in _cut(bundle, task, blocks, job):
            waiting.append((job, start, audio))
            job.cut += 1
            if len(waiting) == task.windows.batch:
                _label(bundle, task, waiting)
                waiting = []
        job.complete = True
        while jobs and jobs[0].complete and len(jobs[0].starts) == jobs[0].cut:
            yield _outputs(bundle, task.windows.upsample, jobs.pop(0))
    if waiting:
        _label(bundle, task, waiting)
    for job in jobs:
        yield _outputs(bundle, task.windows.upsample, job)


def _cut(bundle: Bundle, task: FrameTask, blocks: Iterable[np.ndarray], job: _Job) -> Iterator[tuple[int, np.ndarray]]:
    """(first frame, audio) of each window. Windows begin with a frame; the last one reaches the end of the audio."""
    processor: Any = bundle.processor
    rate = processor.sample_rate
    size = round((task.windows.window or task.chunk) * rate)
    frame = processor.frame_seconds * rate
    step = max(1, round(task.windows.step * size / frame))
    buffer, first = np.zeros(0, np.float32), 0  # the audio from sample `first` on
    start, last = 0, -1  # first frames of the next and of the last window
    for block in blocks:
        job.samples += len(block)
        buffer = np.concatenate([buffer, np.asarray(block, np.float32)])
        while first + len(buffer) >= round(start * frame) + size:
            begin = round(start * frame) - first
            yield start, buffer[begin : begin + size].copy()
            last = start
            start += step
        # A last window that is aligned to the end may begin anywhere after the last one.
        passed = round((last + 1) * frame) - first if last >= 0 else 0
        buffer, first = buffer[passed:], first + passed
    if job.samples == 0:
        raise AudioError("There is no audio: a recording without a single sample has no speakers.", "empty")
    if last < 0:
        yield 0, buffer
        return
    if processor.frames(job.samples - round(last * frame)) > processor.frames(size):
        start = int(np.ceil((job.samples - size) / frame))
        yield start, buffer[round(start * frame) - first :].copy()


def _label(bundle: Bundle, task: FrameTask, windows: list[tuple[_Job, int, np.ndarray]]) -> None:
    processor: Any = bundle.processor
    upsample, rate = task.windows.upsample, processor.sample_rate
    frame_seconds = processor.frame_seconds / upsample
    device = str(next(bundle.model.parameters()).device)
    voices = embedder(task.windows.embedding, device) if task.windows.embedding else None
    labelled = label_audio(bundle, task, [audio for _, _, audio in windows], upsample)
    for (job, start, audio), (scores, active, frame_embeddings, classes) in zip(windows, labelled, strict=True):
        job.starts.append(start * upsample)
        job.scores.append(scores.astype(np.float16))
        if classes is not None:
            job.classes.append(classes.astype(np.float16))
        if task.labels.exclusive:
            job.hard.append(active)
        job.nonoverlapping.append(nonoverlapping_frames(active).sum(0).astype(np.int32))
        if not task.labels.permutes:
            continue
        if voices is not None:
            job.embeddings.append(voices(audio, active, frame_seconds, rate))
        elif frame_embeddings is not None:
            pooled = pools(active) @ frame_embeddings
            norms = np.linalg.norm(pooled, axis=1, keepdims=True)
            job.embeddings.append((pooled / np.maximum(norms, 1e-9)).astype(np.float32))
        else:
            job.spectra.append(spectra(audio, active, frame_seconds, rate))


@torch.no_grad()
def label_audio(
    bundle: Bundle, task: FrameTask, audio: Sequence[np.ndarray], upsample: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]]:
    """Yield, for each audio, float32 [samples], (speech probabilities of the model's speakers, float32 [T, S]; active
    speakers, bool [T, S]; embeddings of frames [T, E] if the model has them; `Labels.class_scores`), with `upsample`
    decisions per frame of the model."""
    model: Any = bundle.model
    processor: Any = bundle.processor
    examples = [Example(str(row), _long_enough(processor, samples)) for row, samples in enumerate(audio)]
    batch = processor.collate(examples, packed=False, labels=False).to(next(model.parameters()).device)
    output = model.label_frames(**batch.inputs)
    logits, lengths = output.logits.float().cpu().numpy(), output.lengths.tolist()
    if upsample > 1:
        logits, lengths = upsampled(logits, lengths, upsample), [length * upsample for length in lengths]
    frame_seconds = processor.frame_seconds / upsample
    speaking = likeliest_sets(logits, lengths, task, upsample) if task.labels.exclusive else None
    embeddings = output.embeddings.float().cpu().numpy() if output.embeddings is not None else None
    for row, (samples, length) in enumerate(zip(audio, lengths, strict=True)):
        silent = digital_silence(samples, length, processor.sample_rate, frame_seconds)
        scores = np.where(silent, 0.0, _probabilities(task, logits[row, :length]))
        active = scores >= 0.5 if speaking is None else speaking[row, :length] & ~silent
        frame_embeddings = None if embeddings is None else embeddings[row].repeat(upsample, 0)[:length]
        yield scores, active, frame_embeddings, task.labels.class_scores(logits[row, :length])


def _probabilities(task: FrameTask, logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of the labels for logits [T, C], float32 [T, S]."""
    scores = task.labels.decode(logits)
    if not isinstance(scores, np.ndarray) or scores.ndim != 2 or len(scores) != len(logits):
        raise violation(task.labels, "decode", f"return probabilities float32 [{len(logits)}, speakers]", scores)
    return scores


def upsampled(logits: np.ndarray, lengths: Sequence[int], factor: int) -> np.ndarray:
    """Logits [B, T * factor, C], interpolated between the middles of frames of [B, T, C], of which `lengths` count."""
    places = (np.arange(logits.shape[1] * factor) + 0.5) / factor - 0.5
    last = np.asarray(lengths)[:, None] - 1
    places = np.clip(places, 0, last)  # [B, T * factor]
    before = places.astype(int)
    after = np.minimum(before + 1, last)
    share = (places - before)[:, :, None].astype(logits.dtype)
    items = np.arange(len(logits))[:, None]
    return logits[items, before] * (1 - share) + logits[items, after] * share


def likeliest_sets(logits: np.ndarray, lengths: Sequence[int], task: FrameTask, upsample: int = 1) -> np.ndarray:
    """Return the active speakers, bool [B, T, S], in the most likely sequence of classes of each item, from logits
    [B, T, C] with `lengths` valid frames: each start or end of a speaker costs `windows.change_cost` (Viterbi). The
    evidence of a frame of the model is divided among `upsample` frames."""
    classes = np.eye(logits.shape[2], dtype=bool)
    sets = _probabilities(task, np.where(classes, 1e4, -1e4).astype(np.float32)) >= 0.5  # of each class, [C, S]
    cost = task.windows.change_cost * (sets[:, None] != sets[None]).sum(2)
    scores = log_softmax(logits.astype(np.float64), axis=2) / upsample
    scores[np.arange(scores.shape[1]) >= np.asarray(lengths)[:, None]] = 0  # nothing changes after the end
    items = np.arange(len(scores))
    best, before = scores[:, 0], np.zeros(scores.shape, np.int64)
    for t in range(1, scores.shape[1]):
        through = best[:, :, None] - cost  # [B, class before, class]
        before[:, t] = through.argmax(1)
        best = through.max(1) + scores[:, t]
    path = np.zeros(scores.shape[:2], np.int64)
    path[:, -1] = best.argmax(1)
    for t in range(scores.shape[1] - 1, 0, -1):
        path[:, t - 1] = before[items, t, path[:, t]]
    return sets[path]


def digital_silence(audio: np.ndarray, frames: int, rate: int, frame_seconds: float) -> np.ndarray:
    """Return the frames, bool [frames, 1], of digital silence: stretches of `LEAST_SILENCE` seconds or more without a
    sample over `SILENCE` in `audio` [samples] at `rate` Hz."""
    starts = np.minimum(np.round(np.arange(frames) * frame_seconds * rate).astype(int), max(len(audio) - 1, 0))
    silent = np.zeros((frames, 1), bool)
    if len(audio):
        for start, end in runs(np.maximum.reduceat(np.abs(audio), starts) < SILENCE):
            silent[start:end] = (end - start) * frame_seconds >= LEAST_SILENCE
    return silent


def _long_enough(processor: Any, audio: np.ndarray) -> np.ndarray:
    """The audio, with silence after it when it is too short for a single frame."""
    size = len(audio)
    while processor.frames(size) < 1:
        size *= 2
    return np.pad(audio, (0, size - len(audio)))


def _outputs(bundle: Bundle, upsample: int, job: _Job) -> WindowOutputs:
    processor: Any = bundle.processor
    lengths = np.array([len(s) for s in job.scores])
    return WindowOutputs(
        frame_seconds=processor.frame_seconds / upsample,
        samples=job.samples,
        rate=processor.sample_rate,
        starts=np.array(job.starts),
        lengths=lengths,
        scores=_stacked(job.scores, lengths.max()),
        hard=_stacked(job.hard, lengths.max()) if job.hard else None,
        embeddings=np.stack(job.embeddings) if job.embeddings else None,
        spectra=np.stack(job.spectra) if job.spectra else None,
        nonoverlapping=np.stack(job.nonoverlapping),
        classes=_stacked(job.classes, lengths.max()) if job.classes else None,
    )


def _stacked(rows: list[np.ndarray], length: int) -> np.ndarray:
    """Arrays [T_i, ...] as one [W, length, ...], zero padded; the list is emptied on the way, so that nothing is held
    twice."""
    stacked = np.zeros((len(rows), length, *rows[0].shape[1:]), rows[0].dtype)
    for i in range(len(rows)):
        stacked[i, : len(rows[i])] = rows[i]
        rows[i] = rows[i][:0]
    rows.clear()
    return stacked
