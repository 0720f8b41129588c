"""Augmentation: random changes of training audio. Every change is drawn from the item's own generator, f(seed, epoch,
cut id), so that an epoch repeats exactly with any number of workers and after a resume at any step.

`speed` changes durations and word times, so the batch plan draws it first (`speed_factor`); all else keeps the length.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from stentor.data.storage import StoragePath, as_path
from stentor.errors import AudioError, DataError
from stentor.section import ConfigConflict, Range, Section

if TYPE_CHECKING:
    import numpy as np

RATE = 16000
"""Default sampling rate in Hz of the audio that is changed."""
AUDIO = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph")
IN_MEMORY = 512
"""Noise and impulse-response files that each worker keeps decoded."""

Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0.25, lt=4)]
DIRECT = (0.5, 0.9)
"""Direct sound's share of the energy by default: speakers near to the microphone and across a table."""


class Noise(Section):
    """Background noise at a drawn signal-to-noise ratio."""

    paths: list[StoragePath] = []
    """Folders with noise recordings, manifests of them, or single files."""
    builtin: list[Literal["white", "pink", "brown", "hum", "babble"]] = []
    """Built-in kinds of noise. Babble is made from other parts of the same utterance, played backwards."""
    snr: Range = (5.0, 20.0)
    """Signal-to-noise ratio in dB."""
    p: Probability = 0.5
    """Probability that an item gets it."""
    partial: Probability = 0.0
    """Probability that the noise begins or ends inside the item instead of lasting through it."""

    @model_validator(mode="after")
    def _from_somewhere(self) -> Noise:
        if not self.paths and not self.builtin:
            raise ConfigConflict("paths", "noise needs `paths` or `builtin`")
        return self

    def apply(self, audio: np.ndarray, rng: np.random.Generator, rate: int = RATE) -> np.ndarray:
        """`audio` float32 [samples] plus noise; unchanged where it is silent."""
        import numpy as np

        files, snr = list_audio(tuple(self.paths)), rng.uniform(*self.snr)
        kind = int(rng.integers(len(files) + len(self.builtin)))
        if kind < len(files):
            noise = stretch(decoded(files[kind], rate), len(audio), rng)
        else:
            noise = builtin_noise(self.builtin[kind - len(files)], audio, rng, rate)
        signal, power = np.mean(np.square(audio, dtype=np.float64)), np.mean(np.square(noise, dtype=np.float64))
        if signal == 0 or power == 0:
            return audio
        if self.partial and rng.random() < self.partial:
            edge = int(rng.integers(len(audio) + 1))
            noise = np.concatenate([noise[:edge], np.zeros(len(audio) - edge, noise.dtype)])[:: rng.choice([1, -1])]
        return audio + noise * np.float32(np.sqrt(signal / power * 10 ** (-snr / 10)))


class Reverb(Section):
    """Rooms: convolution with an impulse response. The direct sound keeps its level and its time."""

    paths: list[StoragePath] = []
    """Folders with impulse responses, manifests of them, or single files. Empty: simulated ones only."""
    simulated: bool = True
    """Also use exponentially decaying noise as impulse responses (with `paths`, for half of the items)."""
    rt60: Range = (0.1, 0.6)
    """Reverberation time of simulated rooms in seconds."""
    direct: tuple[Share, Share] = DIRECT
    """Share of the energy that is direct sound in simulated rooms. A lower share sounds like a speaker farther away."""
    p: Probability = 0.3
    """Probability that an item gets it."""

    @model_validator(mode="after")
    def _from_somewhere(self) -> Reverb:
        if not self.paths and not self.simulated:
            raise ConfigConflict("simulated", "reverb needs `paths` or `simulated: true`")
        return self

    def apply(self, audio: np.ndarray, rng: np.random.Generator, rate: int = RATE) -> np.ndarray:
        """`audio` float32 [samples] with the reverberation of a room, at the same power."""
        import numpy as np
        from scipy.signal import fftconvolve

        files = list_audio(tuple(self.paths))
        if files and not (self.simulated and rng.random() < 0.5):
            response = decoded(files[int(rng.integers(len(files)))], rate)
        else:
            response = simulate_response(rng.uniform(*self.rt60), rng, rate, self.direct)
        direct = int(np.argmax(np.abs(response)))
        wet = fftconvolve(audio, response)[direct : direct + len(audio)]
        before, after = np.mean(np.square(audio, dtype=np.float64)), np.mean(np.square(wet))
        return (wet * np.sqrt(before / after)).astype(np.float32) if after > 0 else audio


class SpecAugment(Section):
    """SpecAugment: blank stripes of the spectrogram (Park et al. 2019). The task applies it to the features."""

    time_masks: int = Field(2, ge=0)
    """Number of time stripes."""
    time_width: int = Field(20, ge=1)
    """Widest time stripe in frames; never more than a fifth of the utterance."""
    freq_masks: int = Field(2, ge=0)
    """Number of frequency stripes."""
    freq_width: int = Field(15, ge=1)
    """Widest frequency stripe in bins."""
    p: Probability = 1.0
    """Probability that an item gets it."""

    def stripes(self, frames: int, bins: int, rng: np.random.Generator) -> list[tuple[int, int, int]]:
        """(axis, first, after last) of each stripe; axis 0 is time, 1 is frequency."""
        if rng.random() >= self.p:
            return []
        stripes = []
        masks = [(0, frames, min(self.time_width, frames // 5))] * self.time_masks
        masks += [(1, bins, min(self.freq_width, bins - 1))] * self.freq_masks
        for axis, size, widest in masks:
            width = int(rng.integers(widest + 1))
            first = int(rng.integers(size - width + 1))
            stripes.append((axis, first, first + width))
        return stripes

    def apply(self, features: Any, rng: np.random.Generator) -> Any:
        """A copy of `features` (numpy or torch, [frames, bins]) with stripes set to the mean of the utterance."""
        import copy

        frames, bins = features.shape
        masked, fill = copy.deepcopy(features), features.mean()
        for axis, first, last in self.stripes(frames, bins, rng):
            masked[(slice(first, last), slice(None)) if axis == 0 else (slice(None), slice(first, last))] = fill
        return masked


class Augment(Section):
    """Random changes of training audio. Each one is off unless its key is set."""

    speed: list[Positive] | None = Field(None, min_length=1)
    """Playback speeds, one drawn for each item: `[0.9, 1.0, 1.1]`. Pitch and formants change with the speed, as on a
    tape, so each speed sounds like another speaker. Null: off."""
    voice: Range | None = None
    """Range of the random factor by which pitch and formants are shifted, with the tempo kept, as if the speaker had
    another vocal tract. `[0.85, 1.2]` covers adults. It helps with speakers unlike those in training. Null: off."""
    voice_p: Probability = 0.5
    """Probability that `voice` is applied to an item."""
    reverb: Reverb | None = None
    """Room reverberation. Null: off."""
    noise: Noise | None = None
    """Background noise. Null: off."""
    gain: Range | None = None
    """Range of the level change in dB, drawn uniformly: `[-10, 6]`. Null: off."""
    band: Probability = 0.0
    """Probability that an item is band-limited to 300 to 3400 Hz, like a telephone call."""
    spec_augment: SpecAugment | None = None
    """SpecAugment: stripes blanked in the spectrogram. Null: off."""

    def check(self) -> None:
        """Raise `DataError` when a file or folder is missing; called before training."""
        for part in (self.noise, self.reverb):
            if part is not None:
                list_audio(tuple(part.paths))

    def speed_factor(self, rng: np.random.Generator) -> float:
        """The speed of one item; its duration becomes `duration / speed`. The batch plan draws this first."""
        return self.speed[int(rng.integers(len(self.speed)))] if self.speed else 1.0

    def keeps(self, speed: float = 1.0) -> bool:
        """Whether the audio of an item at this speed stays unchanged (`spec_augment` changes features only)."""
        return speed == 1.0 and not (self.voice or self.reverb or self.noise or self.gain or self.band)

    def apply(self, audio: np.ndarray, rng: np.random.Generator, speed: float = 1.0, rate: int = RATE) -> np.ndarray:
        """`audio`, float32 [samples] at `rate` Hz, after speed, voice, reverb, noise, band and gain; float32, -1..1.
        The result has `round(samples / speed)` samples. A pure function of its arguments (and of noise files)."""
        import numpy as np

        if speed != 1.0:
            audio = change_speed(audio, speed)
        if self.voice and rng.random() < self.voice_p:
            audio = change_voice(audio, rng.uniform(*self.voice), rate)
        if self.reverb and rng.random() < self.reverb.p:
            audio = self.reverb.apply(audio, rng, rate)
        if self.noise and rng.random() < self.noise.p:
            audio = self.noise.apply(audio, rng, rate)
        if self.band and rng.random() < self.band:
            audio = telephone(audio, rate)
        if self.gain:
            audio = audio * np.float32(10 ** (rng.uniform(*self.gain) / 20))
        peak = float(np.max(np.abs(audio), initial=0.0))
        return (audio / peak if peak > 1 else audio).astype(np.float32, copy=False)


def change_speed(audio: np.ndarray, factor: float) -> np.ndarray:
    """`audio` [samples] played `factor` times as fast: `round(samples / factor)` samples, pitch moves along."""
    import numpy as np
    import soxr

    # 100 Hz steps are exact for factors of two decimals; the length is then made exact for any factor.
    length = round(len(audio) / factor)
    audio = soxr.resample(audio, 10000 * factor, 10000)
    return audio[:length] if len(audio) >= length else np.pad(audio, (0, length - len(audio)))


def change_voice(audio: np.ndarray, factor: float, rate: int = RATE) -> np.ndarray:
    """Pitch and formants times `factor`, same length: resampled, then brought back to tempo by WSOLA. WSOLA (Verhelst
    and Roelands 1993): windows are overlapped where they continue the waveform best."""
    import numpy as np

    shifted = change_speed(audio, factor)
    hop, search = rate // 80, rate // 160  # 12.5 ms, and up to half of it to either side
    window = np.hanning(2 * hop + 1)[:-1].astype(np.float32)
    count = -(-len(audio) // hop) + 1
    out = np.zeros((count + 1) * hop, np.float32)
    padded = np.pad(shifted, (hop + search, 3 * hop + search))
    last = len(padded) - 2 * hop - search
    continuation: np.ndarray | None = None  # what follows the last window in the waveform
    for i in range(count):
        start = min(search + round(i * hop / factor), last)  # of the window in `padded`, before the search
        if continuation is not None:
            around = padded[start - search : start + search + 2 * hop]
            start += int(np.argmax(np.correlate(around, continuation, "valid"))) - search
        out[i * hop : (i + 2) * hop] += window * padded[start : start + 2 * hop]
        continuation = padded[min(start + hop, last) :][: 2 * hop]
    return out[hop : hop + len(audio)]


def simulate_response(
    rt60: float, rng: np.random.Generator, rate: int = RATE, direct: tuple[float, float] = DIRECT
) -> np.ndarray:
    """A room's impulse response, float32 [samples]: direct sound, then noise that falls by 60 dB in `rt60` seconds; the
    share of the energy that the direct sound holds is drawn from `direct`."""
    import numpy as np

    time = np.arange(1, max(2, round(rt60 * rate))) / rate
    tail = rng.standard_normal(len(time)) * 10 ** (-3 * time / rt60)
    tail *= np.sqrt(1 / rng.uniform(*direct) - 1) / np.linalg.norm(tail)
    return np.concatenate([[1.0], tail]).astype(np.float32)


def telephone(audio: np.ndarray, rate: int = RATE) -> np.ndarray:
    """The band of a telephone call, 300 to 3400 Hz, without a shift in time."""
    import numpy as np
    from scipy.signal import sosfiltfilt

    if len(audio) < 64:
        return audio
    return sosfiltfilt(_band(rate), audio).astype(np.float32)


@lru_cache(maxsize=4)
def _band(rate: int) -> np.ndarray:
    from scipy.signal import butter

    return butter(4, [300, min(3400, 0.45 * rate)], "bandpass", fs=rate, output="sos")


@lru_cache(maxsize=16)
def list_audio(paths: tuple[Path, ...]) -> list[Path]:
    """Audio files of folders (searched in depth), JSONL manifests and single files, in a fixed order. Raises
    `DataError` for a path that does not exist or holds no audio."""
    from stentor.data.jsonl import not_found

    files: list[Path] = []
    for path in (p.expanduser() for p in paths):
        if not path.exists():
            raise not_found(path)
        if path.is_dir():
            audio = sorted(p for p in path.rglob("*") if p.suffix.lower() in AUDIO)
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            from stentor.data.cut import UnusableRecord, audio_path
            from stentor.data.layouts.cuts import read_cuts
            from stentor.data.layouts.recognise import recognise

            cuts = (c for c in read_cuts(recognise(path)) if not isinstance(c, UnusableRecord))
            audio = [as_path(name) for c in cuts if (name := audio_path(c))]
        else:
            audio = [path]
        if not audio:
            raise DataError(f"{path} holds no audio files ({', '.join(AUDIO)}).")
        files += audio
    return files


@lru_cache(maxsize=IN_MEMORY)
def decoded(path: Path, rate: int) -> np.ndarray:
    """A noise or impulse-response file, float32 [samples], cached in memory. Raises `DataError`."""
    from stentor.audio.io import read
    from stentor.data.embedded_audio import audio_file

    try:
        with audio_file(path) as file:
            return read(file, rate=rate)
    except AudioError as error:
        raise DataError(f"A file for augmentation cannot be used: {error}") from error


def stretch(noise: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """A stretch of `length` samples from a drawn position; short noise is repeated."""
    import numpy as np

    if len(noise) < length:
        noise = np.tile(noise, -(-length // len(noise)) + 1)
    start = int(rng.integers(len(noise) - length + 1))
    return noise[start : start + length]


def builtin_noise(kind: str, audio: np.ndarray, rng: np.random.Generator, rate: int) -> np.ndarray:
    """Noise as long as `audio`, [samples]; babble is made of `audio` itself, the other kinds of nothing."""
    import numpy as np

    length = len(audio)
    if kind == "babble":
        starts = rng.integers(length, size=6)
        return np.stack([np.roll(audio[::-1], start) for start in starts]).sum(axis=0)
    if kind == "hum":
        time = np.arange(length) / rate
        tones = rng.choice([50.0, 60.0]) * np.arange(1, 9)
        levels, phases = rng.random(8) / np.arange(1, 9), rng.uniform(0, 2 * np.pi, 8)
        waves = np.sin(2 * np.pi * tones[:, None] * time + phases[:, None])
        return (levels[:, None] * waves).sum(0).astype(np.float32)
    noise = rng.standard_normal(length).astype(np.float32)
    if kind == "white":
        return noise
    # Pink and brown noise: power falls with frequency to the 1 and 2.
    import scipy.fft  # in float32, which numpy's takes for float64

    falling = np.maximum(np.fft.rfftfreq(length, 1 / rate), 20.0) ** -{"pink": 0.5, "brown": 1.0}[kind]
    return scipy.fft.irfft(scipy.fft.rfft(noise) * falling.astype(np.float32), length)
