"""Speech activity by energy: which frames of a recording hold speech, and the room around it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

FRAME = 0.01
"""Seconds per frame."""
FLOOR = -100.0
"""Level of digital silence in dB; full scale is 0."""
MARGIN = 6.0
"""Decibels above the noise floor from which on there is speech."""
STEADY = 3.5
"""Least dB between floor and peak of speech. Measured: white, pink and brown noise 0.4 to 3.1; speech that pink noise
drowns by 5 dB 5.6 to 7.1; 2,500 spoken digits, cut tightly, at least 4.3."""
SILENCE = -65.0
"""Level in dB under which nothing is speech."""
REACH = 15
"""Seconds around a moment, or before it while the recording comes, for the noise floor."""
SOFT, CLOSURE, EDGE_MARGIN, EDGE_DEPTH, EDGE_FRAMES = 45.0, 15, 3.0, 15.0, 15
"""See `_first_speech`: dB, frames, dB, dB, frames."""


@dataclass
class Activity:
    """Levels and speech of a recording: one entry per frame of `hop` samples, the last frame may be partial."""

    levels: np.ndarray  # float32 [frames], dB of full scale
    speech: np.ndarray  # bool [frames]
    hop: int
    samples: int


class EnergyDetector:
    """Speech is what stands out of the noise floor, which is followed through the recording.

    The floor at a moment is the 10 % quantile of the levels within 15 s, the peak their 95 % quantile; the threshold
    lies `ratio` of the way up, at least `margin` dB above the floor and never under `silence` dB. Where floor and peak
    are less than `MARGIN` apart there is no pause to find: such a stretch counts as speech when it is `margin` louder
    than the recording's quiet parts, or when the whole recording is like that, so that no speech is lost; use Silero
    VAD where that matters. What is within `STEADY` dB all the time is noise. Single sounds under 80 ms, such as clicks,
    are no speech.
    """

    def __init__(self, margin: float = MARGIN, ratio: float = 0.2, silence: float = SILENCE):
        self.margin, self.ratio, self.silence = margin, ratio, silence

    def activity(self, blocks: Iterable[np.ndarray], rate: int) -> Activity:
        levels, hop, samples = frame_levels(blocks, rate)
        if not len(levels):
            return Activity(levels, np.zeros(0, bool), hop, samples)
        floor, peak = _envelope(levels)
        threshold = np.maximum(floor + np.maximum(self.margin, self.ratio * (peak - floor)), self.silence)
        speech = levels > threshold
        steady = (peak - floor < min(self.margin, MARGIN)) & (floor > self.silence)
        if not steady.all():
            steady &= floor > np.quantile(levels, 0.1) + self.margin
        steady &= peak - floor >= STEADY
        return Activity(levels, _without_clicks(speech) | steady, hop, samples)

    def live(self, rate: int) -> "LiveEnergy":
        """The same while a recording comes: what is `margin` dB above the floor so far."""
        return LiveEnergy(rate, self.margin, self.silence)


class LiveEnergy:
    """Speech of a streamed recording, from the levels of the last 15 s."""

    def __init__(self, rate: int, margin: float = MARGIN, silence: float = SILENCE):
        from scipy.signal import butter

        self.hop, self.margin, self.silence = round(rate * FRAME), margin, silence
        self._highpass = butter(2, 80, "highpass", fs=rate)
        self._memory = np.zeros(2)
        self._levels = np.zeros(round(REACH / FRAME))
        self._floor, self._frames = FLOOR, 0

    def add(self, block: np.ndarray) -> list[bool]:
        """Whether there is speech in each of the next frames: float32 [frames * hop]."""
        from scipy.signal import lfilter

        filtered, self._memory = lfilter(*self._highpass, block, zi=self._memory)
        speech = []
        for power in np.square(filtered.reshape(-1, self.hop)).mean(1).tolist():
            level = max(FLOOR, 10 * math.log10(max(power, 1e-12)))
            self._levels[self._frames % len(self._levels)] = level
            self._frames += 1
            if self._frames % 10 == 1:
                self._floor = _quiet_level(self._levels[: self._frames])
            speech.append(level > max(self._floor + self.margin, self.silence))
        return speech


def _quiet_level(levels: np.ndarray) -> float:
    """The 10 % quantile."""
    place = 0.1 * (len(levels) - 1)
    below, above = math.floor(place), math.ceil(place)
    ordered = np.partition(levels, (below, above))
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def speech_span(audio: np.ndarray, rate: int) -> tuple[int, int] | None:
    """First sample of speech in `audio`, float32 [samples], and the one after the last; None without speech."""
    activity = EnergyDetector().activity([audio], rate)
    first = _first_speech(activity.levels, activity.speech)
    last = _first_speech(activity.levels[::-1], activity.speech[::-1])
    if first is None or last is None:
        return None
    return first * activity.hop, min((len(activity.levels) - last) * activity.hop, len(audio))


def speech_with_room(audio: np.ndarray, rate: int, room: float) -> tuple[np.ndarray, float]:
    """`audio` float32 [samples] with `room` seconds around its speech, and the seconds that it now begins earlier
    (negative where its beginning was cut off).

    A longer pause at an end is cut, a shorter one is filled up with silence. Audio without speech stays unchanged.
    """
    if (span := speech_span(audio, rate)) is None:
        return audio, 0.0
    room_samples = round(room * rate)
    start, end = span[0] - room_samples, span[1] + room_samples
    inside = audio[max(start, 0) : end]
    return np.pad(inside, (max(-start, 0), max(end - len(audio), 0))), -start / rate


def _first_speech(levels: np.ndarray, speech: np.ndarray) -> int | None:
    """First frame of speech; None without any.

    In a clip that begins with speech the detector takes soft consonants for its floor: speech is followed back while
    it is at most `SOFT` dB under the peak, over closures of `CLOSURE` frames. Noise at the edge of a recording that is
    clean elsewhere stands out as speech does. It is steady and well under the speech: frames that stay within
    `EDGE_MARGIN` dB of how the recording begins, `EDGE_DEPTH` dB under its peak and for at least `EDGE_FRAMES` frames,
    are no speech.
    """
    if not speech.any():
        return None
    peak = float(np.quantile(levels, 0.95))
    first = int(speech.argmax())
    for frame in np.flatnonzero(levels[:first] > max(peak - SOFT, SILENCE))[::-1]:
        first = int(frame) if first - frame <= CLOSURE else first
    begin = float(np.median(levels[:EDGE_FRAMES]))
    if begin > peak - EDGE_DEPTH:
        return first
    edge = int((np.abs(levels - begin) > EDGE_MARGIN).argmax())
    return max(first, edge) if edge >= EDGE_FRAMES else first


def runs(mask: np.ndarray) -> np.ndarray:
    """First frame, and the frame after the last, of each stretch of True: int64 [N, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]))).reshape(-1, 2)


def frame_levels(blocks: Iterable[np.ndarray], rate: int) -> tuple[np.ndarray, int, int]:
    """Level of each frame in dB [frames], smoothed over 50 ms, with the hop and the number of samples.

    Below 80 Hz there is no speech but much hum and rumble: it is filtered out.
    """
    from scipy.ndimage import uniform_filter1d
    from scipy.signal import sosfilt

    hop, sos = round(rate * FRAME), _highpass(rate)
    memory = np.zeros((len(sos), 2))
    buffer = np.zeros(0)
    powers: list[Any] = []
    samples = 0
    for block in filter(len, blocks):
        samples += len(block)
        filtered, memory = sosfilt(sos, block, zi=memory)
        buffer = np.concatenate([buffer, filtered])
        frames = len(buffer) // hop
        powers.append(np.square(buffer[: frames * hop].reshape(-1, hop)).mean(1))
        buffer = buffer[frames * hop :]
    if len(buffer):
        powers.append(np.square(buffer).mean(keepdims=True))
    power = np.concatenate(powers) if powers else np.zeros(0)
    if len(power):
        power = uniform_filter1d(power, 5, mode="nearest")
    return np.maximum(10 * np.log10(np.maximum(power, 1e-12)), FLOOR).astype(np.float32), hop, samples


@lru_cache
def _highpass(rate: int) -> np.ndarray:
    from scipy.signal import butter

    sos: np.ndarray = butter(2, 80, "highpass", fs=rate, output="sos")
    return sos


def _without_clicks(speech: np.ndarray, shortest: int = 8, apart: int = 25) -> np.ndarray:
    """Frames of speech without those in stretches under `shortest` frames, `apart` frames from all other speech."""
    edges = runs(speech)
    gaps = np.concatenate([[len(speech)], edges[1:, 0] - edges[:-1, 1], [len(speech)]])
    speech = speech.copy()
    for (start, end), before, after in zip(edges, gaps, gaps[1:], strict=False):
        if end - start < shortest and min(before, after) >= apart:
            speech[start:end] = False
    return speech


def _envelope(levels: np.ndarray, reach: int = REACH) -> tuple[np.ndarray, np.ndarray]:
    """Noise floor and peak around each frame in dB: quantiles within `reach` seconds, from one second to the next."""
    second = round(1 / FRAME)
    centres = np.arange(second // 2, max(len(levels), second // 2 + 1), second)
    ends = [(max(0, c - reach * second), min(c + reach * second, len(levels))) for c in centres]
    known = {(a, b): np.quantile(levels[a:b], [0.1, 0.95]) for a, b in set(ends)}  # one window of short recordings
    quantiles = np.array([known[window] for window in ends])
    frames = np.arange(len(levels))
    return np.interp(frames, centres, quantiles[:, 0]), np.interp(frames, centres, quantiles[:, 1])
