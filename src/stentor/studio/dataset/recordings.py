"""Recording quality: levels, and a sentence for each thing that is wrong, while the recording can be made again."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stentor.data.signal_stats import measure_audio
from stentor.studio.texts import say

SHORTEST = 0.5
"""Seconds of the shortest recording that can hold a phrase."""
QUIETEST = -40.0
"""dBFS of speech that is still heard above the noise of most microphones' own electronics."""
LONGEST = 30.0
"""Seconds that most models hear at a time (Whisper's window)."""
SILENT = -60.0
"""dBFS below which nothing was said."""
CLIPPED = 1e-4
"""Share of samples in clipped runs from which a recording counts as clipped: 1.6 ms in a second at 16 kHz."""
FRAME = 0.02
"""Seconds of the frames whose levels are compared."""
LEAST_ABOVE = 20.0
"""dB between the loud and the quiet frames under which the background is too loud: speech that is mixed with noise at a
ratio of 13 dB. Of 120 recordings of real speech, cut to their speech, none is below it and 5 % are below 26."""
LEAST_SPEECH = 3.0
"""dB between them under which no speech stands out: steady noise alone has about 1."""

REMARKS = ("empty", "silent", "short", "long", "clipped", "quiet", "noise", "no_speech")
"""Possible faults; texts.yaml has a sentence `heard_...` for each."""


class Remark(NamedTuple):
    """One thing that is wrong: one of `REMARKS`, the figures in its sentence, and the sentence."""

    key: str
    values: dict[str, float]

    @property
    def sentence(self) -> str:
        return say(f"heard_{self.key}", **self.values)


class Levels(NamedTuple):
    """Figures of one recording for a level meter, and what is wrong with it."""

    seconds: float = 0.0
    peak: float = -120.0
    """Largest sample, dBFS."""
    level: float = -120.0
    """Level of the loud frames (95th percentile), dBFS."""
    clipped: float = 0.0
    """Share of samples in clipped runs."""
    above: float = 0.0
    """dB between the loud (95th percentile) and the quiet frames (5th): also in words read without a pause there are
    closures of stops, in which the background is heard."""
    remarks: Sequence[Remark] = ()


def listen(audio: np.ndarray, rate: int) -> Levels:
    """Measure float32 mono [samples] at `rate` Hz. Never raises for what is wrong with the recording."""
    if not len(audio):
        return Levels(remarks=[Remark("empty", {})])
    sound = measure_audio(audio, rate)
    peak = float(20 * np.log10(np.abs(audio).max() + 1e-6))
    above = _above_background(audio, rate)
    heard = sound.level >= SILENT
    speech = heard and above >= LEAST_SPEECH
    faults: list[tuple[str, bool, dict[str, float]]] = [
        ("short", sound.seconds < SHORTEST, {"seconds": sound.seconds, "limit": SHORTEST}),
        ("long", sound.seconds > LONGEST, {"seconds": sound.seconds, "limit": LONGEST}),
        ("silent", not heard, {"level": sound.level}),
        ("clipped", heard and sound.clipped > CLIPPED, {"share": sound.clipped}),
        ("quiet", heard and sound.level < QUIETEST, {"level": sound.level, "limit": QUIETEST}),
        ("no_speech", heard and not speech, {}),
        ("noise", speech and above < LEAST_ABOVE, {"above": above, "limit": LEAST_ABOVE}),
    ]
    remarks = [Remark(key, values) for key, applies, values in faults if applies]
    return Levels(sound.seconds, peak, sound.level, sound.clipped, above, remarks)


def _above_background(audio: np.ndarray, rate: int) -> float:
    """dB between the loud and the quiet frames."""
    frame = min(round(FRAME * rate), len(audio))
    frames = audio[: len(audio) // frame * frame].reshape(-1, frame)
    decibels = 10 * np.log10(np.square(frames, dtype=np.float64).mean(1) + 1e-12)
    quiet, loud = np.percentile(decibels, [5, 95])
    return float(loud - quiet)
