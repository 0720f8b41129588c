"""Voice activity detection, and windows between pauses for recordings of any length.

A detector marks the frames that hold speech and keeps their levels (a few bytes for 10 ms); `cut` makes windows of
them. Audio passes through in blocks: of a two-hour file only these frames are held (`stentor.audio.activity`).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from stentor.audio.activity import FRAME, Activity, EnergyDetector, frame_levels, runs
from stentor.audio.resampler import Resampler
from stentor.data.trained_speech import LONG_PAUSE
from stentor.errors import ConfigError, require

APART = 0.5
"""Seconds of silence between two stretches of speech of a window."""
CERTAIN = 9.0
"""Decibels between speech and a pause from which on the pause is taken for silence. Measured with real speech in white,
pink and brown noise: at least 9 where the noise is 10 dB under the speech and nothing is missed, under 9 where it is as
loud as the speech and up to 6 s of it are missed."""
SPOKEN = 8
"""Minimum number of frames of speech before an end of speech."""


@dataclass(frozen=True)
class Window:
    """A stretch of audio in samples, [start, end), with the first and last speech inside it. Of audio that two windows
    share, each has half of the speech."""

    start: int
    end: int
    speech_start: int
    speech_end: int
    speech: tuple[tuple[int, int], ...] = ()
    """Its stretches of speech, at least `APART` seconds from each other."""

    def part(self, start: int, end: int) -> Window:
        """Return the part [start, end) of it."""
        speech = tuple((max(start, a), min(end, b)) for a, b in self.speech if a < end and b > start)
        first = min(max(self.speech_start, speech[0][0] if speech else start), end)
        return Window(start, end, first, max(first, min(self.speech_end, speech[-1][1] if speech else end)), speech)


class LiveDetector(Protocol):
    """Speech detector for one live recording."""

    hop: int
    """Samples of a frame of 10 ms."""

    def add(self, block: np.ndarray) -> list[bool]:
        """Whether there is speech in each of the next frames: float32 [frames * hop]."""


class Detector(Protocol):
    """Speech detector for audio in blocks (float32 [samples] at `rate` Hz, any block sizes)."""

    def activity(self, blocks: Iterable[np.ndarray], rate: int) -> Activity: ...

    def live(self, rate: int) -> LiveDetector: ...


def open_detector(vad: str = "energy", threshold: float | None = None) -> Detector:
    """Open a speech detector: `energy`, `silero` (the model of the package silero-vad) or the path of a
    `silero_vad.onnx`. `threshold`: dB above the noise floor (energy) or a probability (Silero); None: the default.
    Raises ConfigError."""
    if vad == "energy":
        if threshold is not None and not 0 < threshold < 100:
            raise ConfigError(f"The VAD threshold {threshold:g}: give dB above the noise floor, such as 6.")
        return EnergyDetector() if threshold is None else EnergyDetector(margin=threshold)
    if threshold is not None and not 0 < threshold < 1:
        raise ConfigError(f"The VAD threshold {threshold:g}: Silero's is a probability between 0 and 1, such as 0.5.")
    if vad == "silero":
        require("vad", "--vad silero", instead="leave out --vad to use the built-in energy detector")
        package = importlib.util.find_spec("silero_vad")  # not imported, which would take torchaudio along
        vad = str(Path(package.origin).parent / "data" / "silero_vad.onnx")  # type: ignore[union-attr, arg-type]
    if not Path(vad).is_file():
        raise ConfigError(f"--vad {vad}: no such file; give `energy`, `silero` or the path of a silero_vad.onnx.")
    return SileroDetector(vad, 0.5 if threshold is None else threshold)


class SileroDetector:
    """Silero VAD (version 5 or 6, ONNX, at 8 or 16 kHz), from a file; needs onnxruntime.

    Source: https://github.com/snakers4/silero-vad (MIT). The model reads 32 ms at a time, with the 4 ms before. Speech
    begins where its probability is over `threshold` and ends where it is under `threshold` - 0.15, as in its authors'
    own use.
    """

    def __init__(self, path: str, threshold: float = 0.5):
        self.path, self.threshold = path, threshold
        require("vad", "Silero VAD", "onnxruntime", instead="leave out --vad to use the built-in energy detector")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise ConfigError(f"{path} is not a Silero VAD model that onnxruntime can load: {error}") from error
        if {i.name for i in self.session.get_inputs()} != {"input", "state", "sr"}:
            raise ConfigError(f"{path} is not a Silero VAD model of version 5 or 6: its inputs have other names.")

    @staticmethod
    def check_rate(rate: int) -> None:
        """Raise ConfigError for an unsupported sample rate."""
        if rate not in (8000, 16000):
            raise ConfigError(f"Silero VAD works at 8 or 16 kHz, and this model reads audio at {rate} Hz.")

    def activity(self, blocks: Iterable[np.ndarray], rate: int) -> Activity:
        self.check_rate(rate)
        chunks = SileroChunks(self, rate)
        speech: list[bool] = []

        def passing() -> Iterator[np.ndarray]:
            for block in blocks:
                speech.extend(chunks.add(block))
                yield block

        levels, hop, samples = frame_levels(passing(), rate)
        speech += chunks.finish()
        middle = np.minimum(np.arange(len(levels)) * hop + hop // 2, max(samples - 1, 0))
        return Activity(levels, np.array(speech, bool)[middle // chunks.size], hop, samples)

    def live(self, rate: int) -> LiveSilero:
        """The same while a recording comes, at any rate."""
        return LiveSilero(self, rate)


class SileroChunks:
    """Silero VAD's speech probabilities of one recording as it arrives, for each chunk of 32 ms."""

    def __init__(self, detector: SileroDetector, rate: int):
        self.detector, self.rate = detector, rate
        self.size, overlap = (512, 64) if rate == 16000 else (256, 32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._rest, self._context = np.zeros(0, np.float32), np.zeros(overlap, np.float32)
        self._speech = False

    def add(self, audio: np.ndarray) -> list[bool]:
        """Whether there is speech in each chunk that these samples, float32, make whole."""
        self._rest = np.concatenate([self._rest, audio])
        speech = []
        while len(self._rest) >= self.size:
            speech.append(self._read(self._rest[: self.size]))
            self._rest = self._rest[self.size :]
        return speech

    def finish(self) -> list[bool]:
        """The same of what is left, with silence behind it."""
        return self.add(np.zeros(-len(self._rest) % self.size, np.float32))

    def _read(self, audio: np.ndarray) -> bool:
        feeds = {"input": np.concatenate([self._context, audio])[None], "state": self._state}
        feeds["sr"] = np.array(self.rate, np.int64)
        probability, self._state = self.detector.session.run(None, feeds)
        self._context = audio[-len(self._context) :]
        least = max(self.detector.threshold - 0.15, 0.01) if self._speech else self.detector.threshold
        self._speech = float(probability[0, 0]) > least
        return self._speech


class LiveSilero:
    """A `LiveDetector` of Silero VAD: each frame is what its last chunk was, so speech is found up to 32 ms late."""

    def __init__(self, detector: SileroDetector, rate: int):
        self.hop = round(rate * FRAME)
        self._chunks = SileroChunks(detector, rate if rate in (8000, 16000) else 16000)
        self._resampler = Resampler(rate, self._chunks.rate)
        self._speech = False

    def add(self, block: np.ndarray) -> list[bool]:
        frames = []
        for frame in block.reshape(-1, self.hop):
            self._speech = (self._chunks.add(self._resampler.add(frame)) or [self._speech])[-1]
            frames.append(self._speech)
        return frames


class Endpointer:
    """Finds the end of speech: `silence` seconds without speech, after speech."""

    def __init__(self, detector: LiveDetector, silence: float = 0.8):
        self.detector, self.hop, self.silence = detector, detector.hop, max(1, round(silence / FRAME))
        self._spoken, self._quiet = 0, 0
        self.paused = False
        """Whether half of that time has passed in the last block."""

    @property
    def speaking(self) -> bool:
        """Whether there was speech since the last end of speech."""
        return self._spoken >= SPOKEN

    def end(self) -> None:
        """Mark the end of speech."""
        self._spoken = 0

    def add(self, block: np.ndarray) -> bool:
        """Add a block, float32 of whole frames of 10 ms, and return whether speech has ended in it."""
        ended = self.paused = False
        for speech in self.detector.add(block):
            self._spoken += speech
            self._quiet = 0 if speech else self._quiet + 1
            self.paused = self.paused or (self.speaking and self._quiet == (self.silence + 1) // 2)
            if self._quiet == self.silence:
                ended = ended or self.speaking
                self._spoken = 0
        return ended


def cut(
    activity: Activity,
    rate: int,
    longest: float = 30.0,
    pause: float = 0.3,
    padding: float | None = None,
    silence: float | None = None,
    shortest: float = 0.0,
    overlap: float = 0.0,
) -> list[Window]:
    """Cut audio into windows of at most `longest` seconds, in order, that contain all speech.

    Silence over `silence` seconds (None: `LONG_PAUSE`) belongs to no window, but for `padding` seconds (None: 0.15) on
    either side of speech. Speech of less than `shortest` seconds between two such silences is left out. What is still
    longer than `longest` is cut in the middle of a pause (at least `pause` seconds), the longest one in the second half
    of the window; speech without one is cut at its quietest point there, and its two windows share about `overlap`
    seconds of audio. A recording that is no longer than `longest` and holds no such silence between its speech is one
    window, as it is; so is one that short whose noise is too loud to tell silence from speech. Both are cut if
    `padding`, `shortest` or a `silence` within their length is given.
    """
    hop, samples = activity.hop, activity.samples
    if not activity.speech.any():
        return []
    regions = [(int(a) * hop, min(int(b) * hop, samples)) for a, b in runs(activity.speech)]
    groups = list(_runs(regions, round((LONG_PAUSE if silence is None else silence) * rate)))
    as_it_is = padding is None and (silence is None or silence * rate >= samples) and not shortest
    if samples <= longest * rate and as_it_is and (len(groups) == 1 or not _certain(activity, groups)):
        return [Window(0, samples, regions[0][0], regions[-1][1], _stretches(regions, rate))]
    pad, most = round((0.15 if padding is None else padding) * rate), int(longest * rate)
    middles = [0, *((a[-1][1] + b[0][0]) // 2 for a, b in pairwise(groups)), samples]
    windows = []
    for run, first, last in zip(groups, middles, middles[1:], strict=False):
        # `run` is a list of regions; around it there is silence of more than `silence`, of which it takes `pad`.
        if run[-1][1] - run[0][0] < shortest * rate:
            continue
        start = max(first, run[0][0] - pad)
        end = min(last, run[-1][1] + pad)
        shared = round(overlap * rate) // hop
        for a, b, own, after in _divide(start, end, run, activity.levels, hop, most, round(pause * rate), shared):
            inside = [(max(a, s), min(b, e)) for s, e in run if s < b and e > a]
            alone = [(max(own, s), min(after, e)) for s, e in inside if s < after and e > own]
            if alone:
                windows.append(Window(a, b, alone[0][0], alone[-1][1], _stretches(inside, rate)))
    return windows


def _certain(activity: Activity, groups: list[list[tuple[int, int]]]) -> bool:
    """Whether all pauses between the groups of regions are `CERTAIN` dB under the speech."""
    loudness, hop = np.median(activity.levels[activity.speech]), activity.hop
    pauses = [activity.levels[a[-1][1] // hop : b[0][0] // hop] for a, b in pairwise(groups)]
    return all(loudness - np.median(pause) >= CERTAIN for pause in pauses)


def _stretches(regions: list[tuple[int, int]], rate: int) -> tuple[tuple[int, int], ...]:
    return tuple((run[0][0], run[-1][1]) for run in _runs(regions, round(APART * rate)))


def _runs(regions: list[tuple[int, int]], gap: int) -> Iterator[list[tuple[int, int]]]:
    """Regions in groups that are more than `gap` samples apart."""
    run = [regions[0]]
    for region in regions[1:]:
        if region[0] - run[-1][1] > gap:
            yield run
            run = []
        run.append(region)
    yield run


def _divide(
    start: int, end: int, run: list[tuple[int, int]], levels: np.ndarray, hop: int, most: int, pause: int, shared: int
) -> Iterator[tuple[int, int, int, int]]:
    """[start, end) in pieces of at most `most` samples, each with its own part of what neighbours share: about `shared`
    frames where there is no pause."""
    pauses = [(a, b) for (_, a), (b, _) in pairwise(run)]
    own = start
    while end - start > most:
        first, last = start + most // 2, start + most
        candidates = [(b - a, (a + b) // 2) for a, b in pauses if b - a >= pause and first <= (a + b) // 2 <= last]
        if candidates:
            stop = after = following = max(candidates)[1]
        else:
            if shared:  # as few pieces as possible, about equally long
                both = shared * hop
                last = start + both + math.ceil((end - start - both) / math.ceil((end - start - both) / (most - both)))
                first = last - most // 32
            frame = _quietest(levels, first // hop + 1, last // hop)
            before = _quietest(levels, frame - shared * 23 // 20, frame - shared * 17 // 20) if shared else frame
            stop, following, after = frame * hop, before * hop, (frame + before) // 2 * hop
        yield start, stop, own, after
        start, own = following, after
    yield start, end, own, end


def _quietest(levels: np.ndarray, low: int, high: int) -> int:
    """Within 1 dB of the quietest frame, the latest: longer windows."""
    low = min(low, high - 1)
    return low + int(np.flatnonzero(levels[low:high] <= levels[low:high].min() + 1)[-1])
